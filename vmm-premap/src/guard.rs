//! The locked region.

use crate::shared::{Inside, Shared};
use crate::sync::MutexGuard;
use crate::thread::Registration;
use gpu_vmm_core::{Backend, Region};
use std::ops::{Deref, DerefMut};

/// The region in a [`GrowingRegion`](crate::GrowingRegion), locked for the premap thread and for other threads.
///
/// All operations of a region can be used. Their changes take effect for the growing region when the guard is dropped.
///
/// The region includes the premapped memory: its [`end`](Region::end) lies behind the growing region's. Memory that
/// [`grow_with`](Region::grow_with) appends lies behind the premapped memory and counts as premapped.
/// [`suspend_into`](Region::suspend_into) also moves premapped memory to its list.
///
/// A region that is put in the place of the first one (`std::mem::swap`) becomes the growing region's, with its address and end. No memory
/// is mapped in advance for a [plain](Region::is_plain) one.
///
/// # Thread safety
///
/// While a thread has the guard, every other call that needs the region waits for it, growth included, and the premap thread leaves
/// the region alone. The guard must be dropped on its thread, which must not lock the same region again before.
#[derive(Debug)]
pub struct RegionGuard<'a, B: Backend> {
    shared: &'a Shared<B>,
    // The fields are dropped in this order: the thread only tries the lock, so it is asked after the lock is released.
    inside: MutexGuard<'a, Inside<B>>,
    _ask: Asks<'a>,
}

impl<'a, B: Backend> RegionGuard<'a, B> {
    /// Waits for the region and locks it.
    pub(crate) fn new(shared: &'a Shared<B>, registration: &'a Registration) -> Self {
        let inside = shared.inside();
        shared.close();
        Self { shared, inside, _ask: Asks(registration) }
    }
}

impl<B: Backend> Deref for RegionGuard<'_, B> {
    type Target = Region<B>;

    fn deref(&self) -> &Region<B> {
        &self.inside.region
    }
}

impl<B: Backend> DerefMut for RegionGuard<'_, B> {
    fn deref_mut(&mut self) -> &mut Region<B> {
        &mut self.inside.region
    }
}

impl<B: Backend> Drop for RegionGuard<'_, B> {
    fn drop(&mut self) {
        self.shared.settle(&self.inside);
    }
}

/// Asks the thread for work when it is dropped.
#[derive(Debug)]
pub(crate) struct Asks<'a>(pub(crate) &'a Registration);

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        self.0.ask();
    }
}
