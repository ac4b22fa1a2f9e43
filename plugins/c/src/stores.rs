//! The stores that keep the contents of suspended memory.

use crate::call::held;
use crate::status::{Answer, Failure};
use gpu_vmm::extend::Lock;
use gpu_vmm::{AnyBackend, BackingStore, Bytes, Operation, StagingRing};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

/// The number of threads that copy at a time.
pub(crate) const THREADS: usize = 2;

/// The stores of a pool or a region. Stores that are slow to create are created on first use and kept.
#[derive(Debug, Default)]
pub(crate) struct Stores(Lock<Made>);

#[derive(Debug, Default)]
pub(crate) struct Made {
    ring: Option<Arc<StagingRing<AnyBackend>>>,
    pinned: Vec<BackingStore<AnyBackend>>,
}

impl Stores {
    /// Locks the stores. The caller holds the lock until the contents are in the chosen store, so that no other thread chooses
    /// the same free space.
    pub(crate) fn lock(&self) -> Answer<MutexGuard<'_, Made>> {
        held(&self.0, Operation::KeepContents)
    }
}

impl Made {
    /// Returns the store that `keep` names, with space for the number of bytes that `contents` returns.
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
                        "suspend: keep is {other:?}; expected null (nowhere), \"host\", \"pinned\", \"file\" or \
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

    /// Returns the smallest page-locked store with enough free space, or else a new one. The store stays for the next
    /// suspension, because creating and releasing page-locked memory takes longer than copying.
    fn pinned(&mut self, backend: &AnyBackend, most: Bytes) -> Answer<BackingStore<AnyBackend>> {
        let fitting = self.pinned.iter().filter(|store| store.free() >= Some(most));
        if let Some(store) = fitting.min_by_key(|store| store.free()) {
            return Ok(store.clone());
        }
        // Release empty stores, which are too small, first: the host may not have memory for both.
        self.pinned.retain(|store| store.free() != store.capacity());
        let store = BackingStore::pinned(backend, most.max(Bytes(1)))?;
        self.pinned.push(store.clone());
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use gpu_vmm::Vendor;

    #[test]
    fn a_pinned_store_is_replaced_by_a_larger_one_while_it_is_empty() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut made = Made::default();
        let capacities = |made: &Made| made.pinned.iter().map(BackingStore::capacity).collect::<Vec<_>>();
        made.pinned(&host, Bytes::mib(1)).unwrap();
        let small = capacities(&made);
        assert_eq!(small.len(), 1);
        // A store that is exactly large enough serves again, and so does one for less.
        for size in [Bytes::mib(1), Bytes::mib(1) - Bytes(1), Bytes::ZERO] {
            made.pinned(&host, size).unwrap();
            assert_eq!(capacities(&made), small, "{size}");
        }
        made.pinned(&host, Bytes::mib(1) + Bytes(1)).unwrap();
        let large = capacities(&made);
        assert!(large.len() == 1 && large[0] > small[0], "{large:?}");
    }
}
