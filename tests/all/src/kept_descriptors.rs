//! The cases of sharing over an HSA runtime that exports as ROCr 7.14 does: every export of memory returns the descriptor that the
//! runtime keeps. They must pass. A case must fail without gpu-vmm's workaround: otherwise they do not test it.

use crate::cargo;
use crate::layout::Layout;
use crate::process::{self, Counts};
use crate::runtime::Runtime;
use crate::suites::{LIMIT, prepare, row};
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The suite's group of sharing.
const GROUP: &str = "hip::share::";

/// A case of the group that exports the same memory several times.
const CASE: &str = "hip::share::each_export_is_new";

/// Runs them on the newest version of HIP: what the runtime below it exports does not depend on the version.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    let Some(runtime) = runtimes.last() else { return Ok(()) };
    let programs = cargo::test_programs(&["conformance"])?;
    let program = &programs["conformance"].file;
    let name = format!("HIP {}, 2 GPUs with the exports of ROCr 7.14, sharing", runtime.version);
    let log = layout.logs().join(format!("{}-kept-descriptors.txt", runtime.version));
    if let Some(row) = row(&name, &mut suite(layout, runtime, program, GROUP), &log, false)? {
        summary.add(row);
    }
    summary.add(without_workaround(layout, runtime, program)?);
    Ok(())
}

fn suite(layout: &Layout, runtime: &Runtime, program: &Path, filter: &str) -> Command {
    let mut command = runtime.command(&layout.simulator(), program, None);
    prepare(&mut command, 2);
    command.arg(filter).env("HSA_SIM_KEEPS_DESCRIPTORS", "1");
    command
}

fn without_workaround(layout: &Layout, runtime: &Runtime, program: &Path) -> Answer<Row> {
    /// The system call that fails then.
    const SAYS: &str = "dup answered EBADF";
    let name = format!("HIP {}, a second export fails without the workaround", runtime.version);
    let log = layout.logs().join(format!("{}-kept-descriptors-closed.txt", runtime.version));
    let mut command = suite(layout, runtime, program, CASE);
    command.env("GPU_VMM_HIP_WITHOUT_QUIRK", "export-is-kept");
    let ended = process::run(&mut command, &log, LIMIT)?;
    let output = fs::read(&log).doing(|| log.display().to_string())?;
    let output = String::from_utf8_lossy(&output);
    let failed = ended.counts == Some(Counts { failed: 1, ..Counts::default() });
    let outcome = if failed && output.contains(SAYS) { Outcome::Passed } else { Outcome::Failed };
    eprintln!("{name}: {ended}");
    if outcome == Outcome::Failed {
        println!("{output}\n{command:?}\n");
    }
    Ok(Row::of(&name, outcome, ended.time))
}
