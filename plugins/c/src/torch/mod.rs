//! What PyTorch calls: a pool for each device of the process, behind functions without a context of their own.
//!
//! The same functions serve PyTorch built for CUDA and for ROCm: both hand over sizes, devices and streams as they are.
//!
//! | file | subject |
//! |---|---|
//! | `process` | the pools of the process, and each thread's tag |
//! | `graphs` | memory that captured graphs use: it is nobody else's until they are gone |
//! | `hooks` | the functions of an allocator for the whole process |
//! | `slots` | pairs of functions for memory pools of PyTorch, each with a tag |
//! | `throw` | an error as a C++ exception |
//!
//! Unsafe, since all of it is called from C++.
#![allow(unsafe_code)]

mod graphs;
mod hooks;
mod process;
mod slots;
mod throw;
