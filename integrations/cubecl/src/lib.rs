//! A storage and a memory management for [cubecl](https://docs.rs/cubecl) on the memory pool of
//! [gpu-vmm](https://docs.rs/gpu-vmm).
//!
//! cubecl's servers allocate device memory through the trait `ComputeStorage`. `PoolStorage` implements it: each allocation is
//! a block of a [`Pool`](gpu_vmm::pool::Pool), in the order of the server's stream. The pool holds hardly more physical memory
//! than is in use, and serves the memory that one stream has freed to all others. So cubecl's own pools of pages above the
//! storage are not needed: with `MemoryAllocationMode::Dedicated` each reservation is a block of its own. `PoolMemory` goes without
//! them: it has the methods of cubecl's `MemoryManagement`, and its reservations are blocks.
//!
//! One module for each version of cubecl, with the same contents; a feature of the same name switches it on.

#[cfg(feature = "cubecl-0-11")]
pub mod cubecl_0_11;
#[cfg(feature = "cubecl-0-12")]
pub mod cubecl_0_12;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
