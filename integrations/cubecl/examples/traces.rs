//! Replays recorded allocation traces through cubecl's memory management, once with its own pools over a storage that counts
//! bytes, and once over gpu-vmm's pool, and prints the memory held and the time of a reservation. Needs no GPU.
//!
//! `cargo run --release --example traces -- FILE...`

use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::config::RuntimeConfig as _;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use cubecl_server::server::IoError;
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use gpu_vmm::pool::Pool;
use gpu_vmm::{Bytes, DeviceId};
use gpu_vmm_cubecl::cubecl_0_11::PoolStorage;
use gpu_vmm_replay::{Allocator, Held, Options, ReplayError, Streams, Trace, TraceFence, replay};
use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

const DEVICE: DeviceId = DeviceId(0);
const MEMORY: Bytes = Bytes::gib(150);
const ALIGNMENT: u64 = 256;

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

/// cubecl's memory management, one for each stream as in its servers.
struct Managed<S, F> {
    streams: Vec<Mutex<(MemoryManagement<S>, ErrorGraph)>>,
    account: F,
}

impl<S: ComputeStorage, F: Fn() -> (Held, u64)> Managed<S, F> {
    fn new(
        count: usize,
        mode: MemoryAllocationMode,
        storage: impl Fn(u16) -> S,
        config: MemoryConfiguration,
        account: F,
    ) -> Self {
        let properties = MemoryDeviceProperties::new(MEMORY.0 / 4, ALIGNMENT).with_max_memory(MEMORY.0);
        let managed = |stream| {
            let (logger, options) =
                (Arc::new(ServerLogger::default()), MemoryManagementOptions::new("replay").mode(mode));
            let managed = MemoryManagement::from_configuration(
                storage(stream),
                &properties,
                config.clone(),
                logger,
                options,
            );
            Mutex::new((managed, ErrorGraph::default()))
        };
        Self { streams: (0..count as u16).map(managed).collect(), account }
    }

    fn stream(&self, stream: u16) -> MutexGuard<'_, (MemoryManagement<S>, ErrorGraph)> {
        self.streams[usize::from(stream)].lock().expect("no thread panics")
    }
}

impl<S: ComputeStorage, F: Fn() -> (Held, u64) + Sync> Allocator for Managed<S, F> {
    type Block = ManagedMemoryHandle;

    fn allocate(&self, bytes: Bytes, stream: u16) -> Result<ManagedMemoryHandle, ReplayError> {
        let (managed, failures) = &mut *self.stream(stream);
        Ok(managed
            .reserve(bytes.0, PageUpdate::Allow, failures)
            .expect("the device has more memory than a trace asks for"))
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

/// Replays a trace, and returns held/asked, and the mean of a reservation in the warm round in ns.
fn measured<A: Allocator>(trace: &Trace, allocator: &A) -> Result<(f64, f64), ReplayError> {
    let outcome = replay(trace, allocator, Options::default())?;
    Ok((outcome.ratio, outcome.alloc_ns.map_or(0.0, |times| times.mean)))
}

fn cubecls_own(trace: &Trace, config: MemoryConfiguration) -> Result<(f64, f64), ReplayError> {
    let total = Arc::new(Total::default());
    let storage = |_| Counting { total: Arc::clone(&total), ..Counting::default() };
    let account = || {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let held = Held { now: Bytes(read(&total.now)), peak: Bytes(read(&total.peak)) };
        (held, read(&total.calls))
    };
    measured(trace, &Managed::new(trace.streams(), MemoryAllocationMode::Auto, storage, config, account))
}

fn on_a_pool(trace: &Trace, mode: MemoryAllocationMode) -> Result<(f64, f64), ReplayError> {
    let backend = gpu_vmm::host::HostConfig::new().memory(MEMORY).open()?;
    let streams = Streams::of(&backend, DEVICE, trace.streams())?;
    let pool = Pool::builder(&backend).device(DEVICE).build()?;
    let storage = |stream| PoolStorage::new(&pool, streams.get(stream), ALIGNMENT as usize);
    let account = || {
        let stats = pool.stats();
        (Held { now: Bytes(stats.held), peak: Bytes(stats.peak_held) }, stats.driver_calls.total())
    };
    measured(
        trace,
        &Managed::new(trace.streams(), mode, storage, MemoryConfiguration::ExclusivePages, account),
    )
}

fn main() -> Result<(), Box<dyn Error>> {
    cubecl_server::config::CubeClRuntimeConfig::set(Default::default());
    println!(
        "| trace | cubecl, adaptive | cubecl, exclusive pages | gpu-vmm, exclusive pages | gpu-vmm, dedicated |"
    );
    println!("|---|---|---|---|---|");
    for file in std::env::args().skip(1) {
        let trace = Trace::open(file.as_ref(), &|_| {})?;
        let cells = [
            cubecls_own(&trace, MemoryConfiguration::Adaptive)?,
            cubecls_own(&trace, MemoryConfiguration::ExclusivePages)?,
            on_a_pool(&trace, MemoryAllocationMode::Auto)?,
            on_a_pool(&trace, MemoryAllocationMode::Dedicated)?,
        ];
        let cells = cells.map(|(held, ns): (f64, f64)| format!("{held:.3}, {ns:.0} ns"));
        println!("| {file} | {} |", cells.join(" | "));
    }
    Ok(())
}
