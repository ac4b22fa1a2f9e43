//! gpu-vmm-hip on the fake driver, version by version.
//!
//! HIP is one for a process, so each case runs in a child: this program again, told by its environment which case, which
//! version, and which quirk's handling to leave out.
//!
//! | module | what |
//! |---|---|
//! | `flow` | a region's life, which must go well on every version |
//! | `handled` | for each quirk that gpu-vmm-hip handles: what goes well with the handling and not without |
//! | `host` | the same for the host's access and memory, and for descriptors of ranges |
//! | `excluded` | for each that is met by never making the call: the call, made directly |
//! | `child`, `rig` | running a case; what cases have in common |
#![allow(unsafe_code)] // HIP's own functions are called, and the backend's traits
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic

mod child;
mod excluded;
mod flow;
mod handled;
mod host;
mod rig;

use child::{Case, Outcome};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// One of each bucket: all that differ in something.
const VERSIONS: [&str; 11] =
    ["6.1", "6.2", "6.3", "6.4.1", "7.0", "7.0.2", "7.1", "7.2", "7.12", "7.14", "7.15"];

/// Quirks that are not shown, and why.
const NOT_SHOWN: [(&str, &str); 11] = [
    ("large-creates", "the cause is not known"),
    ("mixed-graphics", "it is a matter of the machine; to the caller it is map-reports-nothing"),
    ("scattered-copies", "the cause is not known, and nothing is done about it"),
    ("map-visible-late", "it is a matter of the hardware and of time, and nothing is done about it"),
    ("set-access-hangs-before-drm-3-64", "it is a matter of the kernel, and nothing is done about it"),
    (
        "descriptor-for-each-handle",
        "to the caller it is memory that is used up, and nothing is done about it",
    ),
    (
        "waits-spoil-captures",
        "there are no captures here; backend-hip/tests/hip/captures.rs shows it on HIP itself",
    ),
    ("device-wait-spoils-captures", "as above"),
    ("spoilt-capture-stays", "as above"),
    ("null-stream-spoils-captures", "as above"),
    ("events-spoil-captures", "as above"),
];

/// What was seen: quirk, how it was met, what came of it; and on which versions.
type Seen = Arc<Mutex<BTreeMap<(&'static str, &'static str, String), Vec<&'static str>>>>;

fn note(seen: &Seen, quirk: &'static str, met: &'static str, how: &str, version: &'static str) {
    // Addresses are others in each run.
    let same = how.split(' ').map(|word| match word.find("0x7") {
        Some(at) => format!("{}0x...", &word[..at]),
        None => word.to_owned(),
    });
    let key = (quirk, met, same.collect::<Vec<_>>().join(" "));
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let versions = seen.entry(key).or_default();
    versions.push(version);
    versions.sort_by_key(|version| VERSIONS.iter().position(|one| one == version));
}

fn print_table(seen: &Seen) {
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.is_empty() {
        return;
    }
    println!("What came of each quirk:");
    for ((quirk, met, how), versions) in seen.iter() {
        println!("{quirk} on {}, {met}: {how}", versions.join(", "));
    }
    NOT_SHOWN.iter().for_each(|(quirk, reason)| println!("{quirk}, not shown: {reason}"));
}

fn goes_well(case: &Case, version: &str) -> Result<(), Failed> {
    match child::run(case, version, "") {
        Outcome::Well(_) => Ok(()),
        Outcome::Failed(how) => Err(format!("on {version}: {how}").into()),
    }
}

/// The first of the two devices has no virtual memory management.
fn goes_well_beside(version: &str) -> Result<(), Failed> {
    match child::run_with(&flow::BESIDE, version, "", &[("FAKE_HIP_WITHOUT_VMM", "1")]) {
        Outcome::Well(_) => Ok(()),
        Outcome::Failed(how) => Err(format!("on {version}: {how}").into()),
    }
}

fn goes_wrong(case: &Case, version: &str, without: &str, expected: &str) -> Result<String, Failed> {
    match child::run(case, version, without) {
        Outcome::Well(_) => Err(format!("on {version} it went well").into()),
        Outcome::Failed(how) if how.contains(expected) => Ok(how),
        Outcome::Failed(how) => Err(format!("on {version} it failed, not by \"{expected}\": {how}").into()),
    }
}

fn trials(seen: &Seen) -> Vec<Trial> {
    let mut trials = Vec::new();
    for version in VERSIONS {
        for case in flow::CASES.iter().chain(host::CASES) {
            let name = format!("{version}::flow::{}", case.name);
            trials.push(Trial::test(name, move || goes_well(case, version)));
        }
        let name = format!("{version}::flow::{}", flow::BESIDE.name);
        trials.push(Trial::test(name, move || goes_well_beside(version)));
        trials.push(Trial::test(format!("{version}::every_quirk_is_shown"), move || every_quirk(version)));
    }
    for row in handled::ROWS {
        for version in row.versions {
            let seen = Arc::clone(seen);
            trials.push(Trial::test(format!("{version}::handled::{}", row.quirk), move || {
                goes_well(&row.case, version)?;
                let how = goes_wrong(&row.case, version, row.quirk, row.without)?;
                note(&seen, row.quirk, "without its handling", &how, version);
                Ok(())
            }));
        }
    }
    for row in excluded::ROWS {
        for version in row.versions {
            let seen = Arc::clone(seen);
            trials.push(Trial::test(format!("{version}::excluded::{}", row.case.name), move || {
                let how = match row.ends_with {
                    None => goes_well(&row.case, version).map(|()| row.shows.to_owned())?,
                    Some(text) => goes_wrong(&row.case, version, "", text)?,
                };
                note(&seen, row.quirk, "called directly", &how, version);
                Ok(())
            }));
        }
    }
    trials
}

/// Each quirk that the backend lists for a version is in one of the tables.
fn every_quirk(version: &str) -> Result<(), Failed> {
    let Outcome::Well(listed) = child::run(&flow::QUIRKS, version, "") else {
        return Err("the quirks cannot be listed".into());
    };
    let handled = handled::ROWS.iter().map(|row| row.quirk);
    let shown: BTreeSet<&str> = handled
        .chain(excluded::ROWS.iter().map(|row| row.quirk))
        .chain(NOT_SHOWN.iter().map(|(quirk, _)| *quirk))
        .collect();
    let missing: Vec<&str> = listed.lines().filter(|quirk| !shown.contains(quirk)).collect();
    if missing.is_empty() && !listed.is_empty() {
        Ok(())
    } else {
        Err(format!("not shown: {missing:?}").into())
    }
}

fn main() -> ExitCode {
    if let Some(name) = child::asked_for() {
        let all = flow::CASES.iter().chain(host::CASES).chain([&flow::QUIRKS, &flow::BESIDE]);
        let all = all.chain(handled::ROWS.iter().map(|row| &row.case));
        let case = all.chain(excluded::ROWS.iter().map(|row| &row.case)).find(|case| name == case.name);
        case.expect("a case of that name").run_here();
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let seen = Seen::default();
    let conclusion = libtest_mimic::run(&arguments, trials(&seen));
    print_table(&seen);
    conclusion.exit_code()
}
