//! Groups of the suite over an HSA runtime that behaves as a later ROCr than HIP's own does. They must pass. A case must fail without
//! gpu-vmm's workaround: otherwise they do not test it.

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

struct Behaviour {
    /// Its name in rows.
    shown: &'static str,
    /// The simulator's setting.
    setting: &'static str,
    /// The group that must pass.
    group: &'static str,
    /// A case of the group that fails without the workaround for the quirk.
    case: &'static str,
    quirk: &'static str,
    /// What the output or the end of that case then says.
    says: &'static str,
}

const BEHAVIOURS: [Behaviour; 2] = [
    Behaviour {
        shown: "the exports of ROCr 7.14",
        setting: "HSA_SIM_KEEPS_DESCRIPTORS",
        group: "hip::share::",
        case: "hip::share::each_export_is_new",
        quirk: "export-is-kept",
        says: "dup answered EBADF",
    },
    Behaviour {
        shown: "memory that the CPU cannot use",
        setting: "HSA_SIM_HOST_FAULTS",
        group: "hip::kinds::",
        case: "hip::kinds::regions_for_the_host",
        quirk: "host-access-faults",
        says: "SIGBUS",
    },
];

/// Runs them on the newest version of HIP: what the runtime below it does, does not depend on the version.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    let Some(runtime) = runtimes.last() else { return Ok(()) };
    let programs = cargo::test_programs(&["conformance"])?;
    let program = &programs["conformance"].file;
    for behaviour in &BEHAVIOURS {
        let Behaviour { shown, group, quirk, .. } = behaviour;
        let name = format!("HIP {}, 2 GPUs with {shown}, {group}", runtime.version);
        let log = layout.logs().join(format!("{}-{quirk}.txt", runtime.version));
        let mut command = suite(layout, runtime, program, behaviour, group);
        if let Some(row) = row(&name, &mut command, &log, false)? {
            summary.add(row);
        }
        summary.add(without_workaround(layout, runtime, program, behaviour)?);
    }
    Ok(())
}

fn suite(layout: &Layout, runtime: &Runtime, program: &Path, behaviour: &Behaviour, filter: &str) -> Command {
    let mut command = runtime.command(&layout.simulator(), program, None);
    prepare(&mut command, 2);
    command.arg(filter).env(behaviour.setting, "1");
    command
}

fn without_workaround(
    layout: &Layout,
    runtime: &Runtime,
    program: &Path,
    behaviour: &Behaviour,
) -> Answer<Row> {
    let Behaviour { case, quirk, says, .. } = behaviour;
    let name = format!("HIP {}, {case} fails without the workaround for {quirk}", runtime.version);
    let log = layout.logs().join(format!("{}-without-{quirk}.txt", runtime.version));
    let mut command = suite(layout, runtime, program, behaviour, case);
    command.env("GPU_VMM_HIP_WITHOUT_QUIRK", quirk);
    let ended = process::run(&mut command, &log, LIMIT)?;
    let output = fs::read(&log).doing(|| log.display().to_string())?;
    let output = String::from_utf8_lossy(&output);
    let failed = ended.counts.is_none_or(|counts| counts == Counts { failed: 1, ..Counts::default() });
    let is_as_expected = failed && (output.contains(says) || ended.to_string().contains(says));
    eprintln!("{name}: {ended}");
    if !is_as_expected {
        println!("{output}\n{command:?}\n");
    }
    let outcome = if is_as_expected { Outcome::Passed } else { Outcome::Failed };
    Ok(Row::of(&name, outcome, ended.time))
}
