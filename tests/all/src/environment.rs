//! The environment of the tested programs: without the machine's own GPUs and drivers, and with the library folders for their
//! loader.

use std::ffi::{OsStr, OsString};
use std::process::Command;

/// Variables that a user may have set for the machine's own GPUs and libraries.
const NOT_THE_MACHINES: [&str; 10] = [
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "GPU_VMM_CUDA_LIBRARY",
    "GPU_VMM_HIP_FOLDER",
    "GPU_VMM_HIP_FOLDER_FOUND",
    "GPU_VMM_HIP_LIBRARY",
    "HIP_VISIBLE_DEVICES",
    LIBRARY_PATH,
    "LD_PRELOAD",
    "ROCR_VISIBLE_DEVICES",
];

/// The variable with the loader's folders.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Removes the variables of the machine's own GPUs and libraries from a program's environment.
pub(crate) fn leave_the_machines(command: &mut Command) {
    for name in NOT_THE_MACHINES {
        command.env_remove(name);
    }
}

/// Joins folders into a list for the loader. Leaves out empty ones, which would mean the current folder.
pub(crate) fn search_path<'a>(folders: impl IntoIterator<Item = &'a OsStr>) -> OsString {
    let mut path = OsString::new();
    for folder in folders.into_iter().filter(|folder| !folder.is_empty()) {
        if !path.is_empty() {
            path.push(":");
        }
        path.push(folder);
    }
    path
}
