//! `cargo test-all schedules`: the concurrent parts of the pool and of premapping under every schedule (loom), the whole pool
//! under random ones (shuttle), code without system calls on Miri, and threads under ThreadSanitizer.
//!
//! Each tool builds into a folder of its own under `target/schedules`, and several run at once.

use crate::cargo;
use crate::process;
use crate::queue;
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The seconds that a model or a scenario runs by default.
const SECONDS: u64 = 4;

/// The limit for a run, beyond the seconds of its tests.
const LIMIT: Duration = Duration::from_secs(1800);

/// The packages that have models for loom.
const MODELLED: [&str; 2] = ["gpu-vmm-pool", "gpu-vmm-premap"];

/// Packages for Miri, and parts of the names of tests that make no system calls which Miri lacks.
const ON_MIRI: [(&str, &[&str]); 4] = [
    ("gpu-vmm-pool", &["space::", "slabs::", "stream_order::", "thread_cache::body"]),
    ("gpu-vmm-core", &["region::index", "region::restorable", "access::"]),
    ("gpu-vmm-share", &["channel::tests::malformed::the_decoder"]),
    (
        "gpu-vmm-snapshot",
        &["tests::lies::assembled", "tests::lies::the_reader", "merge::tests::un", "options", "plan"],
    ),
];

/// The target for which the standard library is built with the sanitizer.
const SANITIZED: &str = "x86_64-unknown-linux-gnu";

/// One tool's run.
struct Tool {
    name: String,
    command: Command,
}

/// Runs the tests with `filter` in their names, each for `seconds`. With a filter, runs loom and shuttle alone.
pub(crate) fn run(seconds: Option<u64>, filter: Option<&str>, summary: &mut Summary) -> Answer {
    let folder = cargo::target_folder()?.join("schedules");
    fs::create_dir_all(&folder).doing(|| folder.display().to_string())?;
    let seconds = seconds.unwrap_or(SECONDS);
    let mut tools: Vec<Tool> =
        MODELLED.iter().map(|package| loom(&folder, package, seconds, filter)).collect();
    tools.push(shuttle(&folder, seconds, filter));
    if filter.is_none() {
        match nightly("miri") {
            Ok(()) => tools.extend(ON_MIRI.map(|(package, filters)| miri(&folder, package, filters))),
            Err(trouble) => summary.add(Row::skipped("Miri", trouble, false)),
        }
        match nightly("rust-src") {
            Ok(()) => tools.extend(sanitizers(&folder)),
            Err(trouble) => summary.add(Row::skipped("ThreadSanitizer", trouble, false)),
        }
    }
    let run_one = |Tool { name, mut command }| {
        let log = folder.join(format!("{name}.txt").replace(' ', "-"));
        eprintln!("{name}: its output is in {}", log.display());
        let limit = LIMIT + Duration::from_secs(seconds * 32);
        let ended = process::run(&mut command, &log, limit)?;
        let output = fs::read_to_string(&log).doing(|| log.display().to_string())?;
        Ok((name, ended, output))
    };
    for (name, ended, output) in queue::each(tools, run_one)? {
        let passed = ended.status.is_some_and(|status| status.success());
        if passed {
            output.lines().filter_map(schedules).for_each(|line| println!("{name}: {line}"));
        } else {
            eprintln!("{output}");
        }
        let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
        summary.add(Row::of(&name, outcome, ended.time).counting(ended.counts));
    }
    Ok(())
}

/// Extracts the number of schedules from a line, which may begin with the test's name.
fn schedules(line: &str) -> Option<&str> {
    let line = line.rsplit_once(" ... ").map_or(line, |(_, rest)| rest);
    let line = line.trim_start_matches('.');
    line.contains(" schedules ").then_some(line)
}

/// Returns a run of Cargo, with flags for the compiler in addition to those in the environment.
fn tested(folder: &Path, name: &str, flags: &str, package: &str) -> Command {
    let mut command = cargo::cargo();
    let inherited = env::var("RUSTFLAGS").unwrap_or_default();
    command.args(["test", "--quiet", "--package", package, "--target-dir"]).arg(folder.join(name));
    command.env("RUSTFLAGS", format!("{inherited} {flags}"));
    command
}

fn loom(folder: &Path, package: &str, seconds: u64, filter: Option<&str>) -> Tool {
    let mut command = tested(folder, "loom", "--cfg loom", package);
    command.args(["--lib", "--", "--nocapture"]).arg(format!("models::{}", filter.unwrap_or_default()));
    command.env("LOOM_MAX_DURATION", seconds.to_string());
    Tool { name: format!("loom of {package}"), command }
}

fn shuttle(folder: &Path, seconds: u64, filter: Option<&str>) -> Tool {
    let mut command = tested(folder, "shuttle", "--cfg shuttle", "gpu-vmm-schedules");
    command.args(["--test", "pool", "--", "--nocapture", "--test-threads", "1"]).args(filter);
    command.env("GPU_VMM_SECONDS", seconds.to_string());
    Tool { name: "shuttle".to_owned(), command }
}

fn miri(folder: &Path, package: &'static str, filters: &[&str]) -> Tool {
    let mut command = cargo::on_toolchain("nightly");
    command.args(["miri", "test", "--quiet", "--package", package, "--lib", "--target-dir"]);
    command.arg(folder.join("miri")).arg("--").args(filters);
    // The library asks for the process's number.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    Tool { name: format!("Miri of {package}"), command }
}

/// Tests with an instrumented standard library: the unit tests, and the pool's tests with threads.
fn sanitizers(folder: &Path) -> [Tool; 2] {
    let tool = |name: &str, arguments: &[&str]| {
        let mut command = cargo::on_toolchain("nightly");
        command.args(["test", "--quiet", "-Zbuild-std", "--target", SANITIZED, "--package", "gpu-vmm-pool"]);
        command.arg("--target-dir").arg(folder.join("sanitized")).args(arguments);
        command.env("RUSTFLAGS", "-Zsanitizer=thread");
        Tool { name: format!("ThreadSanitizer on {name}"), command }
    };
    [
        tool("unit tests", &["--package", "gpu-vmm-premap", "--lib"]),
        tool("the pool's tests", &["--test", "pool", "--", "last_freed::", "shortage::"]),
    ]
}

/// Checks that the nightly toolchain has a component.
fn nightly(component: &str) -> Answer {
    let mut command = Command::new("rustup");
    command.args(["component", "list", "--installed", "--toolchain", "nightly"]).stderr(Stdio::null());
    let answer = command.output().doing(|| "rustup".to_owned())?;
    let installed = String::from_utf8_lossy(&answer.stdout);
    if answer.status.success() && installed.lines().any(|line| line.starts_with(component)) {
        return Ok(());
    }
    Err(Trouble::new(format!(
        "there is no nightly toolchain with {component}: rustup component add --toolchain nightly {component}"
    )))
}
