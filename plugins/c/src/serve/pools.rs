//! Pools that get their budget from a server.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::status;
use crate::pool::Pool;
use crate::pool_server::{OPERATION, VARIABLE};
use crate::status::{CallResult, Status};
use crate::texts::{check_place, clear, give, give_if_wanted, object, required};
use gpu_vmm::serve::Quota;
use gpu_vmm::{AnyBackend, Bytes, Detail, Error};
use std::ffi::c_char;
use std::time::Duration;

/// Returns the pool's part of the budget.
fn quota(pool: &Pool) -> CallResult<&Quota<AnyBackend>> {
    pool.quota.as_ref().ok_or_else(|| {
        let reason = format!("no server grants the pool its budget; call gpu_vmm_set_pool_server or set {VARIABLE} before it is created");
        Error::new(OPERATION, Detail::Unsupported { reason }).into()
    })
}

/// Returns what a server has granted to a pool, in bytes, and whether the server is there: it may have ended, and the pool then keeps its
/// budget. Null places are not written.
///
/// Returns GPU_VMM_UNSUPPORTED for a pool without a server.
///
/// # Safety
///
/// `pool` is null or a pool. `granted` and `is_connected` are null or point to writable values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_granted(
    pool: *const Pool,
    granted: *mut u64,
    is_connected: *mut bool,
) -> Status {
    // SAFETY: null or writable, as the caller guarantees.
    unsafe {
        clear(granted);
        clear(is_connected);
    }
    status(|| {
        // SAFETY: guaranteed by the caller.
        let quota = quota(unsafe { object("pool", pool)? })?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            give_if_wanted(granted, quota.granted().0);
            give_if_wanted(is_connected, quota.is_connected());
        }
        Ok(())
    })
}

/// Reserves a part of the server's budget before it is used: waits until the server has granted `bytes` in all, up to `wait_ms`
/// milliseconds, and gives no part of that back until another call reserves less.
///
/// Returns GPU_VMM_OUT_OF_MEMORY if there is too little, GPU_VMM_PEER if the server is gone, and GPU_VMM_UNSUPPORTED for a pool
/// without a server.
///
/// # Safety
///
/// `pool` is null or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_reserve(pool: *const Pool, bytes: u64, wait_ms: u64) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let quota = quota(unsafe { object("pool", pool)? })?;
        Ok(quota.reserve(Bytes(bytes), Duration::from_millis(wait_ms))?)
    })
}

/// Tells the server that the memory of a tag can be suspended when other programs need it. Until gpu_vmm_pool_wake, the program does not use
/// the tag's blocks, on the host or by work on a device.
///
/// Returns GPU_VMM_NOT_FOUND if there is no such tag, and GPU_VMM_UNSUPPORTED for a pool without a server.
///
/// # Safety
///
/// `pool` is null or a pool. `tag` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_let_sleep(pool: *const Pool, tag: *const c_char) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, tag) = unsafe { (object("pool", pool)?, required("tag", tag)?) };
        Ok(quota(pool)?.let_sleep(tag)?)
    })
}

/// Makes a tag usable again that can sleep: its memory stays from now on, and comes back with its contents if it was suspended. Waits for
/// memory that other programs have. `bytes` receives the number of bytes that came back.
///
/// Returns the statuses of gpu_vmm_resume, and GPU_VMM_UNSUPPORTED for a pool without a server.
///
/// # Safety
///
/// `pool` is null or a pool. `tag` is null or a string. `bytes` points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_wake(pool: *const Pool, tag: *const c_char, bytes: *mut u64) -> Status {
    // SAFETY: null or writable, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        check_place("bytes", bytes)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let woken = quota(object("pool", pool)?)?.wake(required("tag", tag)?)?;
            give("bytes", bytes, woken.0)
        }
    })
}
