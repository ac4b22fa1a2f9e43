//! gpu-vmm on AMD's HIP runtime, which is loaded at run time: nothing is linked, and without HIP
//! [`HipBackend::open`] gives an ordinary error.
//!
//! HIP answers some wrong calls with success and some with a crash, and its versions differ. What a version does
//! differently is data in `quirks`; what this backend does about it is the same for all versions where that works.
//!
//! | file | subject |
//! |---|---|
//! | `backend` | which module answers which method |
//! | `loader`, `library`, `ffi`, `hsa` | the library, its functions and structures |
//! | `driver`, `open`, `error` | the one loaded runtime, and its answers |
//! | `device`, `device_state` | its devices, and what is found out about each |
//! | `handle`, `attributes`, `memory_types` | physical memory, and the types of it |
//! | `share`, `descriptor`, `win32` | memory as a file descriptor, or as a handle of Windows |
//! | `reservation`, `addresses`, `kept_addresses`, `mappings`, `access` | address ranges, what is mapped there, who may use it |
//! | `copy`, `staging`, `stream`, `event` | moving data; page-locked memory, and copies on streams of their own; places in streams |
//! | `plain` | memory of `hipMalloc`, which tests compare with |
//! | `relaxed` | calls that spoil no capture |
//! | `testkit`, `kernels`, `launch`, `compiler` | a pattern written and checked, by kernels or by copies |
//! | `quirks`, `probe`, `capabilities` | what versions and devices can do |
//!
//! A program's own `hipStream_t` is named by `unsafe { Stream::from_raw(stream.cast()) }` ([`Stream::from_raw`]): the
//! bindings have no type that owns a stream, so the caller promises that it is live. Kernels take a region's memory as the pointer
//! `region.address().as_ptr()`, and a vector's as `vec.as_device_ptr().as_raw()`.
//!
//! [`Stream::from_raw`]: gpu_vmm_core::Stream::from_raw
//!
//! HIP is one for the process, so a backend is too: all that [`HipBackend::open`] gives is the same. Its virtual memory
//! calls go through one lock, since HIP has none around its tables. It does not work in a forked child.
// What the testkit alone uses is not used without it.
#![cfg_attr(not(feature = "testkit"), allow(dead_code))]

mod access;
mod addresses;
mod attributes;
mod backend;
mod capabilities;
mod compiler;
mod copy;
#[cfg(unix)]
mod descriptor;
mod device;
mod device_state;
mod driver;
mod error;
mod event;
mod ffi;
mod handle;
mod hsa;
mod kept_addresses;
mod kernels;
mod launch;
mod library;
mod loader;
mod mappings;
mod memory_types;
mod open;
mod plain;
mod probe;
mod quirks;
mod relaxed;
mod reservation;
mod share;
mod staging;
mod stream;
#[cfg(feature = "testkit")]
mod testkit;
#[cfg(windows)]
mod win32;

pub use backend::HipBackend;
pub use handle::HipHandle;
pub use reservation::HipReservation;
