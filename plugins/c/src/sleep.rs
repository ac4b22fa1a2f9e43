//! Suspending and resuming the blocks of a tag.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::status;
use crate::pool::Pool;
use crate::status::{CallResult, Status};
use crate::texts::{clear, give, give_if_wanted, object, optional_os, required};
use gpu_vmm::{Bytes, WaitFor};
use std::ffi::{OsStr, c_char};

impl Pool {
    /// Suspends a tag after the devices have finished.
    pub(crate) fn suspend(&self, tag: &str, keep: Option<&OsStr>) -> CallResult<Bytes> {
        let contents = || Ok(self.blocks.occupied(tag)?);
        let suspend = |store: &_| self.blocks.suspend(tag, store, WaitFor::all_devices());
        Ok(self.stores.lock()?.save(&self.backend, keep, contents, suspend)??)
    }
}

/// Returns whether a tag is suspended. While it is, allocations under the tag fail, and nothing may use its blocks.
///
/// # Safety
///
/// `pool` is null or a pool. `tag` is null or a string. `suspended` is null or points to a writable bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_is_suspended(
    pool: *const Pool,
    tag: *const c_char,
    suspended: *mut bool,
) -> Status {
    // SAFETY: null or writable for a bool, as the caller guarantees.
    unsafe { clear(suspended) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (pool, tag) = (object("pool", pool)?, required("tag", tag)?);
            give("suspended", suspended, pool.blocks.is_suspended(tag)?)
        }
    })
}

/// Suspends a tag: waits for the devices, returns the memory of all blocks with the tag to the driver and keeps their addresses.
/// Until gpu_vmm_resume, allocations under the tag fail, and nothing may use its blocks. The blocks can be freed.
///
/// `keep` selects where the contents go: null discards them; "host" is ordinary memory, which gpu_vmm_resume frees; "host-kept" is
/// ordinary memory that stays for the next suspension, which is then faster; "pinned" is page-locked memory, which is slow to create
/// the first time, fast from then on, and stays as well; "file" is an unnamed file in the directory for temporary files;
/// "file:FOLDER" is one in that directory, and "files:FOLDERS" one in each of several directories, whose disks then work at the same
/// time: a list as in PATH, with colons between them, on Windows semicolons. Folders are any bytes on Unix, and UTF-8 elsewhere. If the host has too little available memory, the call
/// fails and the tag is not suspended. gpu_vmm_host_memory returns what has been taken, and gpu_vmm_trim_host frees what stays.
///
/// Contents pass through page-locked buffers, unless they go to page-locked memory: 8 MiB for each core that the process may use, at
/// most 16. GPU_VMM_COPY_THREADS sets another number.
///
/// `bytes` receives the number of bytes that were returned, 0 if the tag was suspended
/// already; it may be null.
///
/// # Safety
///
/// `pool` is null or a pool. `tag` and `keep` are null or strings. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_suspend(
    pool: *const Pool,
    tag: *const c_char,
    keep: *const c_char,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, tag, keep) =
            unsafe { (object("pool", pool)?, required("tag", tag)?, optional_os("keep", keep)?) };
        let suspended = pool.suspend(tag, keep)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, suspended.0) };
        Ok(())
    })
}

/// Resumes a tag: maps memory at the same addresses for all blocks with the tag and restores their contents. `bytes` receives the
/// number of bytes that were mapped, 0 if the tag was not suspended; it may be null. If there is too little memory, the blocks
/// that are not back yet stay suspended, and their contents are kept.
///
/// # Safety
///
/// `pool` is null or a pool. `tag` is null or a string. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_resume(pool: *const Pool, tag: *const c_char, bytes: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, tag) = unsafe { (object("pool", pool)?, required("tag", tag)?) };
        let resumed = pool.blocks.resume(tag)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, resumed.0) };
        Ok(())
    })
}

/// Returns the size of the host memory that the pool has taken for the contents of suspended tags: what holds contents, what stays
/// for the next suspension, and the page-locked buffers through which contents pass.
///
/// # Safety
///
/// `pool` is null or a pool. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_host_memory(pool: *const Pool, bytes: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("bytes", bytes, object("pool", pool)?.stores.lock()?.host_memory().0) }
    })
}

/// Frees the host memory that stays for the next suspension. Contents of suspended tags stay as they are. `bytes` receives the number
/// of bytes that were freed; it may be null.
///
/// # Safety
///
/// `pool` is null or a pool. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_trim_host(pool: *const Pool, bytes: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let freed = unsafe { object("pool", pool)? }.stores.lock()?.trim()?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, freed.0) };
        Ok(())
    })
}
