//! The functions that PyTorch calls. They take no context, so the process has one pool for each device.
//!
//! The same functions serve PyTorch built for CUDA and for ROCm: both pass plain sizes, device numbers and streams.
//!
//! | file | subject |
//! |---|---|
//! | `process` | the pools of the process, and each thread's tag |
//! | `graphs` | memory that captured graphs use, and that serves nothing else while they exist |
//! | `free_blocks` | freed blocks that serve only the same graphs or the same private pool |
//! | `class`, `table`, `address_map`, `amounts`, `private` | the functions of gpu_vmm.torch's allocator class, its live blocks and their amounts, its private pools |
//! | `shared`, `importers` | a block as other processes map it, and their permission |
//! | `hooks` | the functions of an allocator for the whole process |
//! | `slots` | pairs of functions for PyTorch's memory pools, one pair for each tag |
//! | `throw` | errors as C++ exceptions |
//!
//! Uses unsafe code: C++ calls these functions with raw pointers.
#![allow(unsafe_code)]

mod address_map;
mod amounts;
mod class;
mod free_blocks;
mod graphs;
mod hooks;
mod importers;
mod private;
mod process;
mod shared;
mod slots;
mod table;
mod throw;
