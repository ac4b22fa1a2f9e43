//! This program, started again for one step: a crash or a hang of a driver ends the step and nothing else.

use crate::interrupts;
use crate::output::shown;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, set_parent_process_death_signal, waitid,
};
use signal_hook::low_level;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a running step is looked at.
const TICK: Duration = Duration::from_millis(10);

/// How long a killed process may take to die, including its driver's cleanup.
const DYING: Duration = Duration::from_secs(10);

/// The maximum size of a step's output. The largest report has about a megabyte.
const MAX_OUTPUT: u64 = 64 << 20;

/// The number of lines of a step's error stream that are kept, from its end.
const LAST_LINES: usize = 20;

/// The number of characters that are kept of each such line: a progress bar or a binary's bytes may be one line of megabytes.
const LONGEST_LINE: usize = 4096;

/// How this process was started.
#[derive(Debug)]
pub(super) struct Program {
    file: PathBuf,
    /// The arguments before the command's own: a program can be started by naming it to another loader.
    before: Vec<OsString>,
}

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Status(ExitStatus),
    /// It took longer than its limit and was killed.
    TooLate(Duration),
    /// It wrote more than [`MAX_OUTPUT`] and was killed.
    TooMuch,
    /// It did not end although it was killed.
    Stuck,
}

/// The result of a step.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) ended: Ended,
    pub(super) stdout: Vec<u8>,
    /// The last lines of the error stream.
    pub(super) stderr: Vec<String>,
}

impl Program {
    /// Returns how this process was started.
    pub(super) fn this() -> io::Result<Self> {
        let line = std::fs::read("/proc/self/cmdline")?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let own = std::env::args_os().count().saturating_sub(1);
        // The line ends with a zero, so that the last word is empty.
        let before = words.get(1..words.len().saturating_sub(own + 1)).unwrap_or_default();
        let before = before.iter().map(|word| OsStr::from_bytes(word).to_owned()).collect();
        Ok(Self { file: std::env::current_exe()?, before })
    }

    /// Runs the command with other arguments, and kills it after the limit, or when its output is too large.
    pub(super) fn run(
        &self,
        arguments: &[String],
        settings: &[(&str, &str)],
        limit: Duration,
    ) -> io::Result<Ran> {
        // Files rather than pipes: a process that has inherited a pipe could keep it open.
        let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut command = Command::new(&self.file);
        command.args(&self.before).args(arguments).envs(settings.iter().copied()).stdin(Stdio::null());
        // In a group of its own, which ends as a whole: a suite starts processes that would go on using the device.
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
        #[allow(unsafe_code)] // runs code in the forked child
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        // A terminal's signals do not reach the group: an interrupt ends it first, and this process then.
        let ended = interrupts::deferred(|| wait(&mut command.spawn()?, limit, &[&stdout, &stderr]))?;
        let error = content(&mut stderr)?;
        let error = String::from_utf8_lossy(&error);
        let lines: Vec<&str> = error.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        Ok(Ran {
            ended,
            stdout: content(&mut stdout)?,
            stderr: last.iter().map(|line| shown(line).chars().take(LONGEST_LINE).collect()).collect(),
        })
    }
}

/// Waits for a process, and kills it after the limit, when one of its outputs is too large, or when this process is interrupted. The
/// processes that it has started end with it, also after a crash.
fn wait(child: &mut Child, limit: Duration, outputs: &[&File]) -> io::Result<Ended> {
    let is_too_large = |output: &&File| output.metadata().is_ok_and(|data| data.len() > MAX_OUTPUT);
    let is_too_much = || outputs.iter().any(is_too_large);
    let group = Pid::from_child(child);
    let has_ended = wait_for(group, limit, || is_too_much() || interrupts::has_come())?;
    // Its number names the group until its status is taken.
    if kill_process_group(group, Signal::KILL).is_err() {
        child.kill()?;
    }
    // A process that is stuck in a driver's kernel module does not die.
    if !has_ended && !wait_for(group, DYING, || false)? {
        return Ok(Ended::Stuck);
    }
    let status = child.wait()?;
    Ok(match has_ended {
        _ if is_too_much() => Ended::TooMuch,
        true => Ended::Status(status),
        false => Ended::TooLate(limit),
    })
}

/// Waits until a process has ended, without taking its status. Returns false at the limit.
fn wait_for(process: Pid, limit: Duration, is_over: impl Fn() -> bool) -> io::Result<bool> {
    let began = Instant::now();
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(process), look)?.is_none() {
        if began.elapsed() >= limit || is_over() {
            return Ok(false);
        }
        std::thread::sleep(TICK);
    }
    Ok(true)
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.rewind()?;
    file.take(MAX_OUTPUT).read_to_end(&mut content)?;
    Ok(content)
}

impl Ended {
    pub(super) fn is_success(self) -> bool {
        matches!(self, Self::Status(status) if status.success())
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLate(limit) => write!(f, "killed after {} s", limit.as_secs()),
            Self::TooMuch => write!(f, "killed for more than {} MiB of output", MAX_OUTPUT >> 20),
            Self::Stuck => write!(f, "killed, and still in the kernel {} s later", DYING.as_secs()),
            Self::Status(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "status {code}"),
                (None, Some(signal)) => match low_level::signal_name(signal) {
                    Some(name) => write!(f, "crashed: {name}"),
                    None => write!(f, "crashed: signal {signal}"),
                },
                (None, None) => write!(f, "{status}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Ran {
        let program = Program { file: "/bin/sh".into(), before: vec!["-c".into(), script.into()] };
        program.run(&[], &[("PLANTED", "value")], limit).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn endless_output_ends_a_step() {
        let ran = sh("exec yes", LONG);
        assert_eq!(ran.ended.to_string(), "killed for more than 64 MiB of output");
        assert_eq!(ran.stdout.len() as u64, MAX_OUTPUT);
        assert!(!ran.ended.is_success());
        assert_eq!(sh("exec yes >&2", LONG).ended, Ended::TooMuch);
    }

    #[test]
    fn each_end_of_a_step_is_reported() {
        let ran = sh("echo out $PLANTED; seq 30 >&2; exit 3", LONG);
        assert_eq!((ran.ended.to_string().as_str(), &ran.stdout[..]), ("status 3", &b"out value\n"[..]));
        assert_eq!((ran.stderr.len(), ran.stderr[0].as_str()), (LAST_LINES, "11"));
        assert!(!ran.ended.is_success() && sh("exit 0", LONG).ended.is_success());
        assert_eq!(sh("kill -SEGV $$", LONG).ended.to_string(), "crashed: SIGSEGV");
        assert_eq!(Ended::Stuck.to_string(), "killed, and still in the kernel 10 s later");
        assert!(!Ended::Stuck.is_success() && !Ended::TooLate(LONG).is_success());
        let long = sh("head -c 100000 /dev/zero | tr '\\0' x >&2", LONG);
        assert_eq!(long.stderr, ["x".repeat(LONGEST_LINE)]);
        let late = sh("echo begun; exec sleep 60", Duration::from_secs(1));
        assert_eq!(
            (late.ended.to_string().as_str(), &late.stdout[..]),
            ("killed after 1 s", &b"begun\n"[..])
        );
    }

    #[test]
    fn processes_of_a_step_end_with_it() {
        for (script, ended) in [("wait", "killed after 1 s"), ("exit 3", "status 3")] {
            let ran = sh(&format!("sleep 60 & echo $!; {script}"), Duration::from_secs(1));
            assert_eq!(ran.ended.to_string(), ended);
            let status = format!("/proc/{}/status", String::from_utf8(ran.stdout).unwrap().trim());
            // Until its new parent has taken its status, a killed process is a zombie.
            let has_ended =
                || !std::fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ"));
            let began = Instant::now();
            while !has_ended() && began.elapsed() < LONG {
                std::thread::sleep(TICK);
            }
            assert!(has_ended(), "{script}");
        }
    }
}
