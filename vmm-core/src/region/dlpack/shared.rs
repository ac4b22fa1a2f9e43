//! A region that clones and tensors share.

use crate::driver::{Backend, WaitFor};
use crate::memory::BackingStore;
use crate::region::observer::is_running;
use crate::region::{BackingObserver, Growth, ObserverId, Region, Resumed, Shrunk, Suspended};
use crate::types::{Bytes, Detail, Error, Lock, Operation, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

/// A region from which tensors can be exported. Clones are the same region. The last clone or [tensor](TensorRegion::dlpack) that
/// is dropped drops the region.
///
/// It allows only changes of the region that keep its tensors valid. Each call locks the region for other threads.
#[derive(Debug)]
pub struct TensorRegion<B: Backend>(Arc<Shared<B>>);

#[derive(Debug)]
struct Shared<B: Backend> {
    /// The number of tensors. It is increased with the region locked and decreased without the lock: a deleter never waits for
    /// it.
    exports: AtomicUsize,
    region: Lock<Region<B>>,
}

impl<B: Backend> Clone for TensorRegion<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> TensorRegion<B> {
    /// Creates a shared region from a region.
    #[must_use]
    pub fn new(region: Region<B>) -> Self {
        Self(Arc::new(Shared { exports: AtomicUsize::new(0), region: Lock::new(region) }))
    }

    /// Calls `look` with the region, which no other thread changes meanwhile.
    ///
    /// A closure that calls the same `TensorRegion` waits for itself, except in [`TensorRegion::exports`]. It may drop tensors.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    pub fn with<R>(&self, look: impl FnOnce(&Region<B>) -> R) -> Result<R> {
        Ok(look(&*self.lock(Operation::LockRegion)?))
    }

    /// Calls `change` with the region for a change that its tensors survive, or that `force` allows.
    ///
    /// The caller must keep every tensor valid: the closure must not move the region or unmap memory that a tensor shows, unless
    /// `force` is true and no consumer uses the memory meanwhile.
    ///
    /// # Errors
    ///
    /// [`Detail::Exported`] while a tensor of the region exists, unless `force` is true; [`Detail::Forked`];
    /// [`Detail::Notifying`] in an observer if the region is in use; the error of `change`.
    pub fn change<R>(
        &self,
        operation: Operation,
        force: bool,
        change: impl FnOnce(&mut Region<B>) -> Result<R>,
    ) -> Result<R> {
        let mut region =
            if force { self.lock_in_place(operation)? } else { self.lock_unexported(operation)? };
        change(&mut region)
    }

    /// Adds an observer as [`Region::on_backing_change`] does.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`]; [`Detail::Notifying`] in an observer if the region is in use.
    pub fn on_backing_change(&self, observer: impl BackingObserver) -> Result<ObserverId> {
        Ok(self.lock(Operation::LockRegion)?.on_backing_change(observer))
    }

    /// Removes an observer as [`Region::remove_observer`] does.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`]; [`Detail::Notifying`] in an observer if the region is in use.
    pub fn remove_observer(&self, id: ObserverId) -> Result<bool> {
        // Dropped after the region is unlocked: its destructor may call the region.
        let removed = self.lock(Operation::LockRegion)?.take_observer(id);
        Ok(removed.is_some())
    }

    /// Grows at the same address, as [`Region::grow_to`] does. Tensors stay valid.
    ///
    /// # Errors
    ///
    /// [`Detail::Exported`] while a tensor of a [plain](Region::is_plain) region exists, which moves when it grows. Those of [`Region::grow_to`]; [`Detail::Forked`]. The region is as before.
    pub fn grow_to(&self, size: Bytes) -> Result<Growth> {
        let operation = Operation::Grow;
        let region = self.lock(operation)?;
        let mut region = if size > region.end() { self.in_place(operation, region)? } else { region };
        region.grow_to(size)
    }

    /// Shrinks from the end, as [`Region::shrink_to`] does.
    ///
    /// # Errors
    ///
    /// [`Detail::Exported`] while a tensor of the region exists, whatever part it shows; the errors of [`Region::shrink_to`];
    /// [`Detail::Forked`]. The region is as before.
    pub fn shrink_to(&self, size: Bytes, done: WaitFor<'_>) -> Result<Shrunk> {
        self.lock_unexported(Operation::Shrink)?.shrink_to(size, done)
    }

    /// Shrinks even if tensors of the region exist. Their consumers must no longer use elements behind the new end.
    ///
    /// # Errors
    ///
    /// Those of [`Region::shrink_to`]; [`Detail::Exported`] for a [plain](Region::is_plain) region, which would move;
    /// [`Detail::Forked`].
    pub fn shrink_exported_to(&self, size: Bytes, done: WaitFor<'_>) -> Result<Shrunk> {
        self.lock_in_place(Operation::Shrink)?.shrink_to(size, done)
    }

    /// Releases the memory and keeps the addresses, as [`Region::suspend`] does.
    ///
    /// # Errors
    ///
    /// [`Detail::Exported`] while a tensor of the region exists; the errors of [`Region::suspend`]; [`Detail::Forked`].
    pub fn suspend(&self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.lock_unexported(Operation::Suspend)?.suspend(store, done)
    }

    /// Suspends the region even if tensors of it exist.
    ///
    /// They can be used again after [`TensorRegion::resume`]; until then their consumers must not access the memory. `done` must
    /// cover the work that they have queued.
    ///
    /// # Errors
    ///
    /// Those of [`Region::suspend`]; [`Detail::Forked`].
    pub fn suspend_exported(&self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.lock(Operation::Suspend)?.suspend(store, done)
    }

    /// Restores memory and contents at the same address, as [`Region::resume`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::resume`]; [`Detail::Forked`]. The region is still suspended.
    pub fn resume(&self) -> Result<Resumed> {
        self.lock(Operation::Resume)?.resume()
    }

    /// Copies bytes from the host into the region, as [`Region::write`] does. Tensors show the new bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write`]; [`Detail::Forked`].
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        self.lock(Operation::Write)?.write(offset, bytes)
    }

    /// Copies bytes from the region to the host, as [`Region::read`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::read`]; [`Detail::Forked`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        self.lock(Operation::Read)?.read(offset, bytes)
    }

    /// Returns the number of tensors of the region.
    #[must_use]
    pub fn exports(&self) -> usize {
        self.0.exports.load(Ordering::Acquire)
    }

    /// Returns the region if it has no other clone and no tensor.
    ///
    /// # Errors
    ///
    /// `self`, if a clone or a tensor exists.
    pub fn try_into_region(self) -> Result<Region<B>, Self> {
        let shared = Arc::try_unwrap(self.0).map_err(Self)?;
        Ok(shared.region.into_inner())
    }

    /// Locks the region for one call.
    pub(super) fn lock(&self, operation: Operation) -> Result<MutexGuard<'_, Region<B>>> {
        if !is_running() {
            return self.0.region.lock(operation);
        }
        // The calling thread may hold the lock, or the owner of the lock may wait for one that this thread holds.
        self.0.region.try_lock(operation)?.ok_or_else(|| Error::new(operation, Detail::Notifying))
    }

    /// Locks the region for one call that removes memory. No tensor can be exported until the lock is released.
    fn lock_unexported(&self, operation: Operation) -> Result<MutexGuard<'_, Region<B>>> {
        self.unexported(operation, self.lock(operation)?)
    }

    /// Locks the region for one call that keeps the addresses, unless the region is plain and moves.
    fn lock_in_place(&self, operation: Operation) -> Result<MutexGuard<'_, Region<B>>> {
        self.in_place(operation, self.lock(operation)?)
    }

    /// Refuses a plain region with tensors.
    fn in_place<'a>(
        &self,
        operation: Operation,
        region: MutexGuard<'a, Region<B>>,
    ) -> Result<MutexGuard<'a, Region<B>>> {
        if region.is_plain() { self.unexported(operation, region) } else { Ok(region) }
    }

    /// Refuses a region with tensors.
    fn unexported<'a>(
        &self,
        operation: Operation,
        region: MutexGuard<'a, Region<B>>,
    ) -> Result<MutexGuard<'a, Region<B>>> {
        match self.exports() {
            0 => Ok(region),
            count => Err(Error::new(operation, Detail::Exported { count })),
        }
    }

    /// Counts a tensor. The region must be locked, so that no call that removes memory has just counted no tensor.
    pub(super) fn export(&self, _locked: &MutexGuard<'_, Region<B>>) -> Export<B> {
        self.0.exports.fetch_add(1, Ordering::Relaxed);
        Export(Arc::clone(&self.0))
    }
}

/// A tensor's reference to its region.
#[derive(Debug)]
pub(super) struct Export<B: Backend>(Arc<Shared<B>>);

impl<B: Backend> Drop for Export<B> {
    fn drop(&mut self) {
        // The consumer's work with the tensor happens before memory is removed.
        self.0.exports.fetch_sub(1, Ordering::Release);
    }
}
