//! The region itself, while nobody else works on it.

use crate::shared::{Inside, Shared};
use crate::thread::Registration;
use gpu_vmm_core::{Backend, Region};
use gpu_vmm_sync::MutexGuard;
use std::ops::{Deref, DerefMut};

/// The region in a [`GrowingRegion`](crate::GrowingRegion), while neither the thread nor anybody else works on it. All of
/// its operations can be used; what they change counts when this is dropped.
///
/// What is mapped ahead is in it: its [`end`](Region::end) is behind the growing region's. Memory that
/// [`grow_with`](Region::grow_with) appends lies behind that and counts as mapped ahead, and
/// [`suspend_into`](Region::suspend_into) hands over memory that was mapped ahead too.
#[derive(Debug)]
pub struct RegionGuard<'a, B: Backend> {
    shared: &'a Shared<B>,
    // They are dropped in this order: the thread only tries for the lock.
    inside: MutexGuard<'a, Inside<B>>,
    _ask: Asks<'a>,
}

impl<'a, B: Backend> RegionGuard<'a, B> {
    /// Waits for the region.
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

/// Asks for the work when it is dropped.
#[derive(Debug)]
pub(crate) struct Asks<'a>(pub(crate) &'a Registration);

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        self.0.ask();
    }
}
