//! Where the fake driver of `tests/fake-cuda` is loaded in the place of NVIDIA's driver, it counts the calls that are wrong.
#![allow(unsafe_code)]

use gpu_vmm_cuda::cudarc::driver::sys;

/// How many there were in this process; none by NVIDIA's own driver, which does not count.
pub(crate) fn violations() -> u64 {
    type Count = unsafe extern "C" fn() -> u64;
    // SAFETY: the driver is there, since the backend is open; the fake driver's function of this name gives a number.
    unsafe { sys::culib().get::<Count>(b"fake_cuda_violations").map_or(0, |count| count()) }
}
