//! Chunks outside the core: before they serve requests, and after they have served the last one. Drivers wait in the calls that
//! allocate, overwrite and free them.
#![allow(unsafe_code)] // promises that no work uses the memory

use gpu_vmm_core::extend::pool_memory;
use gpu_vmm_core::{Backend, Region, WaitFor};

/// The memory of a chunk that no space has. Dropping it frees the memory, which no work may use any more.
#[derive(Debug)]
pub(crate) struct Chunk<B: Backend>(Option<Region<B>>);

impl<B: Backend> Chunk<B> {
    pub(crate) const fn new(region: Region<B>) -> Self {
        Self(Some(region))
    }

    /// Returns the memory for a space.
    pub(crate) fn into_region(mut self) -> Option<Region<B>> {
        self.0.take()
    }
}

impl<B: Backend> Drop for Chunk<B> {
    fn drop(&mut self) {
        let Some(region) = self.0.take() else { return };
        let (range, log) = (region.range(), region.backend().clone());
        // Before another thread can get the addresses.
        pool_memory::chunk_freed(range);
        // SAFETY: no block lies in a chunk outside the core, and the work on its memory is done.
        if let Err(error) = region.close(unsafe { WaitFor::nothing() }) {
            log.drop_log().record(error);
        }
    }
}
