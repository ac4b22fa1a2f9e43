//! Functions that gpu-vmm-hip never calls on mapped memory, because of what they do there.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{HipError, call, crash, require};
use crate::state::holding;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;

/// # Safety
///
/// As HIP has it: `handle` is null or for one handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemRetainAllocationHandle(handle: *mut *mut c_void, at: *mut c_void) -> HipError {
    call(|state| {
        require(!handle.is_null() && !at.is_null())?;
        if holding(&state.plain, at.addr()).is_some() {
            crash(format_args!("hipMemRetainAllocationHandle({at:p}), which is hipMalloc's"));
        }
        let found = state.reservation(at.addr()).and_then(|reservation| reservation.mapping(at.addr()));
        let raw = found.ok_or(HipError::INVALID_VALUE)?.1.handle;
        if state.bucket.retain_counts {
            state.handle("hipMemRetainAllocationHandle", raw).references += 1;
        }
        // SAFETY: not null, so for one handle.
        unsafe { *handle = without_provenance_mut(raw) };
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: `handle` is null or for 64 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipIpcGetMemHandle(handle: *mut [u8; 64], at: *mut c_void) -> HipError {
    call(|state| {
        require(!handle.is_null() && !at.is_null())?;
        state.place(at.addr()).and_then(|place| place.mapping(at.addr())).ok_or(HipError::INVALID_VALUE)?;
        // Success for mapped memory too, with bytes that nobody can open.
        // SAFETY: not null, so for 64 bytes.
        unsafe { *handle = [0xff; 64] };
        Ok(())
    })
}
