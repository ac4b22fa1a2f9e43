//! One run of a test program: its output in a file, its time, and the numbers of tests that it reports.

use crate::trouble::{Answer, Doing};
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The numbers that a test program reports at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if it took too long and was killed.
    pub(crate) status: Option<ExitStatus>,
    /// `None` if it did not come to its end.
    pub(crate) counts: Option<Counts>,
    pub(crate) time: Duration,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.counts, self.status) {
            (_, None) => write!(f, "killed after {} s", self.time.as_secs()),
            (Some(Counts { passed, failed, ignored }), Some(_)) => {
                write!(f, "{passed} passed, {failed} failed, {ignored} ignored")
            }
            (None, Some(status)) => write!(f, "ended early ({status})"),
        }
    }
}

/// Runs it with standard output and error in `log`, for at most `limit`.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Answer<Ended> {
    let file = File::create(log).doing(|| log.display().to_string())?;
    let both = file.try_clone().doing(|| log.display().to_string())?;
    let began = Instant::now();
    let shown = || format!("{:?}", command.get_program());
    let program = shown();
    let mut child =
        command.stdin(Stdio::null()).stdout(file).stderr(both).spawn().doing(|| program.clone())?;
    let status = loop {
        if let Some(status) = child.try_wait().doing(|| program.clone())? {
            break Some(status);
        }
        if began.elapsed() > limit {
            child.kill().and_then(|()| child.wait()).doing(|| program.clone())?;
            break None;
        }
        sleep(Duration::from_millis(10));
    };
    let time = began.elapsed();
    let output = fs::read(log).doing(|| log.display().to_string())?;
    Ok(Ended { status, counts: counts(&String::from_utf8_lossy(&output)), time })
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; ...`, or the lines of Python's unittest: `Ran 4 tests in 0.5s` and,
/// at its end, `OK (skipped=1)` or `FAILED (failures=1, errors=2, skipped=1)`.
fn counts(output: &str) -> Option<Counts> {
    if let Some(counts) = pythons(output) {
        return Some(counts);
    }
    let result = output.lines().rev().find_map(|line| line.strip_prefix("test result: "))?;
    let (_, numbers) = result.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split("; ") {
        match part.split_once(' ') {
            Some((number, "passed")) => counts.passed = number.parse().ok()?,
            Some((number, "failed")) => counts.failed = number.parse().ok()?,
            Some((number, "ignored")) => counts.ignored = number.parse().ok()?,
            _ => {}
        }
    }
    Some(counts)
}

fn pythons(output: &str) -> Option<Counts> {
    let mut lines = output.lines().rev();
    let result =
        lines.find(|line| *line == "OK" || line.starts_with("OK (") || line.starts_with("FAILED ("))?;
    let ran: u64 = lines.find_map(|line| line.strip_prefix("Ran "))?.split(' ').next()?.parse().ok()?;
    let of = |what: &str| -> u64 {
        let mut parts = result.split(['(', ')', ',']).map(str::trim);
        let number = parts.find_map(|part| part.strip_prefix(what)?.strip_prefix('='));
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let (failed, ignored) = (of("failures") + of("errors"), of("skipped"));
    Some(Counts { passed: ran.saturating_sub(failed + ignored), failed, ignored })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_result_counts() {
        let output = "test a ... ok\n\ntest result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; \
                      4 filtered out; finished in 0.52s\n\n";
        assert_eq!(counts(output), Some(Counts { passed: 3, failed: 2, ignored: 1 }));
        assert_eq!(counts("running 4 tests\nSegmentation fault\n"), None);
        let pythons = "Ran 12 tests in 0.5s\n\nFAILED (failures=1, errors=2, skipped=3)\n";
        assert_eq!(counts(pythons), Some(Counts { passed: 6, failed: 3, ignored: 3 }));
        assert_eq!(counts("Ran 2 tests in 0.5s\n\nOK\n"), Some(Counts { passed: 2, failed: 0, ignored: 0 }));
    }

    #[cfg(unix)]
    #[test]
    fn a_crash_has_no_counts() {
        let log = std::env::temp_dir().join(format!("gpu-vmm-crash-{}", std::process::id()));
        let mut crash = Command::new("sh");
        crash.args(["-c", "echo running 1 test; kill -SEGV $$"]);
        let ended = run(&mut crash, &log, Duration::from_secs(60)).unwrap();
        assert!(ended.counts.is_none() && ended.status.is_some_and(|status| !status.success()), "{ended}");
        assert!(ended.to_string().contains("signal"), "{ended}");
        fs::remove_file(log).unwrap();
    }
}
