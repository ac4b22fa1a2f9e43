//! Processes that load and save regions, so that the server never opens a context of a device.

use crate::say;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The number of processes that load at one time. Each has its own threads.
const AT_ONCE: usize = 4;

/// The processes that run, and those that wait.
#[derive(Debug)]
pub(super) struct Workers {
    program: PathBuf,
    /// The arguments of every process.
    common: Vec<OsString>,
    waiting: VecDeque<Vec<OsString>>,
    running: Vec<(String, Child)>,
    /// The process that saves, and whether another one is wanted after it.
    saving: Option<Child>,
    save_again: Option<PathBuf>,
}

impl Workers {
    /// Returns workers for the server at `socket`.
    pub(super) fn new(socket: &Path, backend: &str) -> std::io::Result<Self> {
        let common = ["--socket".into(), socket.into(), "--backend".into(), backend.into()];
        Ok(Self {
            program: std::env::current_exe()?,
            common: common.to_vec(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            saving: None,
            save_again: None,
        })
    }

    /// Loads a file, into a region of this name if it has none itself.
    pub(super) fn load(&mut self, file: &Path, name: Option<&str>) {
        let mut arguments: Vec<OsString> = vec!["load".into(), file.into()];
        arguments.extend(name.map(OsString::from));
        self.waiting.push_back(arguments);
    }

    /// Saves all regions, after a save that is under way.
    pub(super) fn save(&mut self, folder: &Path) {
        self.save_again = Some(folder.to_owned());
    }

    /// Returns true while a process runs or waits.
    pub(super) fn are_busy(&self) -> bool {
        !self.waiting.is_empty()
            || !self.running.is_empty()
            || self.saving.is_some()
            || self.save_again.is_some()
    }

    /// Starts processes that wait, and reports those that have failed.
    pub(super) fn step(&mut self) {
        self.running.retain_mut(|(what, child)| !has_ended(what, child));
        while self.running.len() < AT_ONCE
            && let Some(arguments) = self.waiting.pop_front()
        {
            let what =
                arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ");
            self.running.extend(self.start(&what, &arguments).map(|child| (what, child)));
        }
        self.saving.take_if(|child| has_ended("save --all", child));
        // Regions that are not loaded yet would be missing.
        if self.saving.is_none()
            && self.running.is_empty()
            && let Some(folder) = self.save_again.take()
        {
            self.saving = self.start("save --all", &["save".into(), "--all".into(), folder.into()]);
        }
    }

    fn start(&self, what: &str, arguments: &[OsString]) -> Option<Child> {
        let mut command = Command::new(&self.program);
        command.arg("serve").args(arguments).args(&self.common);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // A process of systemd's would otherwise report for the server.
        for name in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID"] {
            command.env_remove(OsStr::new(name));
        }
        match command.spawn() {
            Ok(child) => Some(child),
            Err(error) => {
                say(&format!("error: {what}: {} cannot be started: {error}", self.program.display()));
                None
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Their server ends.
        for child in self.running.iter_mut().map(|(_, child)| child).chain(&mut self.saving) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn has_ended(what: &str, child: &mut Child) -> bool {
    match child.try_wait() {
        Ok(None) => false,
        Ok(Some(status)) if status.success() => true,
        Ok(Some(status)) => {
            say(&format!("error: {what} failed: {status}"));
            true
        }
        Err(error) => {
            say(&format!("error: {what}: {error}"));
            true
        }
    }
}
