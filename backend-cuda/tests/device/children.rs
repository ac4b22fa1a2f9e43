//! Tests' child processes: this same program, with its task in an environment variable.
#![allow(unsafe_code)]

use crate::exports::for_fabric;
use crate::support::*;
use crate::walk::walk;
use gpu_vmm_core::{
    Backend, Bytes, CopyCalls, Detail, FabricHandle, Handle, MemoryCalls, Operation, Properties, SyncCalls,
};
use gpu_vmm_cuda::{CudaBackend, CudaHandle, cudarc};
use gpu_vmm_testkit::TestKit;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};

const VARIABLE: &str = "GPU_VMM_TEST_CHILD";

/// Runs this program as a child that does `task`, with a descriptor as its standard input.
pub(crate) fn spawn(task: &str, stdin: Option<OwnedFd>) {
    let output = Command::new(std::env::current_exe().unwrap())
        .env(VARIABLE, task)
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
        .output()
        .unwrap();
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
        "import" => import_standard_input(&backend),
        "import-fabric" => import_bytes_from_standard_input(&backend),
        "fault" => fault(&backend),
        "lost-list" => lost_list(&backend),
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

/// The seeds of the pattern that the parent writes and of the one that the child writes.
pub(crate) const QUESTION: u64 = 21;
pub(crate) const ANSWER: u64 = 22;
/// The number of shared granules.
pub(crate) const SHARED: u64 = 4;

fn import_standard_input(backend: &CudaBackend) {
    let size = granules(backend, SHARED);
    let stdin = std::io::stdin();
    let properties = Properties::on(DEVICE).shareable();
    // SAFETY: the parent has exported memory of this size and type.
    let handle = unsafe { backend.import(stdin.as_fd(), size, &properties) }.unwrap();
    answer(backend, &handle);
}

fn import_bytes_from_standard_input(backend: &CudaBackend) {
    let mut bytes = [0; FabricHandle::LENGTH];
    std::io::stdin().read_exact(&mut bytes).unwrap();
    let size = granules(backend, SHARED);
    // SAFETY: as above.
    let handle = unsafe { backend.import_fabric(&FabricHandle(bytes), size, &for_fabric()) }.unwrap();
    answer(backend, &handle);
}

/// Checks the parent's pattern and overwrites it.
fn answer(backend: &CudaBackend, handle: &CudaHandle) {
    let size = handle.size();
    let mut reservation = reserve(backend, size, None);
    map(&mut reservation, Bytes::ZERO, handle);
    let base = at(&reservation, Bytes::ZERO);
    assert_eq!(count_wrong(backend, DEVICE, base, size, QUESTION), 0);
    write_pattern(backend, DEVICE, base, size, ANSWER);
    unmap(&mut reservation, Bytes::ZERO, size);
}

fn fault(backend: &CudaBackend) {
    let size = granules(backend, 2);
    let mut reservation = reserve(backend, size, None);
    let handle = create(backend, granules(backend, 1));
    map(&mut reservation, Bytes::ZERO, &handle);
    // The second granule is reserved but not mapped: the kernel faults there, deliberately. SAFETY: the fault loses the device for
    // this process only, as the test expects, and the process ends after it.
    let error = unsafe { backend.write_pattern(DEVICE, at(&reservation, Bytes::ZERO), size, 1) }.unwrap_err();
    println!("{error}");
    assert!(matches!(error.detail(), Detail::DeviceLost { .. }), "{error}");
    let error = backend.synchronize(DEVICE).unwrap_err();
    assert!(matches!(error.detail(), Detail::DeviceLost { .. }), "{error}");
    // Its memory can still be released.
    unmap(&mut reservation, Bytes::ZERO, granules(backend, 1));
}

fn lost_list(backend: &CudaBackend) {
    let granule = granules(backend, 1);
    let mut reservation = reserve(backend, granules(backend, 2), None);
    map(&mut reservation, Bytes::ZERO, &create(backend, granule));
    let (pinned, copy_stream) = (backend.pin(granule).unwrap(), backend.copy_stream(DEVICE).unwrap());
    // The second node is reserved but not mapped.
    let head = at(&reservation, Bytes::ZERO);
    let node = [(head + granule).0, 3].map(u64::to_ne_bytes);
    write(backend, head, node.as_flattened());
    assert_eq!(walk(backend, head, 1).unwrap().sum, 3);
    let error = walk(backend, head, 2).unwrap_err();
    println!("{error}");
    assert!(
        matches!(error.detail(), Detail::DeviceLost { .. }) && error.operation() == Operation::WalkList,
        "{error}"
    );
    // The context's objects are released without an error in the log.
    drop((pinned, copy_stream));
    unmap(&mut reservation, Bytes::ZERO, granule);
}
