//! `cargo test-all`: the project's tests, those of CUDA on a fake NVIDIA driver, and those of HIP on AMD's own
//! runtime, which it sets up without touching the system.
//!
//! | file | subject |
//! |---|---|
//! | `arguments` | the command line |
//! | `layout` | the folders under `target/hip-runtime`, and where packages come from |
//! | `debs` | a folder of packages: which versions of HIP it has, and of what each consists |
//! | `apt`, `mirror` | filling such a folder from Debian sid and experimental, with an apt configuration of its own |
//! | `unpack` | packages become a runtime in a private folder, whole or not at all |
//! | `runtime` | such a runtime: how a program is run on it, and whether it is complete |
//! | `own_program` | a user's own program on such a runtime, or on the fake NVIDIA driver |
//! | `version` | which version of HIP a user means |
//! | `environment`, `shell` | what a program's environment leaves out; a command as a shell reads it |
//! | `cargo` | building the tests and the simulated HSA runtime |
//! | `fake_driver` | running the tests of CUDA on the fake NVIDIA driver |
//! | `nvidia` | the same on NVIDIA's own library, without a GPU |
//! | `suites`, `process` | running the tests on each version; one test program, its time and its counts |
//! | `queue` | several of them at once |
//! | `plugins` | the plug-ins for C and Python, everywhere |
//! | `compiler` | compiling programs of C and C++ |
//! | `documented` | the C programs in the guide and in the README of `plugins/c` |
//! | `checkpoint` | what one driver wrote to a file, restored with another one |
//! | `no_kernels` | the tests themselves, on a runtime that ignores kernels: they must fail |
//! | `reports` | reports of the conformance suite, and the page that lays them side by side |
//! | `summary`, `trouble` | the table at the end, and errors in one line |
//! | `schedules` | the pool under every schedule and under random ones, Miri, ThreadSanitizer |
//! | `mutations` | faults that are planted in the library, and must be found |
//!
//! Standard output has the results; the exit status is 0, or 1 where something failed, or that of the user's own program.

mod apt;
mod arguments;
mod cargo;
mod checkpoint;
mod compiler;
mod debs;
mod documented;
mod environment;
mod fake_driver;
mod layout;
mod mirror;
mod mutations;
mod no_kernels;
mod nvidia;
mod own_program;
mod plugins;
mod process;
mod queue;
mod reports;
mod runtime;
mod schedules;
mod shell;
mod suites;
mod summary;
mod trouble;
mod unpack;
mod version;

use arguments::{Arguments, Command};
use clap::Parser;
use layout::Layout;
use runtime::Runtime;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use summary::{Outcome, Row, Summary};
use trouble::Answer;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("error: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all went well.
fn run(arguments: &Arguments) -> Answer<bool> {
    let layout = Layout::new(arguments)?;
    match &arguments.command {
        Some(Command::Setup) => set_up(&layout),
        Some(Command::RunHip { version, program }) => {
            match own_program::run_hip(&layout, version.as_deref(), program)? {}
        }
        Some(Command::RunCuda { program }) => match own_program::run_cuda(&layout, program)? {},
        Some(Command::Report { into }) => report(&layout, into),
        Some(Command::Hip { filter }) => {
            let mut summary = Summary::default();
            let runtimes = set_up_runtimes(&layout, &mut summary);
            hip(&layout, &runtimes, filter, &mut summary);
            Ok(told(&summary))
        }
        Some(Command::Cuda { filter }) => {
            let mut summary = Summary::default();
            fake_driver::run(&layout, filter, &mut summary)?;
            if filter.is_empty() {
                own_program::check_cuda(&layout, &mut summary)?;
                nvidia::run(&layout, &mut summary);
            }
            Ok(told(&summary))
        }
        Some(Command::Plugins) => {
            let mut summary = Summary::default();
            let runtimes = set_up_runtimes(&layout, &mut summary);
            plugins::run(&layout, &runtimes, &mut summary)?;
            Ok(told(&summary))
        }
        Some(Command::Schedules { seconds, filter }) => {
            let mut summary = Summary::default();
            schedules::run(*seconds, filter.as_deref(), &mut summary)?;
            Ok(told(&summary))
        }
        Some(Command::Mutations { filter }) => mutations::run(&layout, filter.as_deref().unwrap_or_default()),
        None => {
            let began = Instant::now();
            let passed = cargo::test_workspace()?;
            let mut summary = Summary::default();
            let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
            summary.add(Row::of("cargo test --workspace", outcome, began.elapsed()));
            let fake = fake_driver::run(&layout, &[], &mut summary);
            if let Err(trouble) = fake.and_then(|()| own_program::check_cuda(&layout, &mut summary)) {
                summary.add(Row::broken("CUDA's tests", trouble));
            }
            nvidia::run(&layout, &mut summary);
            let runtimes = set_up_runtimes(&layout, &mut summary);
            hip(&layout, &runtimes, &[], &mut summary);
            if let Err(trouble) = plugins::run(&layout, &runtimes, &mut summary) {
                summary.add(Row::broken("the plug-ins' tests", trouble));
            }
            Ok(told(&summary))
        }
    }
}

/// Prints the table. Whether all went well.
fn told(summary: &Summary) -> bool {
    print!("{summary}");
    summary.is_good()
}

/// Sets up every version with what it runs over, and says for each what became of it.
fn set_up(layout: &Layout) -> Answer<bool> {
    let (mut runtimes, mut all) = (Vec::new(), true);
    for (name, runtime) in layout.runtimes() {
        match runtime {
            Ok(runtime) => runtimes.push(runtime),
            Err(trouble) => {
                all = false;
                eprintln!("error: {name}: {trouble}");
            }
        }
    }
    // The fake driver needs none of them, and `run-cuda` sets it up by itself.
    if !runtimes.is_empty() {
        own_program::set_up(layout, &runtimes)?;
    }
    Ok(all)
}

/// Writes reports from all that there is, and prints the table.
fn report(layout: &Layout, into: &Path) -> Answer<bool> {
    let mut summary = Summary::default();
    let runtimes = set_up_runtimes(layout, &mut summary);
    reports::run(layout, &runtimes, into, &mut summary)?;
    Ok(told(&summary))
}

/// Runs HIP's tests on every version that can be set up.
fn hip(layout: &Layout, runtimes: &[Runtime], filter: &[String], summary: &mut Summary) {
    if !runtimes.is_empty() {
        // What has been run is told all the same.
        if let Err(trouble) = suites::run(layout, runtimes, filter, summary) {
            summary.add(Row::broken("HIP's tests", trouble));
        } else if filter.is_empty() {
            if let Err(trouble) = checkpoint::run(layout, runtimes, summary) {
                summary.add(Row::broken("checkpoint with two drivers", trouble));
            }
            if let Err(trouble) = own_program::check_hip(layout, runtimes, summary) {
                summary.add(Row::broken("a user's own program", trouble));
            }
            if let Err(trouble) = no_kernels::run(layout, runtimes, summary) {
                summary.add(Row::broken("the tests without kernels", trouble));
            }
        }
    }
}

/// The versions that can be set up; the others are told in the table.
fn set_up_runtimes(layout: &Layout, summary: &mut Summary) -> Vec<Runtime> {
    let mut runtimes = Vec::new();
    for (name, runtime) in layout.runtimes() {
        match runtime {
            Ok(runtime) => runtimes.push(runtime),
            Err(trouble) => summary.add(Row::skipped(&name, trouble, layout.required)),
        }
    }
    runtimes
}
