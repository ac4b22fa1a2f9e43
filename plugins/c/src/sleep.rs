//! Memory that is given back while its addresses stay, and what its contents are kept in.
//!
//! Unsafe, since it is called from C.
#![allow(unsafe_code)]

use crate::call::status;
use crate::pool::Pool;
use crate::status::{Answer, Failure, Status};
use crate::texts::{clear, give, give_if_wanted, object, optional, required};
use gpu_vmm::{AnyBackend, BackingStore, Bytes, StagingRing, WaitFor};
use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many threads copy at a time.
const THREADS: usize = 2;

/// Where contents can be kept. What is slow to make is made when first needed, and kept for the next time.
#[derive(Debug, Default)]
pub(crate) struct Stashes(Mutex<Made>);

#[derive(Debug, Default)]
pub(crate) struct Made {
    ring: Option<Arc<StagingRing<AnyBackend>>>,
    pinned: Vec<BackingStore<AnyBackend>>,
}

impl Stashes {
    /// To be held until contents are in the store that was chosen: nobody else is to choose the same room.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Made {
    /// What `keep` names, for as much as `contents` says.
    pub(crate) fn store(
        &mut self,
        backend: &AnyBackend,
        keep: Option<&str>,
        contents: impl FnOnce() -> Answer<Bytes>,
    ) -> Answer<BackingStore<AnyBackend>> {
        Ok(match keep {
            None => BackingStore::nothing(),
            Some("host") => BackingStore::pageable(self.ring(backend)?),
            Some("pinned") => self.pinned(backend, contents()?)?,
            Some("file") => BackingStore::file(std::env::temp_dir(), self.ring(backend)?),
            Some(other) => match other.strip_prefix("file:") {
                Some(folder) => BackingStore::file(PathBuf::from(folder), self.ring(backend)?),
                None => {
                    return Err(Failure::invalid(format!(
                        "suspend: contents cannot be kept in {other:?}; give null (nowhere), \"host\", \"pinned\", \"file\" or \
                         \"file:FOLDER\""
                    )));
                }
            },
        })
    }

    fn ring(&mut self, backend: &AnyBackend) -> Answer<Arc<StagingRing<AnyBackend>>> {
        if let Some(ring) = &self.ring {
            return Ok(Arc::clone(ring));
        }
        let made = Arc::new(StagingRing::new(backend, THREADS, StagingRing::<AnyBackend>::CHUNK)?);
        Ok(Arc::clone(self.ring.insert(made)))
    }

    /// Page-locked memory that has room: the smallest there is, or else new memory. It stays for the next time, since making it
    /// and giving it back take longer than copying.
    fn pinned(&mut self, backend: &AnyBackend, most: Bytes) -> Answer<BackingStore<AnyBackend>> {
        let fitting = self.pinned.iter().filter(|store| store.free() >= Some(most));
        if let Some(store) = fitting.min_by_key(|store| store.free()) {
            return Ok(store.clone());
        }
        // What nothing is in and was too small goes first: there may not be room for both.
        self.pinned.retain(|store| store.free() != store.capacity());
        let store = BackingStore::pinned(backend, most.max(Bytes(1)))?;
        self.pinned.push(store.clone());
        Ok(store)
    }
}

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
