//! A simulated HSA runtime. It replaces ROCr's `libhsa-runtime64.so.1` and lets AMD's own HIP runtime, unmodified, run on a
//! machine without an AMD GPU.
//!
//! The memory of a simulated GPU is this machine's. A GPU's accesses go through a page walk of that GPU, with the faults of a
//! real one. Copies, fills, barriers, signals and the complete virtual memory API are implemented. Some kernels are: each is
//! a function here, found by its name.
//!
//! It is written from AMD's public headers: `hsa.h`, `hsa_ext_amd.h`, `amd_hsa_signal.h`, `amd_hsa_queue.h`,
//! `amd_hsa_kernel_code.h`. If these leave something open, it does the same as ROCr's public source.
//!
//! `README.md` lists the settings, and how far to trust it. Like ROCm's runtime, it runs on Linux only.
#![cfg(target_os = "linux")]

#[macro_use]
mod report;
#[macro_use]
mod calls;

pub mod abi;
pub mod agent;
pub mod agent_info;
pub mod code;
pub mod counters;
mod kernels;
pub mod memory;
pub mod missing;
pub mod pool;
mod settings;
pub mod system;
pub mod vmem;
pub mod work;
