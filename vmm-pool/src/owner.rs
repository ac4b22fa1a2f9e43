//! What ends with the last clone of a pool, while blocks may go on.

use crate::builder::Callbacks;
use crate::core::Shortage;
use crate::error::OutOf;
use crate::inner::Inner;
use crate::lane::Lane;
use crate::raw::Raw;
use crate::tags::Tag;
use crate::{PoolError, Unfreed};
use gpu_vmm_core::{Backend, Bytes, DeviceId};
use std::sync::Arc;

/// The most lanes of a pool.
const LANES: usize = 64;

#[derive(Debug)]
pub(crate) struct Owner<B: Backend> {
    pub(crate) inner: Arc<Inner<B>>,
    pub(crate) device: DeviceId,
    lanes: Box<[Arc<Lane<B>>]>,
    calls: Callbacks,
    /// Blocks that were given up as addresses.
    pub(crate) raw: Raw<B>,
}

impl<B: Backend> Owner<B> {
    pub(crate) fn new(inner: Inner<B>, calls: Callbacks) -> Self {
        let device = inner.core().settings.device;
        let inner = Arc::new(inner);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let count = threads.next_power_of_two().min(LANES);
        let lanes = (0..count).map(|_| Arc::new(Lane::new(&inner))).collect();
        Self { inner, device, lanes, calls, raw: Raw::new() }
    }

    /// A thread's lane.
    #[inline]
    pub(crate) fn lane(&self, thread: usize) -> &Arc<Lane<B>> {
        &self.lanes[thread & (self.lanes.len() - 1)]
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane<B>>> {
        self.lanes.iter()
    }

    /// Brings what lies in front of threads into the common books, of the tags that are wanted.
    pub(crate) fn settle(&self, wanted: impl Fn(u16) -> bool) {
        for lane in &self.lanes {
            let pieces = lane.lock().empty(&wanted);
            if !pieces.is_empty() {
                let mut core = self.inner.core();
                pieces.into_iter().for_each(|(piece, stream)| core.give(piece, stream));
            }
        }
    }

    /// Asks the user for memory. True where it is worth trying again.
    pub(crate) fn call_for_memory(&self, size: Bytes) -> bool {
        self.calls.out_of_memory.as_ref().is_some_and(|call| call(&self.account(), size))
    }

    /// The error of a request that could not be served.
    pub(crate) fn tell(&self, shortage: Shortage, requested: Bytes, tag: &Tag) -> PoolError {
        let (device, name) = (self.device, tag.name.clone());
        match shortage {
            Shortage::Memory(source) => PoolError::OutOfMemory {
                requested,
                device,
                tag: name,
                account: Box::new(self.account()),
                source: Box::new(source),
            },
            Shortage::Addresses { used, reserved } => PoolError::OutOfAddresses {
                requested,
                tag: name,
                used: Bytes(used),
                reserved: Bytes(reserved),
                limit: self.inner.core().settings.addresses,
                account: Box::new(self.account()),
            },
            Shortage::Suspended => PoolError::Suspended { operation: "allocate", tag: name },
            Shortage::Other(error) => error.into(),
            Shortage::Caches => PoolError::OutOfMemory {
                requested,
                device,
                tag: name,
                account: Box::new(self.account()),
                source: Box::new(OutOf::Budget(self.inner.core().settings.budget)),
            },
        }
    }

    /// The blocks that there are, where the pool remembers them.
    pub(crate) fn unfreed(&self) -> Vec<Unfreed> {
        self.inner.tracking.all()
    }
}

impl<B: Backend> Drop for Owner<B> {
    fn drop(&mut self) {
        if let Some(report) = &self.calls.unfreed
            && self.inner.process.is_this()
        {
            let unfreed = self.unfreed();
            if !unfreed.is_empty() {
                report(&unfreed);
            }
        }
    }
}
