//! A region that several have, tensors among them.

use crate::driver::{Backend, WaitFor};
use crate::memory::BackingStore;
use crate::region::{Growth, Region, Resumed, Shrunk, Suspended};
use crate::types::{Bytes, Detail, Error, Lock, Operation, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

/// A region that tensors have a share in. Clones are the same region; it is dropped with the last of them and of the
/// [tensors](SharedRegion::dlpack).
///
/// It allows only those changes of the region that leave the tensors right, and one thread at a time.
#[derive(Debug)]
pub struct SharedRegion<B: Backend>(Arc<Shared<B>>);

#[derive(Debug)]
struct Shared<B: Backend> {
    /// How many tensors there are. It goes up under the lock and down without: a deleter never waits for it.
    exports: AtomicUsize,
    region: Lock<Region<B>>,
}

impl<B: Backend> Clone for SharedRegion<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> SharedRegion<B> {
    /// Takes a region that tensors are to be made of.
    #[must_use]
    pub fn new(region: Region<B>) -> Self {
        Self(Arc::new(Shared { exports: AtomicUsize::new(0), region: Lock::new(region) }))
    }

    /// Lets the region be looked at, while nobody changes it. A closure that calls the same `SharedRegion` waits for itself,
    /// but for [`SharedRegion::exports`]; it may drop tensors.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    pub fn with<R>(&self, look: impl FnOnce(&Region<B>) -> R) -> Result<R> {
        Ok(look(&*self.lock(Operation::LockRegion)?))
    }

    /// Grows at the same address: [`Region::grow_to`]. Tensors stay as they are.
    ///
    /// # Errors
    ///
    /// Those of [`Region::grow_to`]; [`Detail::Forked`]. The region is as before.
    pub fn grow_to(&self, size: Bytes) -> Result<Growth> {
        self.lock(Operation::Grow)?.grow_to(size)
    }

    /// Shrinks from the end: [`Region::shrink_to`].
    ///
    /// # Errors
    ///
    /// [`Detail::Exported`] while a tensor of the region exists, whichever part it shows; those of [`Region::shrink_to`];
    /// [`Detail::Forked`]. The region is as before.
    pub fn shrink_to(&self, size: Bytes, done: WaitFor<'_>) -> Result<Shrunk> {
        self.lock_unexported(Operation::Shrink)?.shrink_to(size, done)
    }

    /// Shrinks although tensors of the region may exist. Their consumers must not use elements behind the new end any more.
    ///
    /// # Errors
    ///
    /// Those of [`Region::shrink_to`]; [`Detail::Forked`].
    pub fn shrink_exported_to(&self, size: Bytes, done: WaitFor<'_>) -> Result<Shrunk> {
        self.lock(Operation::Shrink)?.shrink_to(size, done)
    }

    /// Gives the memory back and keeps the addresses: [`Region::suspend`].
    ///
    /// # Errors
    ///
    /// [`Detail::Exported`] while a tensor of the region exists; those of [`Region::suspend`]; [`Detail::Forked`].
    pub fn suspend(&self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.lock_unexported(Operation::Suspend)?.suspend(store, done)
    }

    /// Suspends although tensors of the region may exist. They can be used again after [`SharedRegion::resume`]; until then
    /// their consumers must not touch the memory. `done` must cover the work that they have queued.
    ///
    /// # Errors
    ///
    /// Those of [`Region::suspend`]; [`Detail::Forked`].
    pub fn suspend_exported(&self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.lock(Operation::Suspend)?.suspend(store, done)
    }

    /// Brings memory and contents back, at the same address: [`Region::resume`].
    ///
    /// # Errors
    ///
    /// Those of [`Region::resume`]; [`Detail::Forked`]. The region is still suspended.
    pub fn resume(&self) -> Result<Resumed> {
        self.lock(Operation::Resume)?.resume()
    }

    /// Copies bytes from the host into the region: [`Region::write`]. Tensors show them.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write`]; [`Detail::Forked`].
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        self.lock(Operation::Write)?.write(offset, bytes)
    }

    /// Copies bytes from the region to the host: [`Region::read`].
    ///
    /// # Errors
    ///
    /// Those of [`Region::read`]; [`Detail::Forked`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        self.lock(Operation::Read)?.read(offset, bytes)
    }

    /// How many tensors of the region there are.
    #[must_use]
    pub fn exports(&self) -> usize {
        self.0.exports.load(Ordering::Acquire)
    }

    /// Takes the region out again, where nobody else has it.
    ///
    /// # Errors
    ///
    /// Itself, where there is a clone or a tensor.
    pub fn try_into_region(self) -> Result<Region<B>, Self> {
        let shared = Arc::try_unwrap(self.0).map_err(Self)?;
        Ok(shared.region.into_inner())
    }

    /// The region, for one call.
    pub(super) fn lock(&self, operation: Operation) -> Result<MutexGuard<'_, Region<B>>> {
        self.0.region.lock(operation)
    }

    /// The region, for one call that takes memory away. No tensor is made while it is locked.
    fn lock_unexported(&self, operation: Operation) -> Result<MutexGuard<'_, Region<B>>> {
        let region = self.lock(operation)?;
        match self.exports() {
            0 => Ok(region),
            count => Err(Error::new(operation, Detail::Exported { count })),
        }
    }

    /// A share in the region for a tensor. The region is locked, so that nobody who takes memory away has just found no tensor.
    pub(super) fn export(&self, _locked: &MutexGuard<'_, Region<B>>) -> Export<B> {
        self.0.exports.fetch_add(1, Ordering::Relaxed);
        Export(Arc::clone(&self.0))
    }
}

/// A tensor's share in a region.
#[derive(Debug)]
pub(super) struct Export<B: Backend>(Arc<Shared<B>>);

impl<B: Backend> Drop for Export<B> {
    fn drop(&mut self) {
        // What was done with the tensor is done before memory is taken away.
        self.0.exports.fetch_sub(1, Ordering::Release);
    }
}
