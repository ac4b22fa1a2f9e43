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

/// The cases that run on each version.
const EACH_VERSION: [&[Case]; 6] =
    [flow::CASES, addresses::CASES, devices::CASES, host::CASES, misbehaved::CASES, unexpected::CASES];
/// The cases that run on the versions of `failures`.
const SOME_VERSIONS: [&[Case]; 3] = [failures::CASES, events::CASES, device_and_granularity::CASES];

/// Quirks that are not shown, by reason.
const NOT_SHOWN: [(&str, &str); 9] = [
    (
        "gpu-vmm-hip never makes the call; the conformance suite's driver group makes it on AMD's own runtime",
        "access-rounds-up access-unchecked export-to-null fill-opens-access free-ignores-size free-of-unknown \
         free-while-mapped hipfree-succeeds host-access-appears ipc-handle-accepted map-beyond-reservation map-offset \
         one-reservation read-only-is-hardware reserve-says-no-memory unmap-does-not-wait unmap-of-nothing",
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

/// The access records have room for a limited number of devices.
fn devices_above_the_limit_are_not_listed() -> Result<(), Failed> {
    goes_well(&flow::MANY_DEVICES, "7.2")
}

/// A call that fails while the backend opens is named.
fn failed_starts_are_reported() -> Result<(), Failed> {
    for (case, parts) in &flow::FAILED_STARTS {
        match child::run(case, "7.2", "") {
            Err(how) if parts.iter().all(|part| how.contains(part)) => {}
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
        Trial::test("failed_starts_are_reported", failed_starts_are_reported),
        Trial::test("devices_above_the_limit_are_not_listed", devices_above_the_limit_are_not_listed),
        Trial::test("the_oldest_version_opens", the_oldest_version_opens),
    ];
    for version in VERSIONS {
        trials.push(Trial::test(format!("{version}::every_quirk_is_shown"), move || every_quirk(version)));
        for case in EACH_VERSION.iter().copied().flatten() {
            trials.push(Trial::test(format!("{version}::{}", case.name), move || goes_well(case, version)));
        }
    }
    for version in failures::VERSIONS {
        for case in SOME_VERSIONS.iter().copied().flatten().filter(|case| failures::is_for(case, version)) {
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
    let listed = EACH_VERSION.iter().chain(&SOME_VERSIONS).copied().flatten();
    let all = listed.chain([&flow::QUIRKS, &flow::MANY_DEVICES]);
    let all = all.chain(flow::FAILED_STARTS.iter().map(|(case, _)| case));
    let mut all = all.chain(handled::ROWS.iter().map(|row| &row.case));
    all.find(|case| name == case.name).expect("a case of that name").run_here();
    ExitCode::SUCCESS
}
