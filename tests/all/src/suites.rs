//! The tests on each version of HIP: with one GPU, with two, and with GPUs that lack optional features.

use crate::cargo::{self, Program};
use crate::layout::Layout;
use crate::process::{self, Counts, Ended};
use crate::queue;
use crate::runtime::Runtime;
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A test program that has tests of HIP.
struct Suite {
    /// The name of its target in Cargo.
    target: &'static str,
    /// The path of its source.
    shown: &'static str,
}

const SUITES: [Suite; 2] = [
    Suite { target: "conformance", shown: "conformance" },
    Suite { target: "hip", shown: "backend-hip/tests/hip" },
];

/// Several times the longest run on a busy machine; a program that takes longer hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(1200);

/// The fault sweeps of the suite, which take half of its time: each driver call of an operation fails once.
const SWEEPS: [&str; 2] = ["::failures::", "::failing_"];

/// Leaves the fault sweeps out of a run that another one repeats with them.
pub(crate) fn without_sweeps(command: &mut Command) {
    command.args(SWEEPS.iter().flat_map(|sweep| ["--skip", *sweep]));
}

/// Lets the suite repeat what a pool does in many rounds less often than on host memory, where the same code runs.
pub(crate) fn with_fewer_rounds(command: &mut Command) {
    command.env("GPU_VMM_POOL_ROUNDS", "20000");
}

/// A simulated machine.
struct Machine {
    shown: &'static str,
    gpus: u32,
    /// What its GPUs lack. Such a machine runs the tests of the backend alone.
    lacks: &'static [&'static str],
    /// Whether new memory holds the data of an earlier owner.
    has_junk: bool,
}

const MACHINES: [Machine; 4] = [
    Machine { shown: "1 GPU", gpus: 1, lacks: &[], has_junk: false },
    Machine { shown: "2 GPUs", gpus: 2, lacks: &[], has_junk: true },
    Machine {
        shown: "1 GPU with a small BAR and no number",
        gpus: 1,
        lacks: &["HSA_SIM_LARGE_BAR", "HSA_SIM_UUIDS"],
        has_junk: false,
    },
    Machine {
        shown: "2 GPUs without peer access",
        gpus: 2,
        lacks: &["HSA_SIM_P2P", "HSA_SIM_LARGE_BAR"],
        has_junk: true,
    },
];

/// Builds all of them.
pub(crate) fn jobs(layout: &Layout, runtimes: &[Runtime], filter: &[String]) -> Answer<Vec<Job>> {
    if runtimes.is_empty() {
        return Ok(Vec::new());
    }
    let programs = cargo::test_programs(&SUITES.map(|suite| suite.target))?;
    cargo::simulator(&layout.simulator())?;
    fs::create_dir_all(layout.logs()).doing(|| layout.logs().display().to_string())?;
    let (mut jobs, chosen) = (Vec::new(), layout.chosen(runtimes));
    for runtime in runtimes {
        let is_chosen = chosen.iter().any(|one| one.version == runtime.version);
        let is_newest = chosen.last().is_some_and(|last| last.version == runtime.version);
        let lacking = runtime.not_simulated(&layout.simulator())?;
        if !lacking.is_empty() {
            eprintln!(
                "HIP {} knows functions that are not simulated: {}",
                runtime.version,
                lacking.join(", ")
            );
        }
        for machine in &MACHINES {
            // The need for a second GPU does not depend on the version: the long suite has one GPU on one version only.
            let for_all = machine.lacks.is_empty() && (machine.gpus > 1 || (is_newest && layout.long));
            let runs = |suite: &&Suite| (for_all && is_chosen) || suite.target == "hip";
            for suite in SUITES.iter().filter(runs) {
                let mut job = job(layout, runtime, machine, suite, &programs, filter);
                if suite.target == "conformance" && (machine.gpus == 1 || !(is_newest || layout.long)) {
                    without_sweeps(&mut job.command);
                }
                if suite.target == "conformance" && !layout.long {
                    with_fewer_rounds(&mut job.command);
                }
                jobs.push(job);
            }
        }
        if is_chosen {
            jobs.push(without_virtual_memory(layout, runtime, &programs["conformance"], filter));
        }
    }
    Ok(jobs)
}

/// A test program to run.
pub(crate) struct Job {
    /// The name of its row.
    pub(crate) name: String,
    pub(crate) command: Command,
    /// The file for its output.
    pub(crate) log: PathBuf,
}

/// Runs them, several at once. A failed test is a row of the table. Returns an error if the filter leaves no test in any.
pub(crate) fn run_all(jobs: Vec<Job>, filter: &[String], summary: &mut Summary) -> Answer {
    let work = |Job { name, mut command, log }| row(&name, &mut command, &log, !filter.is_empty());
    let rows: Vec<Row> = queue::each(jobs, work)?.into_iter().flatten().collect();
    if rows.is_empty() {
        return Err(Trouble::new(format!("no test has {} in its name", filter.join(" "))));
    }
    rows.into_iter().for_each(|row| summary.add(row));
    Ok(())
}

/// Returns the job of one program on one version.
fn job(
    layout: &Layout,
    runtime: &Runtime,
    machine: &Machine,
    suite: &Suite,
    programs: &HashMap<String, Program>,
    filter: &[String],
) -> Job {
    let name = format!("HIP {}, {}, {}", runtime.version, machine.shown, suite.shown);
    let program = &programs[suite.target];
    let mut command = runtime.command(&layout.simulator(), &program.file, None);
    command.args(filter).current_dir(&program.folder);
    prepare(&mut command, machine.gpus);
    command.envs(machine.lacks.iter().map(|setting| (*setting, "0")));
    command.env("HSA_SIM_JUNK", if machine.has_junk { "1" } else { "0" });
    let machine = machine.shown.replace(' ', "-");
    let log = layout.logs().join(format!("{}-{machine}-{}.txt", runtime.version, suite.target));
    Job { name, command, log }
}

/// The group of the suite for devices without virtual memory management, on which all other cases are skipped.
pub(crate) const NO_VMM: &str = "::no_vmm::";

/// Returns the job of that group on one version.
fn without_virtual_memory(layout: &Layout, runtime: &Runtime, program: &Program, filter: &[String]) -> Job {
    let name = format!("HIP {}, 2 GPUs without virtual memory, conformance", runtime.version);
    let mut command = runtime.command(&layout.simulator(), &program.file, None);
    command.args(or_group(filter)).current_dir(&program.folder);
    prepare(&mut command, 2);
    command.env("HSA_SIM_VMM", "0").env("HSA_SIM_JUNK", "1");
    let log = layout.logs().join(format!("{}-without-virtual-memory.txt", runtime.version));
    Job { name, command, log }
}

/// Returns the user's filter, or the group's.
pub(crate) fn or_group(filter: &[String]) -> Vec<String> {
    if filter.is_empty() { vec![NO_VMM.to_owned()] } else { filter.to_vec() }
}

/// Runs a test program and returns its row; `None` if a filter leaves none of its tests.
pub(crate) fn row(name: &str, command: &mut Command, log: &Path, filtered: bool) -> Answer<Option<Row>> {
    let ended = process::run(command, log, LIMIT)?;
    if filtered && ended.counts == Some(Counts::default()) {
        return Ok(None);
    }
    eprintln!("{name}: {ended} in {:.1} s", ended.time.as_secs_f64());
    let outcome = outcome(&ended, filtered);
    if outcome == Outcome::Failed {
        let output = fs::read(log).doing(|| log.display().to_string())?;
        println!("{}", String::from_utf8_lossy(&output));
        println!("{name}: {ended}; that was\n  {command:?}\n");
    }
    let row = Row::of(name, outcome, ended.time).counting(ended.counts);
    Ok(Some(match (ended.counts, ended.status) {
        (Some(Counts { passed: 0, failed: 0, .. }), _) => row.noting("every test was ignored".to_owned()),
        (Some(Counts { failed: 0, .. }), Some(status)) if outcome == Outcome::Failed => {
            row.noting(format!("but it ended with {status}"))
        }
        (Some(_), Some(_)) => row,
        _ => row.noting(ended.to_string()),
    }))
}

/// Returns the result of a run. A suite whose tests were all ignored has shown nothing: HIP does not work as it should.
fn outcome(ended: &Ended, filtered: bool) -> Outcome {
    match ended.counts {
        Some(Counts { failed: 0, passed, .. }) if ended.status.is_some_and(|status| status.success()) => {
            match (passed, filtered) {
                (0, true) => Outcome::Skipped,
                (0, false) => Outcome::Failed,
                _ => Outcome::Passed,
            }
        }
        _ => Outcome::Failed,
    }
}

/// Simulates this number of GPUs for a test program.
pub(crate) fn prepare(command: &mut Command, gpus: u32) {
    command.env("GPU_VMM_TEST_BACKENDS", "hip");
    command.env("HSA_SIM_GPUS", gpus.to_string());
    command.env("HSA_SIM_MEM_MB", "3072");
}
