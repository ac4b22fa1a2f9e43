//! The example `checkpoint` with two drivers. Data written with HIP are restored on host memory at the same addresses, and
//! the reverse; data written with HIP are also restored with HIP, in another process.

use crate::cargo;
use crate::layout::Layout;
use crate::process;
use crate::runtime::Runtime;
use crate::suites::{LIMIT, prepare};
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The backends that write and read.
const WAYS: [[&str; 2]; 3] = [["hip", "host"], ["host", "hip"], ["hip", "hip"]];

/// Runs the example on each version of HIP.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    let program = cargo::example("checkpoint")?;
    for runtime in runtimes {
        for [writer, reader] in WAYS {
            summary.add(one(layout, runtime, &program, writer, reader)?);
        }
    }
    Ok(())
}

fn one(layout: &Layout, runtime: &Runtime, program: &Path, writer: &str, reader: &str) -> Answer<Row> {
    let name = format!("HIP {}, checkpoint from {writer} to {reader}", runtime.version);
    let stem = format!("{}-checkpoint-{writer}-{reader}", runtime.version);
    let file = layout.logs().join(format!("{stem}.snapshot"));
    let (mut time, mut failed) = (Duration::ZERO, None);
    for (verb, backend) in [("write", writer), ("read", reader)] {
        let mut command = match backend {
            "hip" => runtime.command(&layout.simulator(), program, None),
            _ => Command::new(program),
        };
        prepare(&mut command, 1);
        command.arg(verb).arg(&file).arg(backend);
        let log = layout.logs().join(format!("{stem}-{verb}.txt"));
        let ended = process::run(&mut command, &log, LIMIT)?;
        time += ended.time;
        if !ended.status.is_some_and(|status| status.success()) {
            println!("{}\n{command:?}\n", fs::read_to_string(&log).unwrap_or_default());
            failed = Some(format!("to {verb} with {backend} {ended}"));
            break;
        }
    }
    if file.exists() {
        fs::remove_file(&file).doing(|| file.display().to_string())?;
    }
    let outcome = if failed.is_none() { Outcome::Passed } else { Outcome::Failed };
    eprintln!("{name}: {}", failed.as_deref().unwrap_or("the list was walked"));
    let row = Row::of(&name, outcome, time);
    Ok(failed.into_iter().fold(row, Row::noting))
}
