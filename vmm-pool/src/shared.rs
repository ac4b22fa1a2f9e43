//! What a pool and its blocks have in common.

use crate::core::Core;
use crate::last_freed::{Freed, Last};
use crate::tracking::Tracking;
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Backend, Detail, Error, Operation};
use gpu_vmm_sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Lives as long as the pool or one of its blocks does.
#[derive(Debug)]
pub(crate) struct Inner<B: Backend> {
    pub(crate) process: Process,
    core: Mutex<Core<B>>,
    pub(crate) last: Last,
    pub(crate) tracking: Tracking,
}

impl<B: Backend> Inner<B> {
    pub(crate) fn new(core: Core<B>) -> Self {
        let tracking = Tracking::new(core.settings.debug);
        let last = Last::new(core.settings.keep.0 == u64::MAX);
        Self { process: Process::current(), core: Mutex::new(core), last, tracking }
    }

    /// The books, in the process that made the pool: in a forked child another thread may have had them. What was freed last
    /// is in them then.
    #[inline]
    pub(crate) fn core(&self, operation: Operation) -> Result<MutexGuard<'_, Core<B>>, Error> {
        self.process.check(operation)?;
        Ok(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Core<B>> {
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Freed { piece, index, .. }) = self.last.take(|_| true) {
            core.give(piece, index);
        }
        core
    }

    /// The books, if no other thread has them, without what was freed last.
    pub(crate) fn try_core(&self) -> Option<MutexGuard<'_, Core<B>>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes what a block has left, in the process that made the pool.
    pub(crate) fn give(&self, freed: Freed) {
        if self.last.put(freed) {
            return;
        }
        let mut core = self.lock();
        // What lay there is in the books now.
        if !self.last.put(freed) {
            core.give(freed.piece, freed.index);
        }
        core.keep_to_limit();
    }
}

impl<B: Backend> Drop for Inner<B> {
    /// Waits for the fences. The devices are waited for where the addresses are given back, at once or after a capture.
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !core.wait_for_fences() {
            // Something may still use the memory: it stays until the process ends.
            core.spaces.drain(..).for_each(std::mem::forget);
            let reason = "a fence was not done and could not be waited for, so that all memory stays".into();
            core.backend.drop_log().record(Error::new(Operation::DropPool, Detail::Unsupported { reason }));
        } else if core.streams.is_any_capturing() {
            core.spaces.drain(..).for_each(|space| space.region.release_later());
        }
    }
}
