//! The list of live blocks and where they were allocated, for programs that leak some.

use gpu_vmm_core::{Address, Bytes};
use gpu_vmm_sync::{Mutex, MutexGuard, PoisonError};
use std::collections::HashMap;
use std::panic::Location;

/// A block that was not freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfreed {
    /// Its first address.
    pub address: Address,
    /// The requested size.
    pub size: Bytes,
    /// The block's tag.
    pub tag: Box<str>,
    /// The place in the program that allocated it.
    pub allocated_at: &'static Location<'static>,
}

#[derive(Debug)]
pub(crate) struct Tracking {
    live: Option<Mutex<HashMap<u64, Unfreed>>>,
}

impl Tracking {
    pub(crate) fn new(on: bool) -> Self {
        Self { live: on.then(Mutex::default) }
    }

    /// Returns true if blocks are tracked.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.live.is_some()
    }

    fn live(&self) -> Option<MutexGuard<'_, HashMap<u64, Unfreed>>> {
        let live = self.live.as_ref()?;
        Some(live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    pub(crate) fn note(
        &self,
        address: Address,
        size: Bytes,
        tag: &str,
        allocated_at: &'static Location<'static>,
    ) {
        if let Some(mut live) = self.live() {
            live.insert(address.0, Unfreed { address, size, tag: tag.into(), allocated_at });
        }
    }

    #[cold]
    pub(crate) fn forget(&self, address: Address) {
        if let Some(mut live) = self.live() {
            live.remove(&address.0);
        }
    }

    /// Returns all live blocks, by address.
    pub(crate) fn all(&self) -> Vec<Unfreed> {
        let mut all: Vec<_> = self.live().map(|live| live.values().cloned().collect()).unwrap_or_default();
        all.sort_by_key(|one| one.address);
        all
    }
}
