//! gpu-vmm-hip on the fake driver, version by version.
//!
//! HIP is one for a process, so each case runs in a child: this program again, told by its environment which case, which
//! version, and which quirk's handling to leave out.
//!
//! | module | what |
//! |---|---|
//! | `flow` | a region's life, which must go well on every version |
//! | `host` | the same for the host's access and memory, and for descriptors of ranges |
//! | `handled` | for each quirk that gpu-vmm-hip handles: what goes well with the handling and not without |
//! | `child`, `rig` | running a case; what cases have in common |
#![allow(unsafe_code)] // HIP's own functions are called, and the backend's traits
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic

#[macro_use]
mod rig;
mod child;
mod flow;
mod handled;
mod host;

use child::Case;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

/// One of each bucket: all that differ in something.
const VERSIONS: [&str; 11] =
    ["6.1", "6.2", "6.3", "6.4.1", "7.0", "7.0.2", "7.1", "7.2", "7.12", "7.14", "7.15"];

/// Quirks that are not shown, by why.
const NOT_SHOWN: [(&str, &str); 8] = [
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
    ("nothing is done about it but to tell the error", "descriptor-for-each-handle host-access-on-imports"),
    ("the cause is not known, and nothing is done about it", "large-creates scattered-copies"),
    (
        "it is a matter of hardware, time or the kernel, and nothing is done about it",
        "access-change-is-a-gap map-visible-late set-access-hangs-before-drm-3-64",
    ),
    ("it is a matter of the machine; to the caller it is map-reports-nothing", "mixed-graphics"),
    (
        "there are no captures here; backend-hip/tests/hip/captures.rs shows it on HIP itself",
        "device-wait-spoils-captures events-spoil-captures null-stream-spoils-captures spoilt-capture-stays \
         waits-spoil-captures",
    ),
];

fn goes_well(case: &Case, version: &str) -> Result<(), Failed> {
    child::run(case, version, "").map(drop).map_err(|how| format!("on {version}: {how}").into())
}

fn goes_wrong(row: &handled::Row, version: &str) -> Result<(), Failed> {
    match child::run(&row.case, version, row.quirk) {
        Ok(_) => Err(format!("on {version} it went well").into()),
        Err(how) if how.contains(row.without) => Ok(()),
        Err(how) => Err(format!("on {version} it failed, not by \"{}\": {how}", row.without).into()),
    }
}

/// Each quirk that the backend lists for a version is in one of the tables.
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

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for version in VERSIONS {
        for case in flow::CASES.iter().chain(host::CASES) {
            let name = format!("{version}::flow::{}", case.name);
            trials.push(Trial::test(name, move || goes_well(case, version)));
        }
        trials.push(Trial::test(format!("{version}::every_quirk_is_shown"), move || every_quirk(version)));
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
    let all = flow::CASES.iter().chain(host::CASES).chain([&flow::QUIRKS]);
    let mut all = all.chain(handled::ROWS.iter().map(|row| &row.case));
    all.find(|case| name == case.name).expect("a case of that name").run_here();
    ExitCode::SUCCESS
}
