//! The gpu-vmm backend for NVIDIA's CUDA driver, which it loads at run time.
//!
//! [`CudaBackend`] is the driver with its devices. Building a program needs neither the CUDA toolkit nor NVIDIA's driver. When the
//! driver is missing at run time, [`CudaBackend::open`] returns an error that lists the names it tried. CUDA 11.4 is the oldest
//! supported driver version.
//!
//! ```
//! # mod gpu_vmm { pub use gpu_vmm_core::*; pub use gpu_vmm_cuda as cuda; }
//! use gpu_vmm::Backend;
//! use gpu_vmm::cuda::CudaBackend;
//!
//! match CudaBackend::open() {
//!     Ok(backend) => backend.devices().iter().for_each(|device| println!("{device:?}")),
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # Contexts
//!
//! CUDA's virtual memory calls need no context. This crate uses a context only for calls that need one: copies, fills, kernels,
//! page-locked memory and the amount of free memory. Those calls use the device's primary context, as the CUDA runtime, PyTorch and
//! [cudarc] do. The crate retains it on first use and does not release it before the process ends. A program with a context of its
//! own passes it to [`CudaBackend::with_cudarc`] or [`CudaBackend::with_context`]. [`CudaBackend::stream`] wraps a cudarc stream,
//! and [`MemoryView`] passes memory to cudarc's kernels and copies. The thread's current context stays what it was.
//!
//! # What synchronization covers
//!
//! Work is queued in contexts, and CUDA cannot wait for a whole device. [`synchronize`](gpu_vmm_core::SyncCalls::synchronize), and
//! with it [`WaitFor::all_devices`](gpu_vmm_core::WaitFor::all_devices), waits for these contexts of the device:
//!
//! - the primary context, if it exists;
//! - every context that a backend of this process was opened with, as long as that backend lives;
//! - the calling thread's current context.
//!
//! For [`synchronize_stream`](gpu_vmm_core::SyncCalls::synchronize_stream) and for an [`Event`](gpu_vmm_core::Event), the default
//! stream of a device means the default streams of all these contexts. The handle `CU_STREAM_PER_THREAD` means the calling thread's
//! stream in each of them; for an event, it means that stream in the context that the backend uses.
//!
//! Not covered: a context from `cuCtxCreate` that no backend was opened with and that is not current on the calling thread, and the
//! work of other processes. The driver lists neither. A program with such a context must open a backend with it or wait for it
//! itself.
//!
//! # Captures
//!
//! While a stream captures, `cuCtxSynchronize` fails in its context and invalidates the capture. The driver reports captures on
//! blocking streams without invalidating them (`cuStreamIsCapturing` of the legacy stream). In that case this crate returns
//! [`Detail::Capturing`] and does not call `cuCtxSynchronize`. A program must announce captures on non-blocking streams
//! ([`Deferred::capture_begins`](gpu_vmm_core::extend::Deferred::capture_begins)): otherwise the first call that waits for the
//! device invalidates the capture. Memory that this call would have released stays mapped. This crate makes its other calls with
//! the thread in relaxed capture mode, so they invalidate no capture of another stream.
//!
//! [`Detail::Capturing`]: gpu_vmm_core::Detail::Capturing
//!
//! # Memory types
//!
//! | [`Properties`](gpu_vmm_core::Properties) | `CUmemAllocationProp` | notes |
//! |---|---|---|
//! | `location` | `location`: `DEVICE`, `HOST`, `HOST_NUMA` | host memory needs a driver of CUDA 12.2 or later; devices and the CPU ([`DeviceId::HOST`](gpu_vmm_core::DeviceId::HOST)) are granted access to it and use the same address |
//! | `handle_types` | `requestedHandleTypes`: descriptor, Win32, fabric, or several | handle types that the system lacks, and any for `Location::Host`, are refused before the driver is called |
//! | `compressible` | `allocFlags.compressionType` | the driver may create memory that is not compressible instead; the handle's properties report which it is |
//! | `remote_dma` | `allocFlags.gpuDirectRDMACapable` | |
//!
//! [`Backend::capabilities`](gpu_vmm_core::Backend::capabilities) tries each of them on one granule and reports why a device lacks
//! one. An import is checked against the importer's [`Properties`](gpu_vmm_core::Properties) as far as the driver reports them: the
//! location is checked, the size is not.
// Code that only an optional feature uses is dead without that feature.
#![cfg_attr(not(all(feature = "testkit", feature = "experimental-multicast")), allow(dead_code))]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("NVIDIA's driver exists for 64-bit processes alone");

mod access;
mod adopt;
mod backend;
mod capabilities;
mod check;
mod context;
mod copy;
mod device;
mod device_state;
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
mod open;
mod own_context;
mod plain;
mod quirks;
mod relaxed;
mod reservation;
#[cfg(unix)]
mod share;
mod staging;
mod stream;
#[cfg(feature = "testkit")]
mod testkit;
mod view;
#[cfg(windows)]
mod win32;

pub use backend::CudaBackend;
pub use cudarc;
pub use handle::CudaHandle;
#[cfg(feature = "experimental-multicast")]
pub use multicast::CudaMulticast;
pub use reservation::CudaReservation;
pub use view::{MaybeCuda, MemoryView, MemoryViewMut};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
