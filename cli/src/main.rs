//! The command `gpu-vmm`: what the drivers of this machine can do and really do, and memory that grows in place, shown
//! and checked.
//!
//! | file | subject |
//! |---|---|
//! | `args`, `numbers` | the arguments, and what can be said against them without a driver |
//! | `choose` | which backend and which device |
//! | `info` | the report on backends, devices and capabilities; `info::text` writes it for people |
//! | `grow`, `steps`, `pattern`, `report` | growth of one region, the sizes it goes through, what fills the memory, what is printed |
//! | `copying` | the same growth by allocating, copying and freeing, to compare with |
//! | `conformance` | every rule of gpu-vmm and of the driver, tried and reported |
//! | `snapshot` | what is in a snapshot, checked; `snapshot::text` writes it for people |
//! | `picture` | what a pool looked like, in numbers or as a page |
//! | `replay` | a recorded program's allocations on a pool or the driver; `replay::text` writes what came of it |
//! | `bench` | what gpu-vmm costs, beside what else there is |
//! | `environment_text` | on what a report was made, for people |
//! | `machine` | how much memory the host can really give |
//! | `input` | files that are read as a whole |
//! | `destination`, `interrupts` | files that are written, complete or not at all |
//! | `output`, `progress` | writing to standard output, and the bar on a terminal |
//!
//! Results go to standard output, everything else to standard error. The exit status is 0, or 1 for a failure and 2
//! for arguments that make no sense.

// What serves the conformance suite alone has no use where it cannot run.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod args;
#[cfg_attr(not(target_os = "linux"), path = "bench/elsewhere.rs")]
mod bench;
mod choose;
#[cfg_attr(not(target_os = "linux"), path = "conformance/elsewhere.rs")]
mod conformance;
mod copying;
mod destination;
#[cfg(target_os = "linux")]
mod environment_text;
mod grow;
mod info;
mod input;
mod interrupts;
mod machine;
mod numbers;
mod output;
mod pattern;
mod picture;
mod progress;
mod replay;
mod report;
mod snapshot;
mod steps;

use args::{Arguments, Command};
use std::io::Write;
use std::process::ExitCode;

/// What a subcommand gives: its failures are texts for people, whatever their origin.
type Answer<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(refusal) => return refuse(&refusal),
    };
    let answer = match &arguments.command {
        Command::Info(asked) => info::run(asked),
        Command::Grow(asked) => grow::run(asked),
        Command::Conformance(asked) => conformance::run(asked),
        Command::Snapshot(asked) => snapshot::run(asked),
        Command::Report(asked) => picture::run(asked),
        Command::Replay(asked) => replay::run(asked),
        Command::Bench(asked) => bench::run(asked),
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(refusal) => refuse(&refusal),
            Err(error) => {
                say(&format!("error: {error}"));
                ExitCode::FAILURE
            }
        },
    }
}

/// Help and version are answers, the rest of what clap calls errors are errors.
fn refuse(refusal: &clap::Error) -> ExitCode {
    let text = refusal.render().to_string();
    if text.starts_with("error:") {
        say(text.trim_end());
    } else {
        let printed = refusal.print().and_then(|()| std::io::stdout().flush());
        match printed {
            // The reader of the help has read enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(error) => {
                say(&format!("error: {}", destination::unwritable(&"standard output", &error)));
                return ExitCode::FAILURE;
            }
            Ok(()) => {}
        }
    }
    ExitCode::from(if refusal.use_stderr() { 2 } else { 0 })
}

/// A line on standard error; `eprintln!` would panic where that is closed.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpu-vmm: {text}");
}
