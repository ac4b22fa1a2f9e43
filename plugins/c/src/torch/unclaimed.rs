//! Restored blocks that wait for the requests that claim them.

use crate::status::CallResult;
use gpu_vmm::extend::Lock;
use gpu_vmm::pool::Block;
use gpu_vmm::{Address, AnyBackend, Bytes, Operation, Stream};
use rustc_hash::FxHashMap;
use std::cell::Cell;

/// The restored blocks of a device that were not claimed yet, by address.
#[derive(Debug, Default)]
pub(super) struct Unclaimed(Lock<FxHashMap<Address, Block<AnyBackend>>>);

thread_local! {
    /// The block that this thread has claimed.
    static NEXT: Cell<Option<Address>> = const { Cell::new(None) };
}

impl Unclaimed {
    pub(super) fn new(blocks: Vec<Block<AnyBackend>>) -> Self {
        Self(Lock::new(blocks.into_iter().map(|block| (block.address(), block)).collect()))
    }

    /// Returns the block that this thread has claimed, if it has space for the request. A claim is for one request.
    #[cold]
    pub(super) fn claimed(
        &self,
        size: Bytes,
        stream: Stream<'static>,
    ) -> gpu_vmm::Result<Option<Block<AnyBackend>>> {
        // Fails while the thread ends, which has no claim any more.
        let Some(address) = NEXT.try_with(Cell::take).ok().flatten() else { return Ok(None) };
        let mut blocks = self.0.lock(Operation::Allocate)?;
        if blocks.get(&address).is_none_or(|block| block.capacity() < size) {
            return Ok(None);
        }
        let found = blocks.remove(&address);
        drop(blocks);
        let Some(mut block) = found else { return Ok(None) };
        // It belongs to the default stream. Work of the stream of the request may be the last that uses it.
        if block.stream() != stream {
            block.record_use(stream)?;
        }
        Ok(Some(block))
    }

    pub(super) fn has(&self, address: Address) -> CallResult<bool> {
        Ok(self.0.lock(Operation::FindBlock)?.contains_key(&address))
    }

    /// Frees all blocks that were not claimed.
    pub(super) fn clear(&self) -> CallResult {
        // Freed without the lock, which a request may wait for.
        let unclaimed = std::mem::take(&mut *self.0.lock(Operation::Free)?);
        drop(unclaimed);
        Ok(())
    }
}

/// Sets the claim of this thread, or none.
pub(super) fn claim(address: Option<Address>) {
    // Fails while the thread ends: it allocates nothing then.
    let _ = NEXT.try_with(|next| next.set(address));
}
