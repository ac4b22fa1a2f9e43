//! Running a case in a process of its own.

use crate::rig::Rig;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const CASE: &str = "FAKE_HIP_CASE";
const FAILED: &str = "FAILED: ";
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Settings in addition to two devices, without the prefix.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) run: fn(&mut Rig),
}

/// Returns the name of the case that this process must run, if it is a child.
pub(crate) fn asked_for() -> Option<String> {
    std::env::var(CASE).ok()
}

impl Case {
    /// Runs the case in this process, on the fake driver, and checks that nothing is left.
    pub(crate) fn run_here(&self) {
        std::panic::set_hook(Box::new(|info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            let line = info.location().map_or(0, std::panic::Location::line);
            eprintln!("{FAILED}{} (line {line})", text.replace('\n', " "));
        }));
        let mut rig = Rig::open();
        (self.run)(&mut rig);
        rig.check_what_is_left();
    }
}

/// Returns the fake driver's library, which Cargo puts next to the tests of its package.
fn library() -> PathBuf {
    let mut path = std::env::current_exe().expect("this program's path");
    path.set_file_name("libgpu_vmm_fake_hip.so");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// Runs a case in a child, on a version, without the workaround for a quirk. Returns its output, or its own words about why
/// it failed.
pub(crate) fn run(case: &Case, version: &str, without: &str) -> Result<String, String> {
    let output = Command::new(std::env::current_exe().expect("this program's path"))
        .env(CASE, case.name)
        .env("FAKE_HIP_VERSION", version)
        .env("FAKE_HIP_DEVICES", "2")
        .env("FAKE_HIP_MEMORY_MB", "512")
        .env("GPU_VMM_HIP_LIBRARY", library())
        .env("GPU_VMM_HIP_WITHOUT_QUIRK", without)
        .envs(case.settings.iter().map(|(name, value)| (format!("FAKE_HIP_{name}"), value)))
        .stdin(Stdio::null())
        .output()
        .expect("a child");
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let told =
        errors.lines().find_map(|line| line.strip_prefix(FAILED).or_else(|| line.strip_prefix("fake-hip: ")));
    let why = told.unwrap_or_else(|| errors.trim());
    Err(if why.is_empty() { output.status.to_string() } else { why.to_owned() })
}
