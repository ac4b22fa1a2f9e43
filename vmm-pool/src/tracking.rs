//! The live blocks: a list of where they were allocated, for programs that leak some, and reports to a tool that checks accesses.

use gpu_vmm_core::extend::pool_memory;
use gpu_vmm_core::{Address, Bytes};
use gpu_vmm_premap::sync::{Mutex, MutexGuard, lock};
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
    is_on: bool,
}

impl Tracking {
    /// Creates the list if `on`. A tool sees blocks of plain allocations alone.
    pub(crate) fn new(on: bool, is_plain: bool) -> Self {
        Self { live: on.then(Mutex::default), is_on: on || is_plain && pool_memory::is_watched() }
    }

    /// Returns true if blocks are tracked or reported.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    fn live(&self) -> Option<MutexGuard<'_, HashMap<u64, Unfreed>>> {
        self.live.as_ref().map(lock)
    }

    #[cold]
    pub(crate) fn note(
        &self,
        address: Address,
        size: Bytes,
        tag: &str,
        allocated_at: &'static Location<'static>,
    ) {
        pool_memory::block_allocated(address, size);
        if let Some(mut live) = self.live() {
            live.insert(address.0, Unfreed { address, size, tag: tag.into(), allocated_at });
        }
    }

    #[cold]
    pub(crate) fn forget(&self, address: Address) {
        pool_memory::block_freed(address);
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
