//! Growth of GPU memory without driver calls, for [gpu-vmm](https://docs.rs/gpu-vmm): a thread maps the next part of a region
//! before it is needed.
//!
//! A [`GrowingRegion`] is a region that a [`PremapThread`] keeps mapped beyond its end. Growth into that part changes only a
//! number. The pool, gpu-vmm-pool, uses the same thread to map its pages in advance.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod budget;
mod exit;
mod growing;
mod guard;
#[cfg(all(test, loom))]
mod models;
mod shared;
#[doc(hidden)]
pub mod sync;
mod thread;

pub use growing::{GrowingRegion, PremapGrowth, PremapOutcome};
pub use guard::RegionGuard;
pub use thread::PremapThread;

use gpu_vmm_core::Bytes;

/// Work for a [`PremapThread`], for authors of allocators that map memory in advance themselves.
pub mod extend {
    pub use crate::thread::{PremapWork, Registration, Step};
}

/// The size and the step of the premapped part behind the end of a [`GrowingRegion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Premap {
    /// The maximum size of the premapped part, rounded up to the region's granularity; zero maps nothing in advance. It should
    /// cover several steps of growth, so that the thread can map one before the caller has used up the previous ones.
    pub by: Bytes,
    /// The size of one step of the thread, which is one handle; rounded up to the granularity, at most `by`. Handles are released
    /// as wholes, so shrinking cannot end inside one.
    pub step: Bytes,
}

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
