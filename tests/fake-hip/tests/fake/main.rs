//! gpu-vmm-hip on the fake driver, version by version.
//!
//! A process has one HIP, so each case runs in a child: this program again. The environment names the case, the version, and
//! the quirk whose workaround is switched off.
#![allow(unsafe_code)] // HIP's own functions are called, and the backend's traits
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic

#[macro_use]
mod rig;
mod addresses;
mod child;
mod device_and_granularity;
mod devices;
mod events;
mod failures;
mod flow;
mod handled;
mod host;
mod misbehaved;
mod unexpected;

use child::Case;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

/// One version of each bucket: all that differ in something.
const VERSIONS: [&str; 12] =
    ["6.1", "6.2", "6.3", "6.4.1", "7.0", "7.0.2", "7.1", "7.2", "7.12", "7.14", "7.15", "7.16"];

/// Quirks that are not shown, by reason.
const NOT_SHOWN: [(&str, &str); 9] = [
    (
        "gpu-vmm-hip never makes the call; the conformance suite's driver group makes it on AMD's own runtime",
        "access-rounds-up access-unchecked export-to-null fill-opens-access free-ignores-size free-of-unknown \
         free-while-mapped hipfree-succeeds host-access-appears ipc-handle-accepted map-beyond-reservation map-offset \
         one-reservation read-only-is-hardware reserve-says-no-memory retain-does-not-count unmap-does-not-wait \
         unmap-of-nothing",
    ),
    (
        "gpu-vmm-hip never makes the call; the backend's entry says where it was seen",
        "host-memory-is-the-devices range-is-one-mapping range-leaks",
    ),
    ("the cases of `flow` expect it", "hint-is-a-wish import-leaks release-frees-nothing"),
    ("it is only reported as an error", "descriptor-for-each-handle host-access-on-imports"),
    ("the cause is not known, and nothing is done about it", "large-creates scattered-copies"),
    (
        "it is a matter of hardware, time or the kernel, and nothing is done about it",
        "access-change-is-a-gap map-visible-late set-access-hangs-before-drm-3-64 unmap-waits-for-all-streams",
    ),
    ("it is a matter of the machine; to the caller it is map-reports-nothing", "mixed-graphics"),
    (
        "there are no captures here; backend-hip/tests/hip/captures.rs shows it on HIP itself",
        "device-wait-spoils-captures events-spoil-captures null-stream-spoils-captures spoilt-capture-stays \
         waits-spoil-captures",
    ),
    (
        "no call reads freed memory here; backend-hip/tests/hip/events.rs shows it on HIP itself",
        "event-reads-its-stream",
    ),
];

fn goes_well(case: &Case, version: &str) -> Result<(), Failed> {
    child::run(case, version, "").map(drop).map_err(|how| format!("on {version}: {how}").into())
}

fn goes_wrong(row: &handled::Row, version: &str) -> Result<(), Failed> {
    match child::run(&row.case, version, row.quirk) {
        Ok(_) => Err(format!("on {version} it succeeded").into()),
        Err(how) if how.contains(row.without) => Ok(()),
        Err(how) => Err(format!("on {version} it failed without \"{}\": {how}", row.without).into()),
    }
}

/// Checks that each quirk that the backend lists for a version is in one of the tables.
fn every_quirk(version: &str) -> Result<(), Failed> {
    let listed = child::run(&flow::QUIRKS, version, "")?;
    let mut known: Vec<&str> = handled::ROWS.iter().map(|row| row.quirk).collect();
    known.extend(NOT_SHOWN.iter().flat_map(|(_why, quirks)| quirks.split_whitespace()));
    let missing: Vec<&str> = listed.lines().filter(|quirk| !known.contains(quirk)).collect();
    if missing.is_empty() && !listed.is_empty() {
        Ok(())
    } else {
        Err(format!("not shown: {missing:?}").into())
    }
}

/// A runtime that reports success and no device is not opened.
fn no_device_is_an_error() -> Result<(), Failed> {
    match child::run(&flow::WITHOUT_A_DEVICE, "7.2", "") {
        Err(how) if how.contains("hipGetDeviceCount returned success and 0") => Ok(()),
        answer => Err(format!("{answer:?}").into()),
    }
}

/// The access records have room for a limited number of devices.
fn devices_above_the_limit_are_not_listed() -> Result<(), Failed> {
    goes_well(&flow::MANY_DEVICES, "7.2")
}

fn an_odd_granularity_is_an_error() -> Result<(), Failed> {
    let words = "hipMemGetAllocationGranularity returned 3 MiB for device 0, not a power of two";
    match child::run(&flow::ODD_GRANULARITY, "7.2", "") {
        Err(how) if how.contains(words) => Ok(()),
        answer => Err(format!("{answer:?}").into()),
    }
}

/// A call that fails while the backend opens is named.
fn a_failed_start_is_told() -> Result<(), Failed> {
    for (case, part) in &flow::FAILED_STARTS {
        match child::run(case, "7.2", "") {
            Err(how) if [part, case.name, "999"].iter().all(|part| how.contains(part)) => {}
            answer => return Err(format!("{}: {answer:?}", case.name).into()),
        }
    }
    Ok(())
}

/// The versions on both sides of the first that is opened.
fn the_oldest_version_opens() -> Result<(), Failed> {
    child::run(&flow::QUIRKS, "60100000", "")?;
    match child::run(&flow::QUIRKS, "60099999", "") {
        Err(how)
            if how.contains("version 6.0.99999 (hipRuntimeGetVersion returned 0)")
                && how.contains("needs 6.1 or later") =>
        {
            Ok(())
        }
        answer => Err(format!("{answer:?}").into()),
    }
}

fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("no_device_is_an_error", no_device_is_an_error),
        Trial::test("a_failed_start_is_told", a_failed_start_is_told),
        Trial::test("devices_above_the_limit_are_not_listed", devices_above_the_limit_are_not_listed),
        Trial::test("an_odd_granularity_is_an_error", an_odd_granularity_is_an_error),
        Trial::test("the_oldest_version_opens", the_oldest_version_opens),
    ];
    for version in VERSIONS {
        for case in flow::CASES.iter().chain(addresses::CASES).chain(devices::CASES).chain(host::CASES) {
            let name = format!("{version}::flow::{}", case.name);
            trials.push(Trial::test(name, move || goes_well(case, version)));
        }
        trials.push(Trial::test(format!("{version}::every_quirk_is_shown"), move || every_quirk(version)));
        for case in misbehaved::CASES.iter().chain(&unexpected::CASES) {
            trials.push(Trial::test(format!("{version}::{}", case.name), move || goes_well(case, version)));
        }
    }
    for version in failures::VERSIONS {
        let cases = failures::CASES.iter().chain(&events::CASES).chain(&device_and_granularity::CASES);
        for (case, _) in cases.filter(|(case, _)| failures::is_for(case, version)) {
            trials.push(Trial::test(format!("{version}::{}", case.name), move || goes_well(case, version)));
        }
    }
    for row in handled::ROWS {
        for version in row.versions {
            trials.push(Trial::test(format!("{version}::handled::{}", row.quirk), move || {
                goes_well(&row.case, version)?;
                goes_wrong(row, version)
            }));
        }
    }
    trials
}

fn main() -> ExitCode {
    let Some(name) = child::asked_for() else {
        return libtest_mimic::run(&Arguments::from_args(), trials()).exit_code();
    };
    let all = flow::CASES.iter().chain(addresses::CASES).chain(devices::CASES).chain(host::CASES).chain([
        &flow::QUIRKS,
        &flow::WITHOUT_A_DEVICE,
        &flow::MANY_DEVICES,
        &flow::ODD_GRANULARITY,
    ]);
    let all = all.chain(flow::FAILED_STARTS.iter().map(|(case, _)| case));
    let mut all = all
        .chain(&misbehaved::CASES)
        .chain(&unexpected::CASES)
        .chain(
            failures::CASES
                .iter()
                .chain(&events::CASES)
                .chain(&device_and_granularity::CASES)
                .map(|(case, _)| case),
        )
        .chain(handled::ROWS.iter().map(|row| &row.case));
    all.find(|case| name == case.name).expect("a case of that name").run_here();
    ExitCode::SUCCESS
}
