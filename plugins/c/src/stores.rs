//! What contents are kept in while memory is suspended.

use crate::status::{Answer, Failure};
use gpu_vmm::{AnyBackend, BackingStore, Bytes, StagingRing};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many threads copy at a time.
const THREADS: usize = 2;

/// Where contents can be kept. What is slow to make is made when first needed, and kept for the next time.
#[derive(Debug, Default)]
pub(crate) struct Stores(Mutex<Made>);

#[derive(Debug, Default)]
pub(crate) struct Made {
    ring: Option<Arc<StagingRing<AnyBackend>>>,
    pinned: Vec<BackingStore<AnyBackend>>,
}

impl Stores {
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
