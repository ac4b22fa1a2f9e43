//! `cargo test-all`: the project's tests, CUDA's on a fake NVIDIA driver, and HIP's on AMD's own runtime, which
//! it sets up without touching the system.
//!
//! Results go to standard output. The exit status is 0, or 1 if something failed, or the status of the user's own program.

mod apt;
mod arguments;
mod cargo;
mod checkpoint;
mod compiler;
mod debs;
mod documented;
mod environment;
mod fake_driver;
mod later_rocr;
mod layout;
mod mirror;
mod mutations;
mod no_compiler;
mod no_kernels;
mod nvidia;
mod own_program;
mod packages;
mod places;
mod plugins;
mod porting;
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
mod versions;

use arguments::{Arguments, Command};
use clap::Parser;
use layout::Layout;
use runtime::Runtime;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use suites::Job;
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

/// Runs the command. Returns whether all passed.
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
            let jobs = suites::jobs(&layout, &runtimes, filter);
            run_suites([("HIP's tests", jobs)], filter, &mut summary);
            if filter.is_empty() {
                hip(&layout, &runtimes, &mut summary);
            }
            Ok(told(&summary))
        }
        Some(Command::Cuda { filter }) => {
            let mut summary = Summary::default();
            let jobs = fake_driver::jobs(&layout, filter);
            run_suites([("CUDA's tests", jobs)], filter, &mut summary);
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
        Some(Command::Mutations { filter, part }) => {
            mutations::run(&layout, filter.as_deref().unwrap_or_default(), *part)
        }
        Some(Command::Versions) => versions::run(&layout),
        Some(Command::Packages { build, registry }) => {
            let mut summary = Summary::default();
            packages::run(*registry, *build, &mut summary)?;
            Ok(told(&summary))
        }
        None => {
            let began = Instant::now();
            let passed = cargo::test_workspace()?;
            let mut summary = Summary::default();
            let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
            summary.add(Row::of("cargo test --workspace", outcome, began.elapsed()));
            let runtimes = set_up_runtimes(&layout, &mut summary);
            let (cuda, hip_jobs) = (fake_driver::jobs(&layout, &[]), suites::jobs(&layout, &runtimes, &[]));
            let guide = porting::job(&layout).map(|job| vec![job]);
            // Beside each other, since most of them run on one core.
            let all = [("CUDA's tests", cuda), ("HIP's tests", hip_jobs), ("the guide's backend", guide)];
            run_suites(all, &[], &mut summary);
            if let Err(trouble) = own_program::check_cuda(&layout, &mut summary) {
                summary.add(Row::broken("CUDA's tests", trouble));
            }
            nvidia::run(&layout, &mut summary);
            hip(&layout, &runtimes, &mut summary);
            if let Err(trouble) = plugins::run(&layout, &runtimes, &mut summary) {
                summary.add(Row::broken("the plug-ins' tests", trouble));
            }
            Ok(told(&summary))
        }
    }
}

/// Prints the table. Returns whether all passed.
fn told(summary: &Summary) -> bool {
    print!("{summary}");
    summary.is_good()
}

/// Sets up the fake NVIDIA driver, which needs no package, then every version of HIP and the libraries below it, and reports the
/// result of each.
fn set_up(layout: &Layout) -> Answer<bool> {
    own_program::set_up_cuda(layout)?;
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
    if !runtimes.is_empty() {
        own_program::set_up_hip(layout, &runtimes)?;
    }
    Ok(all)
}

/// Writes reports from every backend that can be set up, and prints the table.
fn report(layout: &Layout, into: &Path) -> Answer<bool> {
    let mut summary = Summary::default();
    let runtimes = set_up_runtimes(layout, &mut summary);
    reports::run(layout, &runtimes, into, &mut summary)?;
    Ok(told(&summary))
}

/// Runs test programs. Those that could not be built are a row of the table.
fn run_suites<const N: usize>(all: [(&str, Answer<Vec<Job>>); N], filter: &[String], summary: &mut Summary) {
    let mut together = Vec::new();
    for (name, jobs) in all {
        match jobs {
            Ok(jobs) => together.extend(jobs),
            Err(trouble) => summary.add(Row::broken(name, trouble)),
        }
    }
    if !together.is_empty()
        && let Err(trouble) = suites::run_all(together, filter, summary)
    {
        summary.add(Row::broken("the suites", trouble));
    }
}

/// Runs HIP's further tests.
fn hip(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) {
    if runtimes.is_empty() {
        return;
    }
    for (name, ran) in [
        ("checkpoint with two drivers", checkpoint::run(layout, runtimes, summary)),
        ("a user's own program", own_program::check_hip(layout, runtimes, summary)),
        ("the tests without kernels", no_kernels::run(layout, runtimes, summary)),
        ("the tests without a compiler", no_compiler::run(layout, runtimes, summary)),
        ("HIP's places", places::run(layout, runtimes, summary)),
        ("the behaviour of later versions of ROCr", later_rocr::run(layout, runtimes, summary)),
    ] {
        if let Err(trouble) = ran {
            summary.add(Row::broken(name, trouble));
        }
    }
}

/// Returns the versions that can be set up; the table lists the others.
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
