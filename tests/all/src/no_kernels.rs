//! Tests of the tests: on a runtime that ignores kernels, `gpu-vmm grow` and the conformance suite must fail, and report that
//! their kernel looked at nothing.

use crate::cargo;
use crate::layout::Layout;
use crate::process;
use crate::runtime::Runtime;
use crate::suites::{LIMIT, prepare};
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing};
use std::fs;
use std::path::Path;

/// The error of a check whose kernel did not run.
const SAYS: &str = "looked at 0 of them";

/// Runs both on each version of HIP.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    let command = cargo::command_program()?;
    let programs = cargo::test_programs(&["conformance"])?;
    let grow: (&str, &Path, &[&str]) = ("grow", &command, &["grow", "--backend", "hip", "--to", "16MiB"]);
    let suite: (&str, &Path, &[&str]) = ("the suite", &programs["conformance"].file, &["::data::"]);
    for runtime in runtimes {
        for program in [grow, suite] {
            summary.add(one(layout, runtime, program)?);
        }
    }
    Ok(())
}

fn one(
    layout: &Layout,
    runtime: &Runtime,
    (shown, program, arguments): (&str, &Path, &[&str]),
) -> Answer<Row> {
    let name = format!("HIP {}, {shown} fails without kernels", runtime.version);
    let mut command = runtime.command(&layout.simulator(), program, None);
    prepare(&mut command, 1);
    command.args(arguments).env("HSA_SIM_KERNELS", "ignore");
    let log = layout.logs().join(format!("{}-no-kernels-{}.txt", runtime.version, shown.replace(' ', "-")));
    let ended = process::run(&mut command, &log, LIMIT)?;
    let output = fs::read(&log).doing(|| log.display().to_string())?;
    let failed = ended.status.is_some_and(|status| !status.success());
    let is_told = String::from_utf8_lossy(&output).contains(SAYS);
    let outcome = if failed && is_told { Outcome::Passed } else { Outcome::Failed };
    eprintln!("{name}: {ended}{}", if is_told { "" } else { ", and does not say why" });
    if outcome == Outcome::Failed {
        println!("{}\n{command:?}\n", String::from_utf8_lossy(&output));
    }
    Ok(Row::of(&name, outcome, ended.time))
}
