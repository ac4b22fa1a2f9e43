//! The C library: the functions that `include/gpu_vmm.h` declares, among them those that PyTorch's `CUDAPluggableAllocator` calls.
//!
//! A null pointer, and one that names no live object of its type, is an error with a text.

// C reaches the exported functions by name, and cbindgen reads the `pub` items.
#![allow(unreachable_pub)]

mod at;
mod backend;
mod banked;
mod call;
mod callback;
mod capsule;
mod capture;
mod device;
#[cfg(unix)]
mod dma_buf;
mod event;
#[cfg(target_os = "linux")]
mod exchange;
mod fork;
mod handles;
mod mapping;
mod multicast;
mod observer;
mod pages;
mod physical;
mod pool;
mod pool_options;
#[cfg(target_os = "linux")]
mod pool_server;
mod properties;
mod queue;
mod region;
mod replace;
mod reservation;
mod saved_pool;
#[cfg(target_os = "linux")]
mod serve;
mod share;
mod sleep;
mod snapshot;
mod status;
mod stores;
mod tensor;
mod texts;
mod torch;
mod version;

#[cfg(test)]
mod tests;
