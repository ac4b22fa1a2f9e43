//! Calls that gpu-vmm-cuda does not make, and other programs such as Numba do.

use crate::rig::{BLOCK, Cuda, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, SUCCESS};
use gpu_vmm_test_settings::cases;
use std::ffi::CStr;

cases! {
    a_function_is_found_by_its_name [VERSION = "13.0"];
    an_older_driver_has_fewer_functions [VERSION = "12.0"];
    a_reset_ends_what_the_primary_context_has;
    the_cpu_reaches_managed_memory;
    page_locked_memory_has_a_device_address;
}

const CONTEXT_IS_DESTROYED: u32 = 709;
const SIZE: usize = 1000;

/// Returns the code, the address, and the status of the search.
fn find(cuda: &Cuda, name: &CStr, version: usize) -> (u32, usize, u32) {
    let (mut address, mut status) = (usize::MAX, u32::MAX);
    let (out, search) = ((&raw mut address).addr(), (&raw mut status).addr());
    let code = cuda.call("cuGetProcAddress_v2", &[name.as_ptr().addr(), out, version, 0, search]);
    (code, address, status)
}

fn a_function_is_found_by_its_name(cuda: &Cuda) {
    // Before the driver is started.
    let (code, start, status) = find(cuda, c"cuInit", 13_000);
    assert_eq!((code, status), (SUCCESS, 0));
    // SAFETY: the function that the header declares like this.
    let start = unsafe {
        std::mem::transmute::<*const (), unsafe extern "C" fn(u32) -> u32>(std::ptr::with_exposed_provenance(
            start,
        ))
    };
    assert_eq!(cuda.call("cuCtxSynchronize", &[]), NOT_INITIALIZED);
    // SAFETY: any flags may be passed.
    assert_eq!(unsafe { start(0) }, SUCCESS);
    // A name means the newest form that the version has.
    let (_, first, _) = find(cuda, c"cuDevicePrimaryCtxRelease", 11_000);
    assert_eq!(find(cuda, c"cuDevicePrimaryCtxRelease", 13_000), (SUCCESS, first, 0));
    assert_eq!(find(cuda, c"cuDevicePrimaryCtxRelease", 10_020), (SUCCESS, 0, 2));
    assert_eq!(find(cuda, c"cuDevicePrimaryCtxRelease_v2", 13_000), (SUCCESS, 0, 1));
    assert_eq!(find(cuda, c"cuNothing", 13_000), (SUCCESS, 0, 1));
    // A newer form that is not implemented.
    assert_ne!(find(cuda, c"cuCtxCreate", 3020).1, 0);
    assert_eq!(find(cuda, c"cuCtxCreate", 12_050), (SUCCESS, 0, 1));
    assert_eq!(find(cuda, c"cuInit", 13_010), (INVALID_VALUE, usize::MAX, u32::MAX));
    let mut address = 0usize;
    let (name, out) = (c"cuInit".as_ptr().addr(), (&raw mut address).addr());
    cuda.ok("cuGetProcAddress_v2", &[name, out, 13_000, 1, 0]);
    cuda.answers("cuGetProcAddress_v2", &[name, out, 13_000, 2, 0], NOT_SUPPORTED);
    cuda.refuses("cuGetProcAddress_v2", &[name, out, 13_000, 4, 0], INVALID_VALUE);
    cuda.refuses("cuGetProcAddress_v2", &[0, out, 13_000, 0, 0], INVALID_VALUE);
    cuda.refuses("cuGetProcAddress_v2", &[name, 0, 13_000, 0, 0], INVALID_VALUE);
}

fn an_older_driver_has_fewer_functions(cuda: &Cuda) {
    assert_ne!(find(cuda, c"cuMemMap", 12_000).1, 0);
    // It does not know a function of 12.1 at all.
    assert_eq!(find(cuda, c"cuMulticastCreate", 12_000), (SUCCESS, 0, 1));
    assert_eq!(find(cuda, c"cuMemMap", 12_010).0, INVALID_VALUE);
}

fn a_reset_ends_what_the_primary_context_has(cuda: &Cuda) {
    cuda.init();
    cuda.ok("cuDevicePrimaryCtxReset_v2", &[0]);
    let context = cuda.enter(0);
    cuda.get("cuMemAlloc_v2", &[SIZE]);
    cuda.get("cuStreamCreate", &[0]);
    cuda.get("cuEventCreate", &[0]);
    // Uses the thread's own stream, which ends as well.
    const PER_THREAD: usize = 2;
    cuda.ok("cuStreamSynchronize", &[PER_THREAD]);
    cuda.ok("cuDevicePrimaryCtxReset_v2", &[0]);
    cuda.answers("cuCtxSynchronize", &[], CONTEXT_IS_DESTROYED);
    cuda.take_away(cuda.mapped(BLOCK), BLOCK);
    let active = || {
        let (mut flags, mut active) = (0u32, 0u32);
        cuda.ok("cuDevicePrimaryCtxGetState", &[0, (&raw mut flags).addr(), (&raw mut active).addr()]);
        active
    };
    assert_eq!(active(), 0);
    assert_eq!((cuda.get("cuDevicePrimaryCtxRetain", &[0]), active()), (context, 1));
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.ok("cuStreamSynchronize", &[PER_THREAD]);
    // It was retained twice.
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
    cuda.ok("cuCtxSynchronize", &[]);
}

fn the_cpu_reaches_managed_memory(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let at = cuda.get("cuMemAllocManaged", &[SIZE, 1]);
    let bytes: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
    cuda.ok("cuMemsetD8_v2", &[at, 7, SIZE]);
    cuda.ok("cuCtxSynchronize", &[]);
    // SAFETY: memory of this size, which nothing else uses.
    let seen = unsafe {
        let seen = (bytes.read_volatile(), bytes.add(SIZE - 1).read_volatile());
        bytes.write_volatile(9);
        seen
    };
    let mut read = [0u8; 2];
    cuda.ok("cuMemcpyDtoH_v2", &[read.as_mut_ptr().addr(), at, read.len()]);
    assert_eq!((seen, read), ((7, 7), [9, 7]));
    // The memory is the host's as well, also for a copy.
    let other = cuda.get("cuMemAlloc_v2", &[SIZE]);
    cuda.ok("cuMemcpyHtoD_v2", &[other, at, SIZE]);
    const IS_MANAGED: usize = 8;
    for (address, expected) in [(at, 1), (other, 0)] {
        assert_eq!(cuda.get("cuPointerGetAttribute", &[IS_MANAGED, address]), expected);
    }
    cuda.refuses("cuMemAllocManaged", &[(&raw mut read).addr(), SIZE, 0], INVALID_VALUE);
    cuda.ok("cuMemFree_v2", &[at]);
    cuda.ok("cuMemFree_v2", &[other]);
}

fn page_locked_memory_has_a_device_address(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    const DEVICEMAP: usize = 2;
    let at = cuda.get("cuMemHostAlloc", &[SIZE, DEVICEMAP]);
    assert_eq!(cuda.get("cuMemHostGetDevicePointer_v2", &[at, 0]), at);
    let mut out = 0usize;
    cuda.refuses("cuMemHostGetDevicePointer_v2", &[(&raw mut out).addr(), at, 1], INVALID_VALUE);
    cuda.ok("cuMemFreeHost", &[at]);
    cuda.refuses("cuMemHostGetDevicePointer_v2", &[(&raw mut out).addr(), at, 0], INVALID_VALUE);
}
