//! The functions that PyTorch calls. They take no context, so the process has one pool for each device.
//!
//! The same functions serve PyTorch built for CUDA and for ROCm: both pass plain sizes, device numbers and streams.
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
mod restored;
mod shared;
mod slots;
mod table;
mod throw;
mod unclaimed;
