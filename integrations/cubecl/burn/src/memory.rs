//! Where burn's device memory comes from, and how much of it there is.

use crate::arguments::{Arguments, Memory};
use crate::growing::Growing;
use crate::storage::Storage;
use burn::tensor::Device;
use cubecl_server::server::IoError;
use gpu_vmm::pool::Pool;
use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, Error, PhysicalMemory, Properties, Vendor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const DEVICE: DeviceId = DeviceId(0);
/// The time between two readings of the device's free memory.
const INTERVAL: Duration = Duration::from_millis(2);

/// The device and its memory.
pub struct Setup {
    /// The device, for tensors without gradients.
    pub device: Device,
    /// The pool, when burn's memory comes from it.
    pub pool: Option<Pool<AnyBackend>>,
    /// Allocations that grow in place.
    pub growing: Arc<Growing>,
    /// The device's free memory, from before the first use of the device.
    pub watch: Watch,
    /// Memory that burn must not have.
    _ballast: Option<PhysicalMemory<AnyBackend>>,
}

impl Setup {
    /// Opens the driver and lets burn allocate as the arguments say.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn new(arguments: &Arguments) -> Result<Self, Error> {
        let backend = AnyBackend::open(arguments.vendor)?;
        let growing = Arc::new(Growing::new(&backend, DEVICE));
        let pool = match arguments.memory {
            Memory::Own => None,
            Memory::GpuVmm => Some(Pool::builder(&backend).device(DEVICE).build()?),
        };
        // Before the first use of the device, which creates cubecl's server.
        if let Some(pool) = &pool {
            use_pool(arguments.vendor, pool, &growing);
        }
        let ballast = match arguments.limit {
            Some(limit) => ballast(&backend, limit)?,
            None => None,
        };
        let watch = Watch::new(backend)?;
        let device = match arguments.vendor {
            Vendor::Hip => Device::rocm(0),
            _ => Device::cuda(0),
        };
        Ok(Self { device, pool, growing, watch, _ballast: ballast })
    }

    /// Returns the bytes that burn's tensors use and the bytes that cubecl holds for them.
    pub fn usage(&self) -> (Bytes, Bytes) {
        let usage = self.device.memory_pool_usage().unwrap_or_default();
        (Bytes(usage.bytes_in_use), Bytes(usage.bytes_reserved))
    }
}

/// Takes the device's memory until `limit` is free. The driver's context exists, and is not counted.
fn ballast(backend: &AnyBackend, limit: Bytes) -> Result<Option<PhysicalMemory<AnyBackend>>, Error> {
    let free = backend.memory_info(DEVICE)?.free;
    let page = Bytes::mib(2);
    if free < limit + page {
        println!(
            "{} MiB of the device's memory are free, less than the limit of {} MiB",
            mib(free),
            mib(limit)
        );
        return Ok(None);
    }
    let size = page * ((free - limit) / page);
    println!(
        "{} MiB taken away from the {} MiB that are free, for a limit of {} MiB",
        mib(size),
        mib(free),
        mib(limit)
    );
    PhysicalMemory::create(backend, size, Properties::on(DEVICE)).map(Some)
}

/// Lets cubecl's server for the vendor allocate from the pool.
fn use_pool(vendor: Vendor, pool: &Pool<AnyBackend>, growing: &Arc<Growing>) {
    let (pool, growing) = (pool.clone(), Arc::clone(growing));
    let first = match vendor {
        Vendor::Hip => cubecl_hip::set_storage(move |stream, alignment| {
            Ok::<_, IoError>(Storage::boxed(&pool, &growing, stream.cast(), alignment))
        }),
        _ => cubecl_cuda::set_storage(move |stream, alignment| {
            Ok::<_, IoError>(Storage::boxed(&pool, &growing, stream.cast(), alignment))
        }),
    };
    assert!(first, "the storage is set once");
}

/// Returns the number of MiB, rounded up.
pub fn mib(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(1 << 20)
}

/// Reads the device's free memory again and again.
pub struct Watch {
    before: Bytes,
    least: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn new(backend: AnyBackend) -> Result<Self, Error> {
        let before = backend.memory_info(DEVICE)?.free;
        let (least, ends) = (Arc::new(AtomicU64::new(before.0)), Arc::new(AtomicBool::new(false)));
        let (seen, end) = (Arc::clone(&least), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Ok(memory) = backend.memory_info(DEVICE) {
                    seen.fetch_min(memory.free.0, Ordering::Relaxed);
                }
                thread::sleep(INTERVAL);
            }
        });
        Ok(Self { before, least, ends, thread: Some(thread) })
    }

    /// Returns the most memory by which the device's free memory was less than at the start.
    pub fn most_taken(&self) -> Bytes {
        self.before - Bytes(self.least.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the thread that reads the free memory has panicked");
        }
    }
}
