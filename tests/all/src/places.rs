//! `gpu-vmm info` finds HIP in each place in which ROCm's packages and wheels install it. The places of the file system are
//! shown in a mount namespace, whose `/opt` is a folder of this test; without permission for one they are not run.

use crate::cargo;
use crate::environment::{leave_the_machines, search_path};
use crate::layout::Layout;
use crate::process;
use crate::runtime::Runtime;
use crate::suites::LIMIT;
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const HIP: &str = "libamdhip64.so";

/// Where a library is: the variable that leads there and its value, relative to the test's folder. Without a variable, the
/// library is below `/opt`.
type Place = (Option<(&'static str, &'static str)>, &'static str);

const PLACES: [Place; 8] = [
    (Some(("GPU_VMM_HIP_FOLDER", "first")), "first/libamdhip64.so.7"),
    (Some(("ROCM_PATH", "rocm")), "rocm/lib/libamdhip64.so.7"),
    (Some(("VIRTUAL_ENV", "venv")), "venv/lib/python3.12/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7"),
    (
        Some(("CONDA_PREFIX", "conda")),
        "conda/lib/python3.13/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7",
    ),
    (None, "opt/rocm/lib/libamdhip64.so.7"),
    (None, "opt/rocm/core/lib/libamdhip64.so.7"),
    (None, "opt/rocm/core-10.0/lib/libamdhip64.so.7"),
    (None, "opt/rocm/core-10.10/lib/libamdhip64.so.8"),
];

/// Runs it for each place, on the newest version of HIP.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    let Some(runtime) = runtimes.last() else { return Ok(()) };
    let program = cargo::command_program()?;
    let root = layout.root.join("places");
    let dependencies = root.join("dependencies");
    empty(&root)?;
    fs::create_dir_all(&dependencies).doing(|| dependencies.display().to_string())?;
    let libraries = runtime.libraries();
    for entry in fs::read_dir(&libraries).doing(|| libraries.display().to_string())?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(HIP) {
            link(&entry.path(), &dependencies.join(entry.file_name()))?;
        }
    }
    let mounts = Command::new("unshare").args(["-rm", "true"]).stderr(Stdio::null()).status();
    let mounts = mounts.is_ok_and(|status| status.success());
    for (number, (variable, library)) in PLACES.into_iter().enumerate() {
        let name = format!("HIP {}, found as {library}", runtime.version);
        if variable.is_none() && !mounts {
            summary.add(Row::skipped(&name, Trouble::new("a mount namespace is not permitted"), false));
            continue;
        }
        let folder = root.join(number.to_string());
        let at = folder.join(library);
        fs::create_dir_all(at.parent().unwrap_or(&folder)).doing(|| at.display().to_string())?;
        link(&libraries.join(format!("{HIP}.7")), &at)?;
        let mut command = Command::new("unshare");
        if variable.is_none() {
            let opt = folder.join("opt");
            command.args(["-rm", "sh", "-c", "mount --bind \"$0\" /opt && exec \"$@\""]).arg(opt);
        } else {
            command = Command::new("env");
        }
        command.arg(libraries.join("ld-linux-x86-64.so.2")).args(["--inhibit-cache", "--library-path"]);
        command.arg(search_path([layout.simulator().as_os_str(), dependencies.as_os_str()])).arg(&program);
        command.args(["info", "--backend", "hip", "--json"]);
        leave_the_machines(&mut command);
        for other in ["ROCM_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"] {
            command.env_remove(other);
        }
        let expected = match variable {
            Some((variable, value)) => {
                command.env(variable, folder.join(value));
                at.display().to_string()
            }
            None => format!("/{library}"),
        };
        command.env("HSA_SIM_KEEPS_MEMORY", "1");
        let log = layout.logs().join(format!("{}-place-{number}.txt", runtime.version));
        let ended = process::run(&mut command, &log, LIMIT)?;
        let output = fs::read_to_string(&log).doing(|| log.display().to_string())?;
        let found = ended.status.is_some_and(|status| status.success());
        let found = found && output.contains(&format!("\"{expected}\""));
        if !found {
            println!("{output}\n{name}: expected {expected}; that was\n  {command:?}\n");
        }
        let outcome = if found { Outcome::Passed } else { Outcome::Failed };
        summary.add(Row::of(&name, outcome, ended.time));
    }
    empty(&root)
}

/// Removes a folder of an earlier run.
fn empty(folder: &Path) -> Answer {
    if folder.exists() {
        fs::remove_dir_all(folder).doing(|| folder.display().to_string())?;
    }
    Ok(())
}

#[cfg(unix)]
pub(crate) fn link(to: &Path, at: &Path) -> Answer {
    std::os::unix::fs::symlink(to, at).doing(|| at.display().to_string())
}

/// Is never reached: packages exist for Linux alone.
#[cfg(not(unix))]
pub(crate) fn link(_: &Path, _: &Path) -> Answer {
    Ok(())
}
