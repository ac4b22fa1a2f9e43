//! gpu-vmm's backend for AMD's HIP runtime.
//!
//! The runtime is loaded at run time: nothing is linked, and without HIP [`HipBackend::open`] returns an error.
//!
//! HIP accepts some wrong calls silently and crashes on others, and its versions differ. `quirks` lists as data what
//! each version does differently. The workaround is the same for all versions if it works on all of them.
//!
//! To name a `hipStream_t` of your own, use `unsafe { Stream::from_raw(stream.cast()) }` ([`Stream::from_raw`]). The
//! bindings have no type that owns a stream, so the caller must keep it alive. [`MemoryView`] and [`MemoryViewMut`] are
//! arguments of kernels on such a stream: they borrow the memory, and check the device's access to it.
//!
//! [`Stream::from_raw`]: gpu_vmm_core::Stream::from_raw
//!
//! A process has one HIP runtime, so every [`HipBackend::open`] returns the same backend. Its virtual memory calls hold
//! one lock, because HIP does not lock its own tables. The backend does not work in a forked child.
// Without the feature `testkit`, the code that only the testkit calls is unused.
#![cfg_attr(not(feature = "testkit"), allow(dead_code))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod addresses;
mod adopt;
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
mod fabric;
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
#[cfg(target_os = "linux")]
mod objects;
mod open;
mod places;
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
mod view;
#[cfg(windows)]
mod win32;

pub use backend::HipBackend;
pub use handle::HipHandle;
pub use reservation::HipReservation;
pub use view::{MaybeHip, MemoryView, MemoryViewMut};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
