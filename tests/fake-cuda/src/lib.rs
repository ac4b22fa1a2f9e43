//! A fake of NVIDIA's `libcuda`: a library that is loaded in the place of the driver's own, so that gpu-vmm-cuda and
//! all that is built on it run on machines without an NVIDIA GPU.
//!
//! Nothing of NVIDIA's is in it. It does what the driver's documentation says, and where the driver was measured to do
//! something else, that. A call that a careful program never makes is a violation, which is told and counted.
//!
//! It shows that gpu-vmm-cuda calls what it should with what it should, maps errors, and gives back what it takes. It
//! is no proof about the driver: what was never measured is decided here as the strict reading of the documentation
//! has it. `README.md` has the settings, and how far to trust it.
//!
//! | file | subject |
//! |---|---|
//! | `settings` | what the environment says |
//! | `table`, `absent` | all functions, each with the version that it came with, and drivers that lack some |
//! | `c`, `code` | the header's types and numbers; what functions answer |
//! | `call`, `violation`, `counts` | the frame of every function; what is wrong; what is alive |
//! | `device`, `primary`, `context` | what there is, and contexts |
//! | `state`, `space`, `memory`, `pages` | what the driver keeps: addresses, memory, handles, mappings |
//! | `reserve`, `physical`, `host`, `map`, `access`, `share`, `fabric`, `range`, `multicast`, `team` | virtual memory, by subject |
//! | `plain`, `pinned`, `copy` | `cuMemAlloc`; page-locked memory; copies and fills |
//! | `walk` | how a device reaches memory, and faults |
//! | `work`, `stream`, `event`, `capture`, `graph` | what runs beside the program |
//! | `module`, `kernels` | PTX, and what is known of it |
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

#[macro_use]
mod call;

mod absent;
mod access;
mod c;
mod capture;
mod code;
mod context;
mod copy;
mod counts;
mod device;
mod event;
mod fabric;
mod graph;
mod host;
mod kernels;
mod map;
mod memory;
mod module;
mod multicast;
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
