//! Memory that is given back while its addresses stay, and what its contents are kept in.
//!
//! Unsafe, since it is called from C.
#![allow(unsafe_code)]

use crate::call::status;
use crate::pool::Pool;
use crate::status::{Answer, Status};
use crate::texts::{clear, give, give_if_wanted, object, optional, required};
use gpu_vmm::{Bytes, WaitFor};
use std::ffi::c_char;

impl Pool {
    /// Suspends a tag. Waits for the devices.
    pub(crate) fn suspend(&self, tag: &str, keep: Option<&str>) -> Answer<Bytes> {
        let mut stores = self.stores.lock();
        let store = stores.store(&self.backend, keep, || Ok(self.blocks.occupied(tag)?))?;
        Ok(self.blocks.suspend(tag, &store, WaitFor::all_devices())?)
    }
}

/// Whether a tag is suspended: then nothing is allocated with it, and nobody may use its blocks.
///
/// # Safety
///
/// `pool` is null or a pool, `tag` null or a string, `suspended` null or room for a bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_is_suspended(
    pool: *const Pool,
    tag: *const c_char,
    suspended: *mut bool,
) -> Status {
    // SAFETY: null or room for a bool, as the caller says.
    unsafe { clear(suspended) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (pool, tag) = (object("pool", pool)?, required("tag", tag)?);
            give("suspended", suspended, pool.blocks.is_suspended(tag)?)
        }
    })
}

/// Gives the memory of all blocks with a tag back to the driver and keeps their addresses; waits for the devices. Until
/// gpu_vmm_resume nothing is allocated with the tag, and nobody may use its blocks; they can be freed.
///
/// `keep` says where the contents go: null, nowhere; "host", ordinary memory; "pinned", page-locked memory, which is slow to
/// make the first time and fast from then on; "file", a file without a name in the folder for temporary files; "file:FOLDER",
/// in that one. `bytes`, how much memory went, may be null; 0 where the tag was suspended already.
///
/// # Safety
///
/// `pool` is null or a pool, `tag` and `keep` are null or strings, `bytes` null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_suspend(
    pool: *const Pool,
    tag: *const c_char,
    keep: *const c_char,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: as the caller says.
        let (pool, tag, keep) =
            unsafe { (object("pool", pool)?, required("tag", tag)?, optional("keep", keep)?) };
        let suspended = pool.suspend(tag, keep)?;
        // SAFETY: as the caller says.
        unsafe { give_if_wanted(bytes, suspended.0) };
        Ok(())
    })
}

/// Brings the memory of all blocks with a tag back, with its contents, at the same addresses. `bytes`, how much memory came,
/// may be null; 0 where the tag was not suspended. Where there is too little memory, what is not back yet stays suspended and
/// its contents safe.
///
/// # Safety
///
/// `pool` is null or a pool, `tag` null or a string, `bytes` null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_resume(pool: *const Pool, tag: *const c_char, bytes: *mut u64) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: as the caller says.
        let (pool, tag) = unsafe { (object("pool", pool)?, required("tag", tag)?) };
        let resumed = pool.blocks.resume(tag)?;
        // SAFETY: as the caller says.
        unsafe { give_if_wanted(bytes, resumed.0) };
        Ok(())
    })
}
