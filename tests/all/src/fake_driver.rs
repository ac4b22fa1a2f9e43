//! The tests of CUDA on the fake NVIDIA driver (`tests/fake-cuda`), with one device and with two. They need no GPU and no
//! download. With two devices, fabric handles are permitted.

use crate::cargo::{self, Program};
use crate::environment::{LIBRARY_PATH, leave_the_machines, search_path};
use crate::layout::Layout;
use crate::suites::{Job, or_group, with_fewer_rounds, without_sweeps};
use crate::trouble::{Answer, Doing};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A test program that has tests of CUDA.
struct Suite {
    /// The name of its target in Cargo.
    target: &'static str,
    /// The path of its source.
    shown: &'static str,
    /// Tests that show nothing here: the overhead of gpu-vmm over the driver can only be measured on NVIDIA's own.
    skipped: Option<&'static str>,
    /// The numbers of devices for its runs.
    devices: &'static [u32],
}

/// The numbers of devices.
const DEVICES: [u32; 2] = [1, 2];

const SUITES: [Suite; 4] = [
    Suite { target: "conformance", shown: "conformance", skipped: None, devices: &DEVICES },
    Suite {
        target: "device",
        shown: "backend-cuda/tests/device",
        skipped: Some("cost::"),
        devices: &DEVICES,
    },
    Suite { target: "open", shown: "backend-cuda/tests/open", skipped: None, devices: &DEVICES },
    // Its cases choose their own settings, and only they use multicast.
    Suite { target: "fake-cuda", shown: "tests/fake-cuda", skipped: None, devices: &[2] },
];

/// Builds all of them.
#[cfg(target_os = "linux")]
pub(crate) fn jobs(layout: &Layout, filter: &[String]) -> Answer<Vec<Job>> {
    let programs = cargo::test_programs(&SUITES.map(|suite| suite.target))?;
    let folder = layout.fake_cuda();
    set_up(layout)?;
    fs::create_dir_all(layout.logs()).doing(|| layout.logs().display().to_string())?;
    let mut jobs = Vec::new();
    for devices in DEVICES {
        for Suite { target, shown, skipped, .. } in
            SUITES.iter().filter(|suite| suite.devices.contains(&devices))
        {
            let is_suite = *target == "conformance";
            if is_suite && devices == 1 && !layout.long {
                continue;
            }
            let s = if devices == 1 { "" } else { "s" };
            let name = format!("fake CUDA, {devices} GPU{s}, {shown}");
            let program = &programs[*target];
            let mut command = command(&folder, &program.file, None);
            command.args(filter).current_dir(&program.folder);
            if is_suite && devices == 1 {
                without_sweeps(&mut command);
            }
            if is_suite && !layout.long {
                with_fewer_rounds(&mut command);
            }
            if let Some(skipped) = skipped {
                command.args(["--skip", skipped]);
            }
            prepare(&mut command, devices);
            // Fabric handles are refused with one device, and permitted with two.
            command.env("FAKE_CUDA_FABRIC", if devices == 1 { "0" } else { "1" });
            let log = layout.logs().join(format!("fake-cuda-{devices}-{target}.txt"));
            jobs.push(Job { name, command, log });
        }
    }
    jobs.push(without_virtual_memory(layout, &programs["conformance"], filter));
    Ok(jobs)
}

/// Returns the job of the suite's group for devices without virtual memory management.
#[cfg(target_os = "linux")]
fn without_virtual_memory(layout: &Layout, program: &Program, filter: &[String]) -> Job {
    let mut command = command(&layout.fake_cuda(), &program.file, None);
    command.args(or_group(filter)).current_dir(&program.folder);
    prepare(&mut command, 2);
    command.env("FAKE_CUDA_VMM", "0");
    let log = layout.logs().join("fake-cuda-without-virtual-memory.txt");
    Job { name: "fake CUDA, 2 GPUs without virtual memory, conformance".to_owned(), command, log }
}

/// Returns the command for a program on the fake driver in a folder. `own` names the folders of the program's own libraries.
pub(crate) fn command(folder: &Path, program: &Path, own: Option<&OsStr>) -> Command {
    let mut command = Command::new(program);
    leave_the_machines(&mut command);
    command.env(LIBRARY_PATH, search_path([folder.as_os_str()].into_iter().chain(own)));
    command
}

/// Makes a test program test CUDA, with this number of devices.
pub(crate) fn prepare(command: &mut Command, devices: u32) {
    command.env("GPU_VMM_TEST_BACKENDS", "cuda").env("GPU_VMM_REQUIRE_CUDA", "1");
    command.env("FAKE_CUDA_GPUS", devices.to_string());
}

/// Returns none: the fake driver is a Linux library.
#[cfg(not(target_os = "linux"))]
pub(crate) fn jobs(_: &Layout, _: &[String]) -> Answer<Vec<Job>> {
    Ok(Vec::new())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set_up(_: &Layout) -> Answer {
    Ok(())
}

/// Creates a folder in which the fake driver has the file names under which NVIDIA's driver is looked for.
#[cfg(target_os = "linux")]
pub(crate) fn set_up(layout: &Layout) -> Answer {
    let (library, folder) = (&cargo::fake_cuda()?, layout.fake_cuda());
    fs::create_dir_all(&folder)
        .doing(|| format!("{} cannot be created; choose another place with --folder", folder.display()))?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        let link = folder.join(name);
        if fs::read_link(&link).is_ok_and(|target| target == *library) {
            continue;
        }
        // A file of an earlier build may differ. Replace it by a rename, so that a starting program finds either the old or
        // the new.
        let new = folder.join(format!("{name}.{}", std::process::id()));
        std::os::unix::fs::symlink(library, &new).doing(|| new.display().to_string())?;
        fs::rename(&new, &link).doing(|| link.display().to_string())?;
    }
    Ok(())
}
