//! What ends with the last clone of a pool, while blocks may go on.

use crate::core::Shortage;
use crate::error::OutOf;
use crate::kept_blocks::KeptBlocks;
use crate::settings::Callbacks;
use crate::shared::Inner;
use crate::stream_order::StreamIndex;
use crate::tags::Tag;
use crate::thread_cache::ThreadCacheRef;
use crate::trace::event;
use crate::{PoolError, Unfreed};
use gpu_vmm_core::{Backend, Bytes, DeviceId, Error, Operation};
use gpu_vmm_premap::PremapThread;
use gpu_vmm_premap::extend::Registration;
use gpu_vmm_sync::thread::available_parallelism;
use std::sync::{Arc, Weak};

/// The most thread caches of a pool.
const THREAD_CACHES: usize = 64;

#[derive(Debug)]
pub(crate) struct Owner<B: Backend> {
    pub(crate) inner: Arc<Inner<B>>,
    pub(crate) backend: B,
    pub(crate) device: DeviceId,
    /// All memory of the device.
    pub(crate) total: Bytes,
    thread_caches: Box<[ThreadCacheRef<B>]>,
    calls: Callbacks,
    /// With the thread that maps ahead.
    premap: Option<Registration>,
    /// Blocks that were given up as addresses.
    pub(crate) kept_blocks: KeptBlocks<B>,
}

impl<B: Backend> Owner<B> {
    pub(crate) fn new(
        backend: &B,
        inner: Inner<B>,
        (device, total): (DeviceId, Bytes),
        calls: Callbacks,
        premap: Option<&PremapThread>,
    ) -> Self {
        let (inner, backend) = (Arc::new(inner), backend.clone());
        let threads = available_parallelism().map_or(1, usize::from);
        let count = threads.next_power_of_two().min(THREAD_CACHES);
        let thread_caches = (0..count).map(|_| ThreadCacheRef::new(&inner)).collect();
        let foresee: Weak<Inner<B>> = Arc::downgrade(&inner);
        let premap = premap.map(|thread| thread.register(foresee));
        Self { inner, backend, device, total, thread_caches, calls, premap, kept_blocks: KeptBlocks::new() }
    }

    /// A thread's thread cache.
    #[inline]
    pub(crate) fn thread_cache(&self, thread: usize) -> &ThreadCacheRef<B> {
        &self.thread_caches[thread & (self.thread_caches.len() - 1)]
    }

    pub(crate) fn thread_caches(&self) -> impl Iterator<Item = &ThreadCacheRef<B>> {
        self.thread_caches.iter()
    }

    /// Brings what lies in front of threads into the common books, of the tags and streams that are wanted.
    pub(crate) fn settle(
        &self,
        operation: Operation,
        wanted: impl Fn(u16, StreamIndex) -> bool,
    ) -> Result<(), Error> {
        self.inner.process.check(operation)?;
        for thread_cache in &self.thread_caches {
            let pieces = thread_cache.lock().empty(&wanted);
            if !pieces.is_empty() {
                let mut core = self.inner.core(operation)?;
                pieces.into_iter().for_each(|(piece, stream)| core.give(piece, stream));
            }
        }
        Ok(())
    }

    /// Serves a stream no longer.
    pub(crate) fn retire(&self, operation: Operation, index: StreamIndex) -> Result<(), Error> {
        self.inner.process.check(operation)?;
        for thread_cache in &self.thread_caches {
            thread_cache.lock().forget(index);
        }
        self.settle(operation, |_, of| of == index)?;
        self.inner.core(operation)?.streams.retire(index);
        Ok(())
    }

    /// Has memory be mapped ahead, where that is wanted: some was just used up.
    pub(crate) fn ask_ahead(&self) {
        if let Some(premap) = &self.premap {
            premap.ask();
        }
    }

    /// Asks the user for memory. True where it is worth trying again.
    pub(crate) fn call_for_memory(&self, size: Bytes) -> bool {
        self.calls.out_of_memory.as_ref().is_some_and(|call| call(&self.stats(), size))
    }

    /// The error of a request that could not be served.
    pub(crate) fn tell(
        &self,
        operation: Operation,
        shortage: Shortage,
        requested: Bytes,
        tag: &Tag,
    ) -> Error {
        let (device, name, stats) = (self.device, tag.name.clone(), Box::new(self.stats()));
        // Not asked for beside the statistics, which take the same lock.
        let (budget, limit) = match self.inner.core(operation) {
            Ok(core) => (core.settings.budget, core.settings.addresses),
            Err(error) => return error,
        };
        match shortage {
            Shortage::Memory(source) => {
                event!(
                    WARN,
                    "out of memory",
                    operation = operation.name(),
                    requested = requested.0,
                    live = stats.live,
                    kept = stats.kept,
                    held = stats.held
                );
                let source = Box::new(source);
                Error::of_extension(
                    operation,
                    PoolError::OutOfMemory { requested, device, tag: name, stats, source },
                )
            }
            Shortage::Addresses { used, reserved } => Error::of_extension(
                operation,
                PoolError::OutOfAddresses {
                    requested,
                    tag: name,
                    used: Bytes(used),
                    reserved: Bytes(reserved),
                    limit,
                    stats,
                },
            ),
            Shortage::Suspended => Error::of_extension(operation, PoolError::Suspended { tag: name }),
            Shortage::Other(error) => error,
            Shortage::Caches => Error::of_extension(
                operation,
                PoolError::OutOfMemory {
                    requested,
                    device,
                    tag: name,
                    stats,
                    source: Box::new(OutOf::Budget(budget)),
                },
            ),
        }
    }

    /// The live blocks, if the pool remembers them; none in a forked child.
    pub(crate) fn unfreed(&self) -> Vec<Unfreed> {
        if self.inner.process.is_this() { self.inner.tracking.all() } else { Vec::new() }
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
        // Blocks that are kept by their addresses end with the pool.
        self.kept_blocks.clear();
        if self.inner.process.is_this() {
            // It is this process.
            let _ = self.settle(Operation::DropPool, |_, _| true);
            self.thread_caches.iter().for_each(ThreadCacheRef::give_up);
        }
    }
}
