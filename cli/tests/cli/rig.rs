//! Runs the command and keeps its files.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-vmm"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns the command with a limit on its address space, in KiB.
#[cfg(target_os = "linux")]
pub(crate) fn with_addresses(kibibytes: u64, arguments: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        &format!("ulimit -v {kibibytes} && exec \"$0\" \"$@\""),
        env!("CARGO_BIN_EXE_gpu-vmm"),
    ]);
    shell.args(arguments).stdin(Stdio::null());
    shell
}

/// Checks for success, and returns the printed JSON.
pub(crate) fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    assert_eq!(stderr(output), "");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Checks the exit status and the error line of a run.
pub(crate) fn fails(arguments: &[&str], status: i32, expected: &str) {
    let output = command(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
    let text = stderr(&output);
    let line = text.lines().find(|line| line.starts_with("gpu-vmm: error: ")).unwrap_or_default();
    assert!(line.contains(expected), "{arguments:?}: {expected:?} is not in {text:?}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
}

/// A folder for one test's files.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the names in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
