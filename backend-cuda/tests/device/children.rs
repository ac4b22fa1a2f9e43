//! Tests' child processes: this same program, with its task in an environment variable.
#![allow(unsafe_code)]

use crate::support::*;
use gpu_vmm_core::{Backend, Bytes, SyncCalls};
use gpu_vmm_cuda::{CudaBackend, cudarc};
use std::process::{Command, ExitCode};

const VARIABLE: &str = "GPU_VMM_TEST_CHILD";

/// Runs this program as a child that does `task`.
pub(crate) fn spawn(task: &str) {
    let output = Command::new(std::env::current_exe().unwrap()).env(VARIABLE, task).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    // The child prints this word last, so a child that ends early does not count as a success.
    let done = said.trim_end().ends_with("done");
    assert!(
        output.status.success() && done,
        "{task}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Does the parent's task, if this process is a child.
pub(crate) fn run() -> Option<ExitCode> {
    let task = std::env::var(VARIABLE).ok()?;
    let backend = CudaBackend::open().unwrap();
    match task.as_str() {
        "bare" => without_a_context(&backend),
        _ => return Some(ExitCode::from(2)),
    }
    assert_eq!(backend.drop_log().count(), 0, "{:?}", backend.drop_log().take_last());
    assert_eq!(crate::fake_driver::violations(), 0);
    println!("done");
    Some(ExitCode::SUCCESS)
}

/// Returns whether the device's primary context exists, through cudarc's own loading of the driver.
fn has_context() -> bool {
    let (mut flags, mut active) = (0, -1);
    // SAFETY: the pointers are valid for one int each, and the driver has been started.
    let result =
        unsafe { cudarc::driver::sys::cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) };
    assert_eq!(result, cudarc::driver::sys::cudaError_enum::CUDA_SUCCESS);
    active != 0
}

fn without_a_context(backend: &CudaBackend) {
    assert!(!has_context(), "there is a context before anything was done");
    let size = granules(backend, 4);
    let mut reservation = reserve(backend, size, None);
    let (first, second) = (create(backend, granules(backend, 1)), create(backend, granules(backend, 3)));
    map(&mut reservation, Bytes::ZERO, &first);
    unmap(&mut reservation, Bytes::ZERO, granules(backend, 1));
    map(&mut reservation, Bytes::ZERO, &first);
    map(&mut reservation, granules(backend, 1), &second);
    backend.synchronize(DEVICE).unwrap();
    backend.capabilities(DEVICE).unwrap();
    assert!(!has_context(), "virtual memory or waiting has made a context");

    // A context that is created later has access to memory that was mapped before.
    let base = at(&reservation, Bytes::ZERO);
    write_pattern(backend, DEVICE, base, size, 11);
    assert!(has_context());
    assert_eq!(count_wrong(backend, DEVICE, base, size, 11), 0);
    backend.synchronize(DEVICE).unwrap();
    unmap(&mut reservation, Bytes::ZERO, size);
}
