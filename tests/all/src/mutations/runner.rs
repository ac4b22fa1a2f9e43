//! One run of the suite on the copy, and which cases failed.

use super::list::{CHANGED, Mutation, On, Package, WITHOUT};
use crate::cargo::Program;
use crate::layout::Layout;
use crate::process::{self, Ended};
use crate::runtime::Runtime;
use crate::trouble::{Answer, Doing, Trouble};
use crate::{cargo, fake_driver, suites};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The limit for the runs without a mutation. Their times set the limits of the others.
const FIRST_LIMIT: Duration = Duration::from_secs(480);

/// The most devices that a case uses.
const GPUS: u32 = 2;

/// The version of HIP on which the tests of its backend run.
const NEWEST_HIP: u32 = 7;

/// Cases that do not use the library.
const WITHOUT_THE_LIBRARY: [&str; 2] = ["--skip", "::driver::"];

/// The limits of a model's run, and the same schedules for each mutation.
const SCHEDULES: [(&str, &str); 3] =
    [("LOOM_MAX_DURATION", "20"), ("GPU_VMM_FIRST_SEED", "1"), ("GPU_VMM_SCHEDULES", "200")];

/// How many names of failed cases are shown.
const SHOWN: usize = 3;

/// The exit status of libtest-mimic if cases failed.
const FAILED: i32 = 101;

/// The folders that the runs need.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) copy: PathBuf,
    /// The folder of the builds.
    pub(crate) build: PathBuf,
    pub(crate) logs: PathBuf,
}

/// The driver that the suite runs on.
#[derive(Debug)]
enum Driver {
    Host,
    /// AMD's runtime, and the folder of the simulated HSA runtime.
    Hip(Runtime, PathBuf),
    /// The folder of the fake NVIDIA driver.
    Cuda(PathBuf),
}

/// A driver and the program that runs on it.
#[derive(Debug)]
pub(crate) struct OnDriver<'a> {
    runner: &'a Runner,
    on: On,
    /// The suite, the tests of schedules, or all tests of a package.
    programs: Vec<Program>,
    driver: Driver,
    /// The time limit of each group of the suite, known once it passed without a mutation.
    limits: Mutex<BTreeMap<String, Duration>>,
}

impl<'a> OnDriver<'a> {
    /// Sets the driver up; returns an error if it is not available.
    pub(crate) fn new(runner: &'a Runner, layout: &Layout, on: On) -> Answer<Self> {
        let driver = match on {
            On::Tests(Package("gpu-vmm-hip")) => Driver::Hip(hip(layout, NEWEST_HIP)?, layout.simulator()),
            On::Hip(major) => Driver::Hip(hip(layout, major)?, layout.simulator()),
            On::Cuda | On::Tests(Package("gpu-vmm-cuda")) => {
                fake_driver::set_up(layout)?;
                Driver::Cuda(layout.fake_cuda())
            }
            On::Host | On::Loom(_) | On::Shuttle | On::Tests(_) => Driver::Host,
        };
        let Runner { copy, build, .. } = runner;
        let one = |file| vec![Program { file, folder: copy.clone() }];
        let programs = match on {
            On::Host | On::Hip(_) | On::Cuda => one(cargo::suite_of(copy, build)?),
            On::Loom(models) => {
                one(cargo::schedules_of(copy, &build.join("loom"), "loom", models.package(), &["--lib"])?)
            }
            On::Shuttle => {
                let (package, target) = ("gpu-vmm-schedules", ["--test", "pool"]);
                one(cargo::schedules_of(copy, &build.join("shuttle"), "shuttle", package, &target)?)
            }
            On::Tests(Package(package)) => cargo::tests_of(copy, build, package)?,
        };
        Ok(Self { runner, on, programs, driver, limits: Mutex::default() })
    }

    /// Runs a group once without a mutation and requires it to pass. Returns its time limit for the runs with a mutation.
    /// Other threads that ask meanwhile wait.
    fn limit(&self, group: &str) -> Answer<Duration> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = limits.get(group) {
            return Ok(*limit);
        }
        let found = self.once(&format!("none-{group}"), None, group, FIRST_LIMIT)?;
        if found.is_any() {
            let on = self.on;
            return Err(Trouble::new(format!("{group} fails on {on} without any mutation: {found}")));
        }
        if found.passed == 0 {
            return Err(Trouble::new(format!(
                "{group} names no test on {}: no mutation would be found",
                self.on
            )));
        }
        // A case of the suite that hangs waits a minute for its other process.
        let more = if matches!(self.on, On::Tests(_)) { 30 } else { 90 };
        let limit = found.ended.time * 4 + Duration::from_secs(more);
        limits.insert(group.to_owned(), limit);
        Ok(limit)
    }

    /// Runs the group that must catch a mutation, with only that mutation switched on.
    pub(crate) fn run(&self, mutation: &Mutation<'_>) -> Answer<Found> {
        self.once(&mutation.name, Some(mutation.switch), mutation.by, self.limit(mutation.by)?)
    }

    /// Runs the group in each program, up to the first that fails.
    fn once(&self, name: &str, switch: Option<(&str, &str)>, group: &str, limit: Duration) -> Answer<Found> {
        let (mut all, mut passed) = (Duration::ZERO, 0);
        for (place, program) in self.programs.iter().enumerate() {
            let name = if place == 0 { name.to_owned() } else { format!("{name}-{place}") };
            let mut found = self.run_in(program, &name, switch, group, limit)?;
            all += found.ended.time;
            passed += found.passed;
            (found.ended.time, found.passed) = (all, passed);
            if found.is_any() || place + 1 == self.programs.len() {
                return Ok(found);
            }
        }
        Err(Trouble::new(format!("cargo built no tests for {}", self.on)))
    }

    fn run_in(
        &self,
        program: &Program,
        name: &str,
        switch: Option<(&str, &str)>,
        group: &str,
        limit: Duration,
    ) -> Answer<Found> {
        let mut command = match &self.driver {
            Driver::Hip(runtime, simulator) => {
                let mut command = runtime.command(simulator, &program.file, None);
                suites::prepare(&mut command, GPUS);
                command
            }
            Driver::Cuda(folder) => {
                let mut command = fake_driver::command(folder, &program.file, None);
                fake_driver::prepare(&mut command, GPUS);
                command
            }
            Driver::Host => {
                let mut command = Command::new(&program.file);
                command.env("GPU_VMM_TEST_BACKENDS", "host");
                command
            }
        };
        command.env_remove(CHANGED).env_remove(WITHOUT).envs(switch).env("RUST_BACKTRACE", "0");
        // The cases after the first failed one add nothing.
        command.env("GPU_VMM_STOP_AT_FAILURE", "1");
        // Run one case after the other, so that the output shows in which one a process died.
        command.args(["--test-threads", "1"]).current_dir(&program.folder);
        match self.on {
            On::Loom(_) | On::Shuttle => {
                command.args(["--nocapture", group]).envs(SCHEDULES);
            }
            On::Tests(_) => {
                command.arg(group);
            }
            On::Host | On::Hip(_) | On::Cuda => {
                command.args(["-Z", "unstable-options", "--format", "json"]);
                command.args(WITHOUT_THE_LIBRARY).arg(filter(group));
            }
        }
        let log = self.runner.logs.join(format!("{name}-{}.txt", self.on).replace(' ', "-"));
        let ended = process::run(&mut command, &log, limit)?;
        let output = fs::read(&log).doing(|| log.display().to_string())?;
        Ok(Found::new(&String::from_utf8_lossy(&output), ended))
    }
}

/// Returns the filter for a group of cases, or for one case of a group.
fn filter(by: &str) -> String {
    if by.contains("::") { format!("::{by}") } else { format!("::{by}::") }
}

/// Returns the runtime of a major version.
fn hip(layout: &Layout, major: u32) -> Answer<Runtime> {
    let mut refusals = Vec::new();
    for (_, runtime) in layout.runtimes() {
        match runtime {
            Ok(runtime) if runtime.version.split('.').next() == Some(&major.to_string()) => {
                cargo::simulator(&layout.simulator())?;
                return Ok(runtime);
            }
            Ok(_) => {}
            Err(trouble) => refusals.push(trouble.to_string()),
        }
    }
    Err(Trouble::new(format!("there is no HIP {major}; {}", refusals.join("; "))))
}

/// The result of a run of the suite.
#[derive(Debug)]
pub(crate) struct Found {
    /// The cases that failed, followed by the case in which the process died or hung.
    failed: Vec<String>,
    /// The number of cases that passed.
    passed: usize,
    ended: Ended,
}

impl Found {
    /// Reads the output of libtest-mimic, a line of JSON for each case that begins or ends; or the output of libtest, whose
    /// program a failed schedule ends.
    fn new(output: &str, ended: Ended) -> Self {
        let (mut failed, mut passed) = (Vec::new(), 0);
        let mut running = None;
        for line in output.lines() {
            if let Some((name, end)) = line.strip_prefix("test ").and_then(|test| test.split_once(" ... ")) {
                running = (end != "ok" && !end.starts_with("ignored")).then(|| name.to_owned());
                passed += usize::from(end == "ok");
            } else if line == "ok" {
                running = None;
                passed += 1;
            }
            let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
            let Some(name) = event["name"].as_str() else { continue };
            running = (event["event"] == "started").then(|| name.to_owned());
            passed += usize::from(event["event"] == "ok");
            if event["event"] == "failed" {
                failed.push(name.to_owned());
            }
        }
        failed.extend(running);
        Self { failed, passed, ended }
    }

    /// Returns whether the suite failed.
    pub(crate) fn is_any(&self) -> bool {
        !self.failed.is_empty() || !self.ended.status.is_some_and(|status| status.success())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failed, ended, .. } = self;
        write!(f, "{:5.1} s  ", ended.time.as_secs_f64())?;
        if !self.is_any() {
            return f.write_str("SURVIVED");
        }
        match ended.status {
            None => f.write_str("it hung, ")?,
            Some(status) if status.code() != Some(FAILED) => write!(f, "it died ({status}), ")?,
            Some(_) => {}
        }
        let more = if failed.len() > SHOWN { ", ..." } else { "" };
        write!(f, "{} failed: {}{more}", failed.len(), failed[..failed.len().min(SHOWN)].join(", "))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const OUTPUT: &str = r#"{ "type": "suite", "event": "started", "test_count": 3 }
{ "type": "test", "event": "started", "name": "hip::grow::within" }
thread 'main' panicked
{ "type": "test", "name": "hip::grow::within", "event": "failed", "stdout": "Error: \"it moved\"\n" }
{ "type": "test", "event": "started", "name": "hip::grow::extended" }
{ "type": "test", "name": "hip::grow::extended", "event": "ok" }
{ "type": "test", "event": "started", "name": "hip::share::import" }
"#;

    fn found(output: &str, status: Option<i32>) -> Found {
        let ended =
            Ended { status: status.map(ExitStatus::from_raw), counts: None, time: Duration::from_secs(2) };
        Found::new(output, ended)
    }

    #[test]
    fn cases_are_named() {
        let died = found(OUTPUT, Some(11)).to_string();
        assert!(died.starts_with("  2.0 s  it died (signal: 11"), "{died}");
        assert!(died.ends_with("2 failed: hip::grow::within, hip::share::import"), "{died}");
        let hung = found(OUTPUT, None).to_string();
        assert!(hung.contains("it hung, 2 failed: "), "{hung}");
        let whole: String = OUTPUT.lines().take(6).collect::<Vec<_>>().join("\n");
        let failed = found(&whole, Some(FAILED << 8)).to_string();
        assert_eq!(failed, "  2.0 s  1 failed: hip::grow::within");
    }

    #[test]
    fn cases_that_passed_are_counted() {
        assert_eq!(found(OUTPUT, Some(0)).passed, 1);
        assert_eq!(found("running 2 tests\ntest a ... ok\ntest b ... ignored\n", Some(0)).passed, 1);
        assert_eq!(found("test a ... \nprinted\nok\n", Some(0)).passed, 1);
        assert_eq!(found("running 0 tests\n\ntest result: ok. 0 passed\n", Some(0)).passed, 0);
    }

    #[test]
    fn tests_of_a_package_are_named() {
        let output =
            "running 3 tests\ntest a::one ... ok\ntest two ... ignored, slow\ntest a::three ... FAILED\n";
        let failed = found(output, Some(FAILED << 8)).to_string();
        assert_eq!(failed, "  2.0 s  1 failed: a::three");
        assert!(!found(&output.replace("FAILED", "ok"), Some(0)).is_any());
    }

    #[test]
    fn what_passes_has_found_nothing() {
        let passed: String = OUTPUT.lines().skip(4).take(2).collect::<Vec<_>>().join("\n");
        let found = found(&passed, Some(0));
        assert!(!found.is_any());
        assert_eq!(found.to_string(), "  2.0 s  SURVIVED");
    }
}
