//! gpu-vmm-cuda over the fake driver, and the misuse and the quirks that the fake driver shows. The conformance suite, which runs over
//! it too, shows the rest.
//!
//! A process has one driver, and the environment has its settings. So each case runs in a child: this program again, with the
//! case's name in its environment.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(unsafe_code)] // the driver's functions are called
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic

mod any;
mod backend;
mod backend_memory_types;
mod calls;
mod captures;
mod child;
mod contexts;
mod events;
mod failures;
mod misuse;
mod multicast;
mod pinned;
mod profiler;
mod programs;
mod quirks;
mod rig;
mod team;
mod unexpected;

use child::Case;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

const GROUPS: [(&str, &[Case]); 19] = [
    ("quirks", quirks::CASES),
    ("misuse", misuse::CASES),
    ("events", events::CASES),
    ("captures", captures::CASES),
    ("contexts", contexts::CASES),
    ("pinned", pinned::CASES),
    ("multicast", multicast::CASES),
    ("any", any::CASES),
    ("backend", backend::CASES),
    ("backend_memory_types", backend_memory_types::CASES),
    ("failures", failures::CASES),
    ("calls", calls::CASES),
    ("unexpected", unexpected::CASES),
    ("profiler", profiler::CASES),
    ("programs", programs::CASES),
    ("team::life", team::life::CASES),
    ("team::checks", team::checks::CASES),
    ("team::failures", team::failures::CASES),
    ("team::processes", team::processes::CASES),
];

/// Quirks of Windows, which the fake driver does not run on.
const OF_WINDOWS: [&str; 1] = ["high-hints-hang"];

/// Each quirk that the backend lists has a case with its name.
fn every_quirk_is_shown() -> Result<(), Failed> {
    let listed = child::run(&backend::QUIRKS)?;
    let listed_here = listed.lines().filter(|quirk| !OF_WINDOWS.contains(quirk));
    let missing = listed_here.filter(|quirk| quirks::CASES.iter().all(|case| case.name != *quirk));
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() && !listed.is_empty() { Ok(()) } else { Err(format!("{missing:?}").into()) }
}

fn misspelt_settings_end_the_process() -> Result<(), Failed> {
    let said = child::run(&backend::MISSPELT).expect_err("it ran").message().unwrap_or_default().to_owned();
    if said.contains("FAKE_CUDA_GPU=2: there is no such setting") { Ok(()) } else { Err(said.into()) }
}

fn main() -> ExitCode {
    if let Some(name) = child::asked_for() {
        let hidden = [
            &backend::QUIRKS,
            &backend::MISSPELT,
            &team::processes::OTHER_HALF,
            &backend_memory_types::OTHER_MACHINE,
        ];
        let all = GROUPS.iter().flat_map(|(_, cases)| *cases).chain(hidden);
        all.into_iter().find(|case| case.name == name).expect("a case of that name").run_here();
        return ExitCode::SUCCESS;
    }
    let mut trials = vec![
        Trial::test("every_quirk_is_shown", every_quirk_is_shown),
        Trial::test("misspelt_settings_end_the_process", misspelt_settings_end_the_process),
    ];
    for (group, cases) in GROUPS {
        for case in cases {
            trials.push(Trial::test(format!("{group}::{}", case.name), || child::run(case).map(drop)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
