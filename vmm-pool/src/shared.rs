//! The state that a pool shares with its blocks.

use crate::block_memory::BlockMemory;
use crate::chunk::Chunk;
use crate::core::Core;
use crate::last_freed::Last;
use crate::ledger::Ledger;
use crate::stream_order::StreamIndex;
use crate::tracking::Tracking;
use gpu_vmm_core::extend::{BlockOwner, NoWaits, Process, pool_memory};
use gpu_vmm_core::{
    Backend, BackingChange, BackingObserver, BackingOutcome, Detail, Error, Operation, PhysicalMemory, Region,
};
use gpu_vmm_premap::sync::{Condvar, Mutex, MutexGuard, PoisonError, lock};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{OnceLock, Weak};

/// The shared state. It lives as long as the pool or one of its blocks.
#[derive(Debug)]
pub(crate) struct Inner<B: Backend> {
    pub(crate) process: Process,
    /// Held by the thread whose turn it is to map. Locked before the core.
    pub(crate) mapping: Mutex<()>,
    core: Mutex<Core<B>>,
    /// Wakes the threads that wait in [`Inner::core_when`]: a thread has ended what it did without the core.
    changed: Condvar,
    pub(crate) last: Last<B>,
    pub(crate) tracking: Tracking,
    /// The pool, for its regions: [`gpu_vmm_core::at`] asks it for the block at an address.
    block_owner: OnceLock<Weak<dyn BlockOwner>>,
}

impl<B: Backend> Inner<B> {
    pub(crate) fn new(core: Core<B>) -> Self {
        let tracking = Tracking::new(core.settings.debug, core.settings.plain);
        let last = Last::new(core.settings.keep.0 == u64::MAX);
        let (process, core) = (Process::current(), Mutex::new(core));
        let (changed, block_owner) = (Condvar::new(), OnceLock::new());
        Self { process, mapping: Mutex::new(()), core, changed, last, tracking, block_owner }
    }

    /// Names the pool to its regions.
    pub(crate) fn set_block_owner(&self, owner: Weak<dyn BlockOwner>) {
        // It is set once, before the first region.
        let _ = self.block_owner.set(owner);
    }

    /// Makes a region known as the pool's.
    pub(crate) fn own(&self, mut region: Region<B>) -> Region<B> {
        if let Some(owner) = self.block_owner.get() {
            region.set_block_owner(Weak::clone(owner));
        }
        region
    }

    /// Locks the core, and moves the block that was freed last into it. Returns an error in a forked child, where a thread
    /// that the child lacks may hold the lock.
    #[inline]
    pub(crate) fn core(&self, operation: Operation) -> Result<CoreGuard<'_, B>, Error> {
        self.process.check(operation)?;
        Ok(CoreGuard::new(self, self.lock(), false))
    }

    /// Locks the core for the thread whose turn it is to map. What leaves the core is freed after its turn.
    pub(crate) fn core_in_turn(&self, operation: Operation) -> Result<CoreGuard<'_, B>, Error> {
        self.process.check(operation)?;
        Ok(CoreGuard::new(self, self.lock(), true))
    }

    /// Locks the core once `is_so` returns true. Waits without the lock until then: a thread that changes what `is_so` looks at must call
    /// [`Inner::wake`].
    pub(crate) fn core_when(
        &self,
        operation: Operation,
        is_so: impl Fn(&Core<B>) -> bool,
    ) -> Result<CoreGuard<'_, B>, Error> {
        self.process.check(operation)?;
        let mut core = self.lock();
        while !is_so(&core) {
            core = self.changed.wait(core).unwrap_or_else(PoisonError::into_inner);
            self.take_last(&mut core);
        }
        Ok(CoreGuard::new(self, core, false))
    }

    /// Wakes the threads that wait until the core is as they need it.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Core<B>> {
        let mut core = lock(&self.core);
        self.take_last(&mut core);
        core
    }

    /// Moves the block that was freed last into the core.
    #[inline]
    fn take_last(&self, core: &mut Core<B>) {
        if let Some(body) = self.last.take_any() {
            core.give(body.piece, body.index);
            body.count_in();
            // Above the budget, freed memory returns to the driver.
            core.end_free();
        }
    }

    /// Moves the block that was freed last into the core, if the slot serves blocks like this piece.
    pub(crate) fn empty_slot_for(&self, piece: &BlockMemory) {
        if self.last.serves(piece) {
            drop(CoreGuard::new(self, self.lock(), false));
        }
    }

    /// Frees a piece, in the process that created the pool. Returns the locked core.
    pub(crate) fn give(&self, piece: BlockMemory, index: StreamIndex) -> CoreGuard<'_, B> {
        let mut core = CoreGuard::new(self, self.lock(), false);
        core.give(piece, index);
        core.end_free();
        self.last.refuse(core.exceeds_budget());
        core
    }

    /// Ends the reuse of freed blocks without the core.
    pub(crate) fn close(&self) {
        self.last.close();
        drop(CoreGuard::new(self, self.lock(), false));
    }
}

/// The locked core, under which nothing waits and nothing is mapped. Memory that leaves the core meanwhile is freed after it was
/// unlocked.
#[derive(Debug)]
pub(crate) struct CoreGuard<'a, B: Backend> {
    // Dropped in this order.
    core: MutexGuard<'a, Core<B>>,
    _no_waits: NoWaits,
    leaving: Leaving<'a, B>,
}

impl<'a, B: Backend> CoreGuard<'a, B> {
    #[inline]
    fn new(inner: &'a Inner<B>, core: MutexGuard<'a, Core<B>>, is_turn: bool) -> Self {
        let leaving = Leaving { inner, is_turn, left: None };
        Self { core, _no_waits: NoWaits::and_no_mapping(), leaving }
    }
}

impl<B: Backend> Deref for CoreGuard<'_, B> {
    type Target = Core<B>;

    #[inline]
    fn deref(&self) -> &Core<B> {
        &self.core
    }
}

impl<B: Backend> DerefMut for CoreGuard<'_, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core<B> {
        &mut self.core
    }
}

impl<B: Backend> Drop for CoreGuard<'_, B> {
    #[inline]
    fn drop(&mut self) {
        let core = &self.core;
        let ends = !self.leaving.is_turn && (core.trims || !core.leaving.is_empty());
        if ends || core.is_off_ledger() || !core.released.is_empty() {
            self.leave();
        }
    }
}

impl<B: Backend> CoreGuard<'_, B> {
    /// Takes out what leaves the core.
    #[cold]
    fn leave(&mut self) {
        let Self { core, leaving, .. } = self;
        let mut left = Box::new(LeavingMemory {
            memory: std::mem::take(&mut core.released),
            gone: core.note_in_ledger(),
            chunks: Vec::new(),
            trims: false,
        });
        if left.gone > 0 {
            core.ongoing.begin();
        }
        if !leaving.is_turn {
            left.chunks = std::mem::take(&mut core.leaving);
            left.trims = std::mem::take(&mut core.trims);
        }
        leaving.left = Some(left);
    }
}

/// What has left the core. Other threads that need memory wait until the chunks are free.
#[derive(Debug)]
struct Leaving<'a, B: Backend> {
    inner: &'a Inner<B>,
    /// True for the thread whose turn it is to map: it releases memory at once, and all else after its turn.
    is_turn: bool,
    /// None in most cases. In a box, since functions pass the locked core to each other.
    left: Option<Box<LeavingMemory<B>>>,
}

/// Memory that has left the core, and chunks.
#[derive(Debug)]
struct LeavingMemory<B: Backend> {
    memory: Vec<PhysicalMemory<B>>,
    /// The bytes that the ledger still counts.
    gone: u64,
    chunks: Vec<Chunk<B>>,
    /// True if free memory is above a limit.
    trims: bool,
}

impl<B: Backend> Drop for Leaving<'_, B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.end(*left);
        }
    }
}

impl<B: Backend> Leaving<'_, B> {
    /// Frees what has left.
    #[cold]
    fn end(&self, LeavingMemory { memory, gone, chunks, trims }: LeavingMemory<B>) {
        drop(memory);
        if !chunks.is_empty() {
            drop(chunks);
            lock(&self.inner.core).ongoing.end();
            self.inner.wake();
        }
        if gone > 0 {
            let mut core = lock(&self.inner.core);
            core.ledger.give_back(gone);
            core.ongoing.end();
            drop(core);
            self.inner.wake();
        }
        if trims && let Err(error) = self.inner.trim_to_limit() {
            lock(&self.inner.core).backend.drop_log().record(error);
        }
    }
}

impl<B: Backend> Drop for Inner<B> {
    /// Waits for the fences. The release of the addresses waits for the devices, at once or after a capture.
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        let chunks = core.spaces.iter().filter(|space| space.reserved > 0);
        chunks.for_each(|space| pool_memory::chunk_freed(space.range()));
        // The memory stays until the process ends if a fence panics.
        let spaces = ManuallyDrop::new(std::mem::take(&mut core.spaces));
        if !core.wait_for_fences() {
            // Some work may still use the memory: it stays until the process ends.
            let reason = "a fence was not done and could not be waited for: the pool's memory stays until the process ends".into();
            core.backend.drop_log().record(Error::new(Operation::DropPool, Detail::Unsupported { reason }));
            // And counts until then.
            std::mem::forget(gpu_vmm_premap::sync::Arc::clone(&core.ledger));
            return;
        }
        core.spaces = ManuallyDrop::into_inner(spaces);
        let Core { spaces, streams, ledger, .. } = core;
        let captures = streams.is_any_capturing();
        // While the backend still watches the pool's streams: a capture may have begun since.
        for mut region in spaces.drain(..).filter_map(|mut space| space.take_region()) {
            if ledger.source().is_some() {
                // It outlives the pool if its devices cannot be waited for.
                region.on_backing_change(Counts { _ledger: gpu_vmm_premap::sync::Arc::clone(ledger) });
            }
            if captures {
                region.release_later();
            }
        }
    }
}

/// Lets the memory of a region count in the ledger until it was released, for the source of the budget.
struct Counts {
    _ledger: gpu_vmm_premap::sync::Arc<Ledger>,
}

impl BackingObserver for Counts {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}
