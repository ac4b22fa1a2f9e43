//! NVIDIA's own library without a GPU: what gpu-vmm reports if the driver is installed and has no device.
//!
//! The library comes from Debian's non-free package libcuda1. Users may fetch it; it is never committed. It is linked to the
//! C library alone; the package's other dependencies are for machines with a GPU.

use crate::apt::Apt;
use crate::cargo;
use crate::environment::leave_the_machines;
use crate::layout::Layout;
use crate::suites::row;
use crate::summary::{Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
use crate::unpack::{remove, unpack};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "libcuda1";

/// The environment variable that names the library, instead of Debian's.
const VARIABLE: &str = "NVIDIA_LIBRARY";
const INSTEAD: &str = "set NVIDIA_LIBRARY to the path of NVIDIA's libcuda.so.1";

/// The tests, which are ignored elsewhere: the program, the path of its source, and the test's name.
const TESTS: [(&str, &str, &str); 2] = [
    ("open", "backend-cuda/tests/open", "nvidias_library_reports_no_gpu"),
    ("cli", "cli/tests/cli", "info_reports_nvidias_missing_gpu"),
];

/// Runs them; if they cannot run, the reason is a row of the table.
pub(crate) fn run(layout: &Layout, summary: &mut Summary) {
    const NAME: &str = "NVIDIA's own library, no GPU";
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    let required = layout.nvidia_required || named.is_some();
    let library = no_gpu().and_then(|()| match named {
        Some(library) => Ok(library),
        None => layout.alone(|| set_up(layout)),
    });
    match library {
        Err(trouble) => summary.add(Row::skipped(NAME, trouble, required)),
        Ok(library) => {
            if let Err(trouble) = run_on(layout, &library, summary) {
                summary.add(Row::broken(NAME, trouble));
            }
        }
    }
}

fn run_on(layout: &Layout, library: &Path, summary: &mut Summary) -> Answer {
    let programs = cargo::test_programs(&TESTS.map(|(target, ..)| target))?;
    fs::create_dir_all(layout.logs()).doing(|| layout.logs().display().to_string())?;
    for (target, shown, test) in TESTS {
        let program = &programs[target];
        let mut command = Command::new(&program.file);
        command.args(["--ignored", "--exact", test]).current_dir(&program.folder);
        leave_the_machines(&mut command);
        command.env("GPU_VMM_CUDA_LIBRARY", library);
        let log = layout.logs().join(format!("nvidia-{target}.txt"));
        let name = format!("NVIDIA's own library, no GPU, {shown}");
        row(&name, &mut command, &log, false)?.into_iter().for_each(|row| summary.add(row));
    }
    Ok(())
}

/// Refuses machines with a driver: there, the library would find a GPU or a driver of another version.
fn no_gpu() -> Answer {
    match ["/proc/driver/nvidia", "/dev/dxg"].into_iter().find(|path| Path::new(path).exists()) {
        None => Ok(()),
        Some(path) => Err(Trouble::new(format!(
            "{path} exists: this machine has NVIDIA's driver, and these tests are for machines without it"
        ))),
    }
}

/// Returns the library; fetches and unpacks it if it is missing.
fn set_up(layout: &Layout) -> Answer<PathBuf> {
    let root = layout.nvidia();
    let folder = root.join(PACKAGE);
    let library = folder.join("usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1");
    if library.exists() && !layout.update {
        return Ok(library);
    }
    let debs = root.join("debs");
    remove(&debs)?;
    let apt = Apt::new(&root, debs.clone(), INSTEAD.to_owned())?;
    let look = || apt.run("apt-cache", &["madison", PACKAGE]).map(|found| (!found.is_empty()).then_some(()));
    apt.read_lists(PACKAGE, &["sid non-free"], look)?;
    apt.run("apt-get", &["-qq", "download", PACKAGE])?;
    let entries = fs::read_dir(&debs).doing(|| debs.display().to_string())?;
    let mut packages = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let package = packages.find(|path| path.extension().is_some_and(|end| end == "deb"));
    let package = package.ok_or_else(|| Trouble::new(format!("apt fetched no {PACKAGE}; {INSTEAD}")))?;
    // Unpack completely or not at all.
    let new = root.join("incomplete");
    remove(&new)?;
    fs::create_dir_all(&new).doing(|| new.display().to_string())?;
    unpack(&package, &new)?;
    remove(&folder)?;
    fs::rename(&new, &folder).doing(|| folder.display().to_string())?;
    if library.exists() {
        return Ok(library);
    }
    Err(Trouble::new(format!("{} has no libcuda.so.1 at the usual path; {INSTEAD}", package.display())))
}
