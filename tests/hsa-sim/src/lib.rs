//! A simulated HSA runtime. In the place of ROCr's `libhsa-runtime64.so.1` it lets AMD's own HIP runtime, unmodified,
//! run on a machine without an AMD GPU.
//!
//! The memory of a simulated GPU is this machine's. What a GPU does to memory goes through a page walk of that GPU, with
//! the faults that a real one has. Copies, fills, barriers, signals and all of the virtual memory API are there; of
//! kernels there are some, each done by a function here and found by its name.
//!
//! It is written from AMD's public headers: `hsa.h`, `hsa_ext_amd.h`, `amd_hsa_signal.h`, `amd_hsa_queue.h`,
//! `amd_hsa_kernel_code.h`; where they leave something open, it does what ROCr's public source does.
//!
//! | file | subject |
//! |---|---|
//! | [`abi`] | the headers' types and numbers |
//! | [`system`], [`agent`], [`pool`] | what there is: the machine, its CPU and GPUs, their memory pools |
//! | [`memory`] | ordinary allocations, locked host memory, and the page walk |
//! | [`vmem`] | reserved addresses, physical memory, mappings, access, descriptors |
//! | [`work`] | signals, queues, copy engines |
//! | [`code`], `kernels` | code objects, and the kernels that are known |
//! | [`missing`] | what HIP links to and is not simulated |
//! | `settings`, `calls`, [`counters`], `report` | what a test sets and looks at, and lines on the error stream |
//!
//! `README.md` has the settings, and how far to trust it. ROCm's runtime is of Linux, and so is this.
#![cfg(target_os = "linux")]

#[macro_use]
mod report;
#[macro_use]
mod calls;

pub mod abi;
pub mod agent;
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
