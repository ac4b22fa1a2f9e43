//! The replayed calls, for one version of cubecl.

use super::cubecl_ir::MemoryDeviceProperties;
use super::cubecl_server::config::{CubeClRuntimeConfig, RuntimeConfig as _};
use super::cubecl_server::logging::ServerLogger;
use super::cubecl_server::memory_management::{
    ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use super::cubecl_server::server::IoError;
use super::cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use super::gpu_vmm_cubecl::{PoolMemory, PoolStorage};
use crate::{ALIGNMENT, DEVICE, MEMORY, Measured};
use gpu_vmm::pool::Pool;
use gpu_vmm::{Backend, Bytes};
use gpu_vmm_replay::{Allocator, Held, Options, ReplayError, Streams, Trace, TraceFence, replay};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A storage without memory, which counts what all storages together allocate.
#[derive(Default)]
struct Counting {
    sizes: HashMap<StorageId, u64>,
    total: Arc<Total>,
}

/// The memory that is allocated, now and at the peak, and the number of calls.
#[derive(Default)]
struct Total {
    now: AtomicU64,
    peak: AtomicU64,
    calls: AtomicU64,
}

impl ComputeStorage for Counting {
    type Resource = ();

    fn alignment(&self) -> usize {
        ALIGNMENT as usize
    }

    fn get(&mut self, _: &StorageHandle) -> Result<(), IoError> {
        Ok(())
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let id = StorageId::new();
        self.sizes.insert(id, size);
        let now = self.total.now.fetch_add(size, Ordering::Relaxed) + size;
        self.total.peak.fetch_max(now, Ordering::Relaxed);
        self.total.calls.fetch_add(1, Ordering::Relaxed);
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        let size = self.sizes.remove(&id).unwrap_or(0);
        self.total.now.fetch_sub(size, Ordering::Relaxed);
        self.total.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        self.sizes.values().sum()
    }
}

/// The memory management of one stream.
trait Memory: Send {
    fn reserve(&mut self, size: u64, failures: &mut ErrorGraph) -> Result<ManagedMemoryHandle, IoError>;
}

impl<S: ComputeStorage> Memory for MemoryManagement<S> {
    fn reserve(&mut self, size: u64, failures: &mut ErrorGraph) -> Result<ManagedMemoryHandle, IoError> {
        Self::reserve(self, size, PageUpdate::Allow, failures)
    }
}

impl<B: Backend> Memory for PoolMemory<B> {
    fn reserve(&mut self, size: u64, failures: &mut ErrorGraph) -> Result<ManagedMemoryHandle, IoError> {
        Self::reserve(self, size, PageUpdate::Allow, failures)
    }
}

/// A memory management for each stream, as in cubecl's servers.
struct Managed<M, F> {
    streams: Vec<Mutex<(M, ErrorGraph)>>,
    account: F,
}

impl<M: Memory, F: Fn() -> (Held, u64)> Managed<M, F> {
    fn new(count: usize, memory: impl Fn(u16) -> M, account: F) -> Self {
        let stream = |stream| Mutex::new((memory(stream), ErrorGraph::default()));
        Self { streams: (0..count as u16).map(stream).collect(), account }
    }

    fn stream(&self, stream: u16) -> MutexGuard<'_, (M, ErrorGraph)> {
        self.streams[usize::from(stream)].lock().expect("no thread panics")
    }
}

impl<M: Memory, F: Fn() -> (Held, u64) + Sync> Allocator for Managed<M, F> {
    type Block = ManagedMemoryHandle;

    fn allocate(&self, bytes: Bytes, stream: u16) -> Result<ManagedMemoryHandle, ReplayError> {
        let (memory, failures) = &mut *self.stream(stream);
        Ok(memory.reserve(bytes.0, failures).expect("the device has more memory than a trace asks for"))
    }

    fn free(&self, block: ManagedMemoryHandle) -> Result<(), ReplayError> {
        drop(block);
        Ok(())
    }

    /// cubecl reuses a freed handle at once: its servers order the work of several streams by events of their own.
    fn free_after(&self, block: ManagedMemoryHandle, _: Arc<TraceFence>) -> Result<(), ReplayError> {
        self.free(block)
    }

    fn driver_calls(&self) -> u64 {
        (self.account)().1
    }

    fn held(&self) -> Option<Held> {
        Some((self.account)().0)
    }

    fn device_took(&self) -> Result<Bytes, ReplayError> {
        Ok((self.account)().0.now)
    }
}

fn measured<A: Allocator>(trace: &Trace, allocator: &A) -> Result<Measured, ReplayError> {
    let outcome = replay(trace, allocator, Options::default())?;
    Ok(Measured {
        ratio: outcome.ratio,
        reserve_ns: outcome.alloc_ns.map_or(0.0, |times| times.mean),
        cold_calls: outcome.cold.driver_calls,
        warm_calls: outcome.warm.map_or(0, |warm| warm.driver_calls),
    })
}

fn cubecls<S: ComputeStorage>(
    storage: S,
    config: MemoryConfiguration,
    mode: MemoryAllocationMode,
) -> MemoryManagement<S> {
    let properties = MemoryDeviceProperties::new(MEMORY.0 / 4, ALIGNMENT).with_max_memory(MEMORY.0);
    let (logger, options) =
        (Arc::new(ServerLogger::default()), MemoryManagementOptions::new("replay").mode(mode));
    MemoryManagement::from_configuration(storage, &properties, config, logger, options)
}

fn on_bytes(trace: &Trace, config: MemoryConfiguration) -> Result<Measured, ReplayError> {
    let total = Arc::new(Total::default());
    let storage = || Counting { total: Arc::clone(&total), ..Counting::default() };
    let memory = |_| cubecls(storage(), config.clone(), MemoryAllocationMode::Auto);
    let account = || {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let held = Held { now: Bytes(read(&total.now)), peak: Bytes(read(&total.peak)) };
        (held, read(&total.calls))
    };
    measured(trace, &Managed::new(trace.streams(), memory, account))
}

fn on_a_pool<M: Memory>(
    trace: &Trace,
    memory: impl Fn(&Pool<gpu_vmm::host::HostBackend>, &Streams, u16) -> M,
) -> Result<Measured, ReplayError> {
    let backend = gpu_vmm::host::HostConfig::new().memory(MEMORY).open()?;
    let streams = Streams::of(&backend, DEVICE, trace.streams())?;
    let pool = Pool::builder(&backend).device(DEVICE).build()?;
    let account = || {
        let stats = pool.stats();
        (Held { now: Bytes(stats.held), peak: Bytes(stats.peak_held) }, stats.driver_calls.total())
    };
    measured(trace, &Managed::new(trace.streams(), |stream| memory(&pool, &streams, stream), account))
}

/// Sets cubecl's configuration, which each version has for itself.
pub(crate) fn configure() {
    CubeClRuntimeConfig::set(Default::default());
}

pub(crate) fn adaptive(trace: &Trace) -> Result<Measured, ReplayError> {
    on_bytes(trace, MemoryConfiguration::Adaptive)
}

pub(crate) fn exclusive(trace: &Trace) -> Result<Measured, ReplayError> {
    on_bytes(trace, MemoryConfiguration::ExclusivePages)
}

pub(crate) fn pool_storage(trace: &Trace) -> Result<Measured, ReplayError> {
    on_a_pool(trace, |pool, streams, stream| {
        let storage = PoolStorage::new(pool, streams.get(stream), ALIGNMENT as usize);
        cubecls(storage, MemoryConfiguration::ExclusivePages, MemoryAllocationMode::Dedicated)
    })
}

pub(crate) fn pool_memory(trace: &Trace) -> Result<Measured, ReplayError> {
    let first = std::cell::OnceCell::new();
    on_a_pool(trace, |pool, streams, stream| {
        let new =
            || PoolMemory::new(pool, streams.get(stream), ALIGNMENT as usize).expect("the pool has few tags");
        first.get_or_init(new).for_stream(streams.get(stream))
    })
}
