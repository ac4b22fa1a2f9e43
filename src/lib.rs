// The README's example runs on host memory.
#![cfg_attr(feature = "host", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "host"), doc = "GPU virtual memory management for NVIDIA and AMD.")]

mod any;
mod open;

#[cfg(feature = "experimental-multicast")]
pub use any::AnyMulticast;
pub use any::{AnyBackend, AnyHandle, AnyReservation};
pub use gpu_vmm_core::*;
pub use open::Found;

#[cfg(feature = "cuda")]
pub use gpu_vmm_cuda as cuda;
#[cfg(feature = "hip")]
pub use gpu_vmm_hip as hip;
#[cfg(feature = "host")]
pub use gpu_vmm_host as host;
#[cfg(feature = "pool")]
pub use gpu_vmm_pool as pool;
#[cfg(feature = "premap")]
pub use gpu_vmm_premap as premap;
#[cfg(feature = "share")]
pub use gpu_vmm_share as share;
#[cfg(feature = "snapshot")]
pub use gpu_vmm_snapshot as snapshot;

/// So that the guide's examples are compiled.
#[cfg(all(doctest, feature = "share"))]
#[doc = include_str!("../docs/guide/sharing.md")]
struct SharingGuide;

/// The same. Its examples run on whatever backend there is, so there has to be one.
#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../docs/guide/same-address.md")]
struct SameAddressGuide;

/// The same.
#[cfg(all(doctest, feature = "host", feature = "pool"))]
#[doc = include_str!("../docs/guide/pool.md")]
struct PoolGuide;
