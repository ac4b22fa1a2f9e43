//! State that ends with the last clone of a pool, although blocks may live on.

use crate::core::{Core, Shortage};
use crate::error::ExhaustedResource;
use crate::kept_blocks::KeptBlocks;
use crate::settings::Callbacks;
use crate::shared::Inner;
use crate::stream_order::StreamIndex;
use crate::tags::Tag;
use crate::thread_cache::{ThreadCache, ThreadCacheRef};
use crate::{PoolError, PoolStats, Unfreed};
use gpu_vmm_core::extend::event;
use gpu_vmm_core::{Backend, Bytes, DeviceId, Error, Operation, Properties};
use gpu_vmm_premap::PremapThread;
use gpu_vmm_premap::extend::Registration;
use gpu_vmm_premap::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gpu_vmm_premap::sync::thread::available_parallelism;
use std::sync::{Arc, Weak};

/// The most thread caches of a pool.
const THREAD_CACHES: usize = 64;

#[derive(Debug)]
pub(crate) struct Owner<B: Backend> {
    pub(crate) inner: Arc<Inner<B>>,
    pub(crate) backend: B,
    /// The properties of the memory, for calls without the core, but for the device.
    memory: Properties,
    /// The device, which a move changes.
    device: AtomicU32,
    /// The size of the device's memory.
    total: AtomicU64,
    thread_caches: Box<[ThreadCacheRef<B>]>,
    calls: Callbacks,
    /// The registration with the premap thread.
    premap: Option<Registration>,
    /// Blocks that callers hold by address only.
    pub(crate) kept_blocks: KeptBlocks<B>,
}

impl<B: Backend> Owner<B> {
    pub(crate) fn new(
        backend: &B,
        inner: Inner<B>,
        (memory, total): (Properties, Bytes),
        calls: Callbacks,
        premap: Option<&PremapThread>,
    ) -> Self {
        let (inner, backend) = (Arc::new(inner), backend.clone());
        let threads = available_parallelism().map_or(1, usize::from);
        let count = threads.next_power_of_two().min(THREAD_CACHES);
        let thread_caches = (0..count).map(|_| ThreadCacheRef::new(ThreadCache::new(&inner))).collect();
        let foresee: Weak<Inner<B>> = Arc::downgrade(&inner);
        let premap = premap.map(|thread| thread.register(foresee));
        let (device, total) = (AtomicU32::new(memory.device.0), AtomicU64::new(total.0));
        let kept_blocks = KeptBlocks::new();
        Self { inner, backend, memory, device, total, thread_caches, calls, premap, kept_blocks }
    }

    /// Returns the properties of the memory.
    pub(crate) fn memory(&self) -> Properties {
        Properties { device: DeviceId(self.device.load(Ordering::Relaxed)), ..self.memory }
    }

    /// Returns the size of the device's memory.
    pub(crate) fn total(&self) -> Bytes {
        Bytes(self.total.load(Ordering::Relaxed))
    }

    /// Notes that the memory is on another device. The caller holds the core.
    pub(crate) fn note_moved(&self, device: DeviceId, total: Bytes) {
        self.device.store(device.0, Ordering::Relaxed);
        self.total.store(total.0, Ordering::Relaxed);
    }

    /// Returns the thread cache of a thread.
    #[inline]
    pub(crate) fn thread_cache(&self, thread: usize) -> &ThreadCacheRef<B> {
        &self.thread_caches[thread & (self.thread_caches.len() - 1)]
    }

    pub(crate) fn thread_caches(&self) -> impl Iterator<Item = &ThreadCacheRef<B>> {
        self.thread_caches.iter()
    }

    /// Empties the thread caches into the core, for the tags and streams that `wanted` accepts.
    pub(crate) fn settle(
        &self,
        operation: Operation,
        wanted: impl Fn(u16, StreamIndex) -> bool,
    ) -> Result<(), Error> {
        self.inner.process.check(operation)?;
        for thread_cache in &self.thread_caches {
            if thread_cache.lock().pieces().next().is_none() {
                continue;
            }
            // The core first: no other thread finds the pieces neither here nor there.
            let mut core = self.inner.core(operation)?;
            let pieces = thread_cache.lock().empty(&wanted);
            pieces.into_iter().for_each(|(piece, stream)| core.give(piece, stream));
        }
        Ok(())
    }

    /// Ends tags without handles, as far as all of their blocks were freed and the work on them is done.
    pub(crate) fn end_tags(&self, operation: Operation) -> Result<(), Error> {
        let unused = self.inner.core(operation)?.tags.unused();
        if unused.is_empty() {
            return Ok(());
        }
        self.settle(operation, |tag, _| unused.contains(&tag))?;
        let mapping = self.inner.mapping(operation)?;
        let mut core = mapping.core()?;
        core.poll();
        // The memory at an address that cannot be unmapped is not lost: the tag ends later.
        if let Err(error) = mapping.release_spaces(core, |space| unused.contains(&space.tag)) {
            self.backend.drop_log().record(error);
        }
        mapping.core()?.end_tags();
        Ok(())
    }

    /// Stops serving a stream, in the hold of the core in which the caller has decided that: after the hold, the number may serve
    /// another stream. No request that begins later finds it in a thread cache.
    pub(crate) fn retire(&self, core: &mut Core<B>, index: StreamIndex) {
        for thread_cache in &self.thread_caches {
            let pieces = thread_cache.lock().forget(index);
            pieces.into_iter().for_each(|(piece, stream)| core.give(piece, stream));
        }
        self.inner.last.forget();
        core.streams.retire(index);
    }

    /// Wakes the premap thread, if there is one: a request has just used memory up.
    pub(crate) fn ask_premap(&self) {
        if let Some(premap) = &self.premap {
            premap.ask();
        }
    }

    /// Calls the out-of-memory callback. Returns true if the request should be tried again.
    pub(crate) fn call_for_memory(&self, size: Bytes) -> bool {
        self.calls.out_of_memory.as_ref().is_some_and(|call| call(&self.stats(), size))
    }

    /// Returns the error of a request that failed with a shortage. `kinds` has the statistics of all kinds, if there are several.
    pub(crate) fn tell(
        &self,
        operation: Operation,
        shortage: Shortage,
        (requested, tag): (Bytes, &Tag),
        kinds: impl FnOnce() -> Box<[(Properties, PoolStats)]>,
    ) -> Error {
        let (budget, of_environment, limit, is_capturing) = match self.inner.core(operation) {
            Ok(mut core) => {
                let is_of_memory = !matches!(
                    shortage,
                    Shortage::Addresses { .. }
                        | Shortage::Taken(_)
                        | Shortage::Suspended
                        | Shortage::Moving
                        | Shortage::Other(_)
                );
                let is_capturing = is_of_memory && core.streams.is_any_capturing();
                let ledger = &core.ledger;
                (ledger.budget(), ledger.is_of_environment(), core.settings.addresses, is_capturing)
            }
            Err(error) => return error,
        };
        // After the question about captures, which the statistics count as a driver call.
        let (device, name, stats) = (self.memory().device, tag.name.clone(), Box::new(self.stats()));
        let source_of = |source| match source {
            ExhaustedResource::Budget(budget) if of_environment => {
                ExhaustedResource::BudgetOfEnvironment(budget)
            }
            source => source,
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
                let source = Box::new(source_of(source));
                let kinds = kinds();
                Error::of_extension(
                    operation,
                    PoolError::OutOfMemory {
                        requested,
                        device,
                        tag: name,
                        stats,
                        kinds,
                        source,
                        is_capturing,
                    },
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
            Shortage::Taken(obstacle) => Error::of_extension(operation, obstacle.error(name)),
            Shortage::Suspended | Shortage::Moving => {
                Error::of_extension(operation, PoolError::Suspended { tag: name })
            }
            Shortage::Other(error) => error,
            Shortage::Caches | Shortage::Mapping | Shortage::Space(_) | Shortage::Chunk(_) => {
                Error::of_extension(
                    operation,
                    PoolError::OutOfMemory {
                        requested,
                        device,
                        tag: name,
                        stats,
                        kinds: kinds(),
                        source: Box::new(source_of(ExhaustedResource::Budget(budget))),
                        is_capturing,
                    },
                )
            }
        }
    }

    /// Returns the live blocks if the pool tracks them; none in a forked child.
    pub(crate) fn unfreed(&self) -> Vec<Unfreed> {
        if self.inner.process.is_this() { self.inner.tracking.all() } else { Vec::new() }
    }
}

impl<B: Backend> Drop for Owner<B> {
    fn drop(&mut self) {
        if !self.inner.process.is_this() {
            // A thread of the parent may have been changing them at the fork.
            std::mem::forget(std::mem::take(&mut self.thread_caches));
            return;
        }
        let unfreed = self.calls.unfreed.as_ref().map(|_| self.unfreed()).unwrap_or_default();
        // Blocks that are kept by address end with the pool.
        self.kept_blocks.clear();
        self.inner.close();
        for thread_cache in &self.thread_caches {
            let pieces = thread_cache.close();
            // It cannot fail: the process is the one that created the pool.
            let Ok(mut core) = self.inner.core(Operation::DropPool) else { return };
            pieces.into_iter().for_each(|(piece, stream)| core.give(piece, stream));
        }
        // Last: a callback that panics leaves nothing open.
        if let Some(report) = self.calls.unfreed.as_ref().filter(|_| !unfreed.is_empty()) {
            report(&unfreed);
        }
    }
}
