//! The state that a pool shares with its blocks.

use crate::core::Core;
use crate::last_freed::Last;
use crate::piece::Piece;
use crate::stream_order::StreamIndex;
use crate::tracking::Tracking;
use gpu_vmm_core::extend::{Process, pool_memory};
use gpu_vmm_core::{Backend, Detail, Error, Operation};
use gpu_vmm_premap::sync::{Mutex, MutexGuard, PoisonError, lock, try_lock};

/// The shared state. It lives as long as the pool or one of its blocks.
#[derive(Debug)]
pub(crate) struct Inner<B: Backend> {
    pub(crate) process: Process,
    core: Mutex<Core<B>>,
    pub(crate) last: Last<B>,
    pub(crate) tracking: Tracking,
}

impl<B: Backend> Inner<B> {
    pub(crate) fn new(core: Core<B>) -> Self {
        let tracking = Tracking::new(core.settings.debug, core.settings.plain);
        let last = Last::new(core.settings.keep.0 == u64::MAX);
        Self { process: Process::current(), core: Mutex::new(core), last, tracking }
    }

    /// Locks the core, and moves the block that was freed last into it. Returns an error in a forked child, where a thread
    /// that the child lacks may hold the lock.
    #[inline]
    pub(crate) fn core(&self, operation: Operation) -> Result<MutexGuard<'_, Core<B>>, Error> {
        self.process.check(operation)?;
        Ok(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Core<B>> {
        let mut core = lock(&self.core);
        if let Some(body) = self.last.take_any() {
            core.give(body.piece, body.index);
            body.count_in();
        }
        core
    }

    /// Locks the core if no other thread holds it, without the block that was freed last.
    pub(crate) fn try_core(&self) -> Option<MutexGuard<'_, Core<B>>> {
        try_lock(&self.core)
    }

    /// Moves the block that was freed last into the core, if the slot serves blocks like this piece.
    pub(crate) fn empty_slot_for(&self, piece: &Piece) {
        if self.last.serves(piece) {
            drop(self.lock());
        }
    }

    /// Frees a piece, in the process that created the pool.
    pub(crate) fn give(&self, piece: Piece, index: StreamIndex) {
        let mut core = self.lock();
        core.give(piece, index);
        core.keep_to_limit();
    }

    /// Ends the reuse of freed blocks without the core.
    pub(crate) fn close(&self) {
        self.last.close();
        drop(self.lock());
    }
}

impl<B: Backend> Drop for Inner<B> {
    /// Waits for the fences. The release of the addresses waits for the devices, at once or after a capture.
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        core.spaces.iter().for_each(|space| pool_memory::chunk_freed(space.region.range()));
        if !core.wait_for_fences() {
            // Some work may still use the memory: it stays until the process ends.
            core.spaces.drain(..).for_each(std::mem::forget);
            let reason = "a fence was not done and could not be waited for: the pool's memory stays until the process ends".into();
            core.backend.drop_log().record(Error::new(Operation::DropPool, Detail::Unsupported { reason }));
        } else if core.streams.is_any_capturing() {
            core.spaces.drain(..).for_each(|space| space.region.release_later());
        }
    }
}
