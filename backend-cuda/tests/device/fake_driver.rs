//! The fake driver of `tests/fake-cuda`, when it is loaded instead of NVIDIA's, counts invalid calls.
#![allow(unsafe_code)]

use gpu_vmm_cuda::cudarc::driver::sys;

/// Returns the number of invalid calls in this process; 0 with NVIDIA's own driver, which does not count.
pub(crate) fn violations() -> u64 {
    type Count = unsafe extern "C" fn() -> u64;
    // SAFETY: the driver is loaded, since the backend is open; the fake driver's function of this name returns a number.
    unsafe { sys::culib().get::<Count>(b"fake_cuda_violations").map_or(0, |count| count()) }
}
