//! A fake of NVIDIA's `libcuda`: a library that is loaded in place of the driver's own, so that gpu-vmm-cuda and the crates
//! above it run on machines without an NVIDIA GPU.
//!
//! It contains nothing of NVIDIA's. It does what the driver's documentation says, or what the driver does if a measurement
//! showed a difference. Calls that a careful program never makes are violations, which are reported and counted.
//!
//! It shows that gpu-vmm-cuda makes the right calls with the right arguments, maps errors, and releases what it acquires. It
//! proves nothing about the driver: unmeasured behaviour follows the strict reading of the documentation. `README.md` lists
//! the settings, and how far to trust it.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

#[macro_use]
mod call;

mod absent;
mod access;
mod c;
mod capture;
mod capture_rules;
mod code;
mod context;
mod copy;
mod counts;
mod device;
mod entry;
mod event;
mod fabric;
mod graph;
mod host;
mod kernels;
mod map;
mod memory;
mod module;
mod multicast;
mod objects;
mod pages;
mod physical;
mod pinned;
mod plain;
mod primary;
mod range;
mod reserve;
mod settings;
mod share;
mod space;
mod state;
mod stream;
mod table;
mod team;
mod violation;
mod walk;
mod work;

pub use counts::Counts;
