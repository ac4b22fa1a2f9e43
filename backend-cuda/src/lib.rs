//! gpu-vmm on NVIDIA's CUDA driver, loaded at run time.
//!
//! [`CudaBackend`] is the driver with its devices. A program needs neither the toolkit nor NVIDIA's driver to be built,
//! and without the driver [`CudaBackend::open`] gives an ordinary error that says where it was looked for. Drivers
//! of CUDA 11.4 and later are used.
//!
//! ```
//! use gpu_vmm_core::Backend;
//! use gpu_vmm_cuda::CudaBackend;
//!
//! match CudaBackend::open() {
//!     Ok(backend) => backend.devices().iter().for_each(|device| println!("{device:?}")),
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # Contexts
//!
//! CUDA's calls for virtual memory need no context, so nothing of this crate makes one until something has to run or
//! to be asked in one: copies, fills, kernels, page-locked memory, and the amount of free memory. Those use the device's primary
//! context, which is what the CUDA runtime, PyTorch and [cudarc] use as well; it is retained on first use and not
//! released before the process ends. A program with a context of its own gives it to
//! [`CudaBackend::with_cudarc`] or [`CudaBackend::with_context`]. [`CudaBackend::stream`] names a stream of cudarc's, and
//! [`MemoryView`] makes memory an argument of cudarc's kernels and copies. The thread's current context is never changed.
//!
//! # What is waited for
//!
//! Work is queued in contexts, and CUDA cannot wait for a whole device. [`synchronize`](gpu_vmm_core::SyncCalls::synchronize), and
//! with it [`WaitFor::all_devices`](gpu_vmm_core::WaitFor::all_devices), waits for these contexts of the device:
//!
//! - the primary one, if it exists;
//! - every context that a backend of this process was opened with, for as long as that backend lives;
//! - the calling thread's current one.
//!
//! The default stream of a device is that of each of these contexts, for
//! [`synchronize_stream`](gpu_vmm_core::SyncCalls::synchronize_stream) and for an [`Event`](gpu_vmm_core::Event). The handle
//! `CU_STREAM_PER_THREAD` is the calling thread's stream in each of them; an event takes that of the context that the backend
//! uses.
//!
//! Not covered: a context of `cuCtxCreate` that no backend was opened with and that is not current for the calling thread, and the
//! work of other processes. The driver lists neither. A program with such a context opens a backend with it, or waits for it.
//!
//! # Captures
//!
//! While a stream captures, `cuCtxSynchronize` fails in its context, and the attempt spoils the capture. The driver tells
//! beforehand of blocking streams alone (`cuStreamIsCapturing` of the legacy stream), and the result is
//! [`Detail::Capturing`] without an attempt. Of a capture on a non-blocking stream the program must tell
//! ([`Deferred::capture_begins`](gpu_vmm_core::extend::Deferred::capture_begins)): without that, the first call that waits for the device
//! spoils it. Its memory is kept all the same. Other calls of this crate are made with the thread in relaxed capture mode and
//! spoil no capture of another stream.
//!
//! # Kinds of memory
//!
//! | [`Properties`](gpu_vmm_core::Properties) | `CUmemAllocationProp` | what is done |
//! |---|---|---|
//! | `location` | `location`: `DEVICE`, `HOST`, `HOST_NUMA` | memory of the host is there from drivers of CUDA 12.2 on; devices are given access to it as to their own, and so is the CPU ([`DeviceId::HOST`](gpu_vmm_core::DeviceId::HOST)), at the same address |
//! | `handle_types` | `requestedHandleTypes`: descriptor, Win32, fabric, or several | what the system has not, and any for `Location::Host`, is refused before the driver is asked |
//! | `compressible` | `allocFlags.compressionType` | the driver may make memory that is not compressible instead: the properties of what was created say which it is |
//! | `remote_dma` | `allocFlags.gpuDirectRDMACapable` | |
//!
//! Which of them a device has, [`Backend::capabilities`](gpu_vmm_core::Backend::capabilities) tries on a granule, and
//! says why not. What is imported is compared with what the importer was told about it, as far as the driver knows
//! it: the place, and not the size.
//!
//! # Modules
//!
//! | file | subject |
//! |---|---|
//! | `backend` | which of the modules answers which method |
//! | `loader`, `ffi`, `driver`, `error` | finding and starting the driver, the part of `cuda.h` that is used, the process's one driver, its status codes |
//! | `device`, `slot`, `memory_info` | devices, what the process keeps for each, the amount of free memory |
//! | `context`, `lease`, `idle`, `relaxed` | the contexts in which work runs, the contexts that programs lend, waiting for both, calls that spoil no capture |
//! | `handle`, `memory_types`, `host` | physical memory, its types, host memory |
//! | `reservation`, `access` | address ranges and mappings in them, access rights |
//! | `share`, `win32`, `fabric`, `imex`, `dma_buf` | memory as a file descriptor, as a Windows handle, as a fabric handle and its channels, as a DMA-BUF |
//! | `copy`, `staging`, `stream`, `event` | moving data, page-locked memory and copies on streams of their own, streams, points in streams |
//! | `multicast` | objects that write to several devices |
//! | `capabilities`, `quirks` | what devices and versions can do |
//! | `interop`, `view` | contexts and streams of cudarc or as they are, memory as arguments of cudarc |
//! | `testkit`, `kernels`, `own_context` | patterns written and checked by kernels, captures and contexts for tests |
// What an optional feature alone uses is not used without it.
#![cfg_attr(not(all(feature = "testkit", feature = "experimental-multicast")), allow(dead_code))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("NVIDIA's driver exists for 64-bit processes alone");

mod access;
mod backend;
mod capabilities;
mod context;
mod copy;
mod device;
#[cfg(unix)]
mod dma_buf;
mod driver;
mod error;
mod event;
mod fabric;
mod ffi;
mod handle;
mod host;
mod idle;
mod imex;
mod interop;
mod kernels;
mod lease;
mod loader;
mod memory_info;
mod memory_types;
#[cfg(feature = "experimental-multicast")]
mod multicast;
mod own_context;
mod quirks;
mod relaxed;
mod reservation;
#[cfg(unix)]
mod share;
mod slot;
mod staging;
mod stream;
#[cfg(feature = "testkit")]
mod testkit;
mod view;
#[cfg(windows)]
mod win32;

pub use cudarc;
pub use handle::CudaHandle;
#[cfg(feature = "experimental-multicast")]
pub use multicast::CudaMulticast;
pub use reservation::CudaReservation;
pub use view::{MaybeCuda, MemoryView, MemoryViewMut};

use context::Attached;
use driver::Driver;
use ffi::Functions;
use gpu_vmm_core::extend::DropLog;
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result, Vendor};
use slot::Slot;
use std::fmt;
use std::sync::Arc;

/// NVIDIA's CUDA driver.
///
/// Cloning gives the same one. All that a process opens has one [`InstanceId`](gpu_vmm_core::extend::InstanceId), since the
/// driver is one: memory of one can be mapped by another. Each opened one has its own
/// [`DropLog`].
#[derive(Clone)]
pub struct CudaBackend {
    inner: Arc<Inner>,
}

struct Inner {
    driver: &'static Driver,
    attached: Option<Attached>,
    drop_log: DropLog,
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.inner.driver.loaded.info;
        write!(f, "CUDA {} from {}, devices: {}", info.version, info.library, self.inner.driver.devices.len())
    }
}

impl CudaBackend {
    /// Loads and starts the driver, or takes the one that this process has started already.
    ///
    /// The library is `libcuda.so.1`, then `libcuda.so`, then the one of WSL; or the one that the environment
    /// variable `GPU_VMM_CUDA_LIBRARY` names, and no other. On Windows it is `nvcuda.dll`, from the system's own folder
    /// alone. CUDA: `cuInit`.
    ///
    /// # Errors
    ///
    /// [`Detail::LibraryNotFound`] with every name that was tried; [`Detail::LibraryRefused`] where a library is no
    /// CUDA driver, is the toolkit's stub, is older than 11.4 or does not start; [`Detail::NoDevice`];
    /// [`Detail::Forked`] in a child of the process that had opened it. A later call tries again.
    pub fn open() -> Result<Self> {
        Driver::get().map(|driver| Self::new(driver, None))
    }

    /// Whether this process has loaded the driver's library already, itself or by another library.
    #[must_use]
    pub fn is_loaded() -> bool {
        loader::is_loaded()
    }

    fn new(driver: &'static Driver, attached: Option<Attached>) -> Self {
        Self { inner: Arc::new(Inner { driver, attached, drop_log: DropLog::new() }) }
    }

    #[inline]
    fn functions(&self) -> &'static Functions {
        &self.inner.driver.loaded.functions
    }

    /// The error of a call in a forked child.
    #[inline]
    fn here(&self, operation: Operation) -> Result<()> {
        self.inner.driver.process.check(operation)
    }

    /// What the process keeps for a device, usable or not.
    fn slot(&self, operation: Operation, device: DeviceId) -> Result<&'static Slot> {
        let slots = &self.inner.driver.slots;
        slots.get(device.0 as usize).ok_or_else(|| {
            Error::new(
                operation,
                Detail::NoSuchDevice { device, vendor: Vendor::Cuda, count: slots.len() as u32 },
            )
        })
    }
}
