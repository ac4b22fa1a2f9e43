//! Announcing captures of streams, and memory that was kept because of one.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::handles::{Kind, Object};
use crate::status::Status;
use crate::texts::{clear, give_box, give_if_wanted, object, take_object};
use gpu_vmm::{AnyBackend, Backend as _, Operation};

/// An announced capture of a stream into a graph.
#[derive(Debug)]
pub struct Capture(AnyBackend);

// SAFETY: no other type has the kind.
unsafe impl Object for Capture {
    const KIND: Kind = Kind::Capture;
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.0.deferred().capture_ends();
    }
}

/// Announces a capture of a stream into a graph that is about to begin. Returns when no running call would invalidate it any more. End
/// it with gpu_vmm_capture_end, once the capture has ended.
///
/// Vendors refuse to wait for a device while one of its streams captures, and the attempt invalidates the capture. Until the end, calls
/// of all of the vendor's backends in this process that need to wait for a device return GPU_VMM_BUSY, and the memory of regions and
/// pools that are freed is kept, still mapped. Without an announcement the library knows captures of the streams that its pools serve,
/// and on CUDA of blocking streams.
///
/// Several captures can be announced at a time. One whose end is forgotten lasts until the process ends.
///
/// # Safety
///
/// `backend` is null or an open backend. `capture` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_capture_begin(
    backend: *const Backend,
    capture: *mut *mut Capture,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(capture) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            give_box("capture", capture, || {
                backend.deferred().process().check(Operation::BeginCapture)?;
                backend.deferred().capture_begins();
                Ok(Capture(backend.clone()))
            })
        }
    })
}

/// Ends the announcement of a capture. Kept memory is freed by the next call that waits for its devices or finds too little memory, or by
/// gpu_vmm_collect. Null does nothing.
///
/// Returns GPU_VMM_INVALID_ARGUMENT if it was ended already; nothing changes then.
///
/// # Safety
///
/// No other thread ends the same announcement.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_capture_end(capture: *mut Capture) -> Status {
    status(|| {
        if !capture.is_null() {
            // SAFETY: guaranteed by the caller.
            drop(unsafe { take_object("capture", capture) }?);
        }
        Ok(())
    })
}

/// Waits for the devices of all memory that was kept because of a capture, and frees it. `freed` receives its size in bytes and may be
/// null.
///
/// Returns GPU_VMM_BUSY if a capture still forbids the wait; the memory is still kept.
///
/// # Safety
///
/// `backend` is null or an open backend. `freed` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_collect(backend: *const Backend, freed: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(freed) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            give_if_wanted(freed, backend.deferred().collect(backend)?.0);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::backend::{gpu_vmm_close, gpu_vmm_open};
    use crate::region::{
        gpu_vmm_region_free, gpu_vmm_region_grow, gpu_vmm_region_new, gpu_vmm_region_shrink,
    };
    use crate::status::{GPU_VMM_BUSY, GPU_VMM_INVALID_ARGUMENT, GPU_VMM_OK};
    use std::ptr::null_mut;

    #[test]
    fn announced_captures_keep_memory_until_collected() {
        let (mut backend, mut first, mut second) = (null_mut(), null_mut(), null_mut());
        let (mut region, mut other, mut freed) = (null_mut(), null_mut(), 1);
        // SAFETY: the places are writable, and each object is freed after its last use.
        unsafe {
            assert_eq!(gpu_vmm_open(c"host".as_ptr(), &raw mut backend), GPU_VMM_OK);
            for region in [&raw mut region, &raw mut other] {
                assert_eq!(gpu_vmm_region_new(backend, 0, 2 << 20, region), GPU_VMM_OK);
                assert_eq!(gpu_vmm_region_grow(*region, 2 << 20), GPU_VMM_OK);
            }
            for capture in [&raw mut first, &raw mut second] {
                assert_eq!(gpu_vmm_capture_begin(backend, capture), GPU_VMM_OK);
            }
            gpu_vmm_region_free(region);
            assert_eq!(gpu_vmm_capture_end(first), GPU_VMM_OK);
            assert_eq!(gpu_vmm_capture_end(first), GPU_VMM_INVALID_ARGUMENT, "it was ended already");
            assert_eq!(
                gpu_vmm_region_shrink(other, 0, false, null_mut()),
                GPU_VMM_BUSY,
                "the other one lasts"
            );
            assert_eq!(gpu_vmm_collect(backend, &raw mut freed), GPU_VMM_BUSY);
            assert_eq!((freed, gpu_vmm_capture_end(second)), (0, GPU_VMM_OK));
            assert_eq!(gpu_vmm_collect(backend, &raw mut freed), GPU_VMM_OK);
            assert_eq!((freed, gpu_vmm_region_shrink(other, 0, false, null_mut())), (2 << 20, GPU_VMM_OK));
            assert_eq!(gpu_vmm_collect(backend, null_mut()), GPU_VMM_OK);
            assert_eq!(gpu_vmm_capture_end(null_mut()), GPU_VMM_OK);
            gpu_vmm_region_free(other);
            gpu_vmm_close(backend);
        }
    }
}
