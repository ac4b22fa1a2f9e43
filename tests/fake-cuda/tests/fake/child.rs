//! Running a case in a process of its own.

use crate::rig::Cuda;
use libtest_mimic::Failed;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const CASE: &str = "GPU_VMM_TEST_CASE";
pub(crate) const DONE: &str = "DONE";

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Settings in addition to two GPUs, without the prefix.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) run: fn(&Cuda),
}

/// A case that no list has.
pub(crate) const fn case(
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    run: fn(&Cuda),
) -> Case {
    Case { name, settings, run }
}

/// Returns the name of the case that this process must run, if it is a child.
pub(crate) fn asked_for() -> Option<String> {
    std::env::var(CASE).ok()
}

impl Case {
    /// Runs the case in this process, and checks that nothing is left.
    pub(crate) fn run_here(&self) {
        let cuda = Cuda::load();
        (self.run)(&cuda);
        cuda.check_what_is_left();
        // The last line, so that a child that ends early does not count as successful.
        println!("{DONE}");
    }
}

/// Returns the fake driver's library, which Cargo puts next to the tests of its package.
pub(crate) fn library() -> PathBuf {
    let mut path = std::env::current_exe().expect("this program's path");
    path.set_file_name("libgpu_vmm_fake_cuda.so");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

fn command(case: &Case) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    // Settings of the user's environment must not affect the case.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"FAKE_CUDA_")) {
        command.env_remove(name);
    }
    command.env(CASE, case.name).env("FAKE_CUDA_GPUS", "2").env("GPU_VMM_CUDA_LIBRARY", library());
    for (name, value) in case.settings {
        command.env(format!("FAKE_CUDA_{name}"), value);
    }
    command
}

/// Runs a case in a child, and returns its output.
pub(crate) fn run(case: &Case) -> Result<String, Failed> {
    let output = command(case).stdin(Stdio::null()).output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    match said.strip_suffix(&format!("{DONE}\n")) {
        Some(printed) if output.status.success() => Ok(printed.to_owned()),
        _ => Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Starts a case in a child while this process runs another. They communicate over the child's standard input and output.
pub(crate) fn start(case: &Case, environment: &[(&str, String)]) -> Child {
    let mut command = command(case);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child")
}
