//! The command `gpu-vmm`: shows what the drivers of this machine support, checks what they really do, and grows memory
//! in place.
//!
//! Results go to standard output, everything else to standard error. The exit status is 0 for success, 1 for a failure
//! and 2 for invalid arguments.

// Code for the conformance suite alone is unused where the suite cannot run.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod args;
#[cfg_attr(not(target_os = "linux"), path = "bench/unsupported.rs")]
mod bench;
#[cfg_attr(not(target_os = "linux"), path = "check/unsupported.rs")]
mod check;
mod choose;
#[cfg_attr(not(target_os = "linux"), path = "conformance/unsupported.rs")]
mod conformance;
mod copying;
mod destination;
#[cfg(target_os = "linux")]
mod environment_text;
mod generated;
mod grow;
mod info;
mod input;
mod interrupts;
mod machine;
mod numbers;
mod output;
mod pattern;
mod pool_report;
mod progress;
mod replay;
mod report;
#[cfg_attr(not(target_os = "linux"), path = "serve/unsupported.rs")]
mod serve;
mod snapshot;
mod steps;
mod version;

use args::{Arguments, Command};
use std::io::Write;
use std::process::ExitCode;

/// The result of a subcommand. Failures of any origin are texts for people.
type CliResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(refusal) => return refuse(&refusal),
    };
    let answer = match &arguments.command {
        Command::Info(options) => info::run(options),
        Command::Grow(options) => grow::run(options),
        Command::Conformance(options) => conformance::run(options),
        Command::Snapshot(options) => snapshot::run(options),
        Command::Report(options) => pool_report::run(options),
        Command::Replay(options) => replay::run(options),
        Command::Bench(options) => bench::run(options),
        Command::Serve(options) => serve::run(options),
        Command::Check(options) => check::run(options),
        Command::Completions(options) => generated::completions(options),
        Command::Man(options) => generated::man(options),
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

/// Prints help and version to standard output, and clap's errors to standard error.
fn refuse(refusal: &clap::Error) -> ExitCode {
    let text = refusal.render().to_string();
    if text.starts_with("error:") {
        say(text.trim_end());
    } else {
        let printed = refusal.print().and_then(|()| std::io::stdout().flush());
        match printed {
            // The reader of the help has closed the pipe.
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

/// Prints a line on standard error; `eprintln!` would panic if that is closed.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpu-vmm: {text}");
}
