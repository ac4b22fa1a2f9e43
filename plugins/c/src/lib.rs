//! gpu-vmm for C: what `include/gpu_vmm.h` declares, and the functions that PyTorch's `CUDAPluggableAllocator` calls.
//!
//! | file | subject |
//! |---|---|
//! | `status` | numbers for what went wrong, and the text of the last error |
//! | `call` | what every function does around its work: nothing panics across the border |
//! | `texts` | strings from and to C |
//! | `backend` | opening a vendor's driver |
//! | `pool`, `sleep`, `stores` | allocating; giving memory back and having it again |
//! | `region`, `tensor`, `capsule` | memory that grows in place, as DLPack tensors, and these in Python |
//! | `torch` | the process's pools, as PyTorch calls them |
//!
//! Pointers that C gives are looked at where that is possible: null is an error with a text. An object that was freed, or an
//! address that is no object's, cannot be told from a good one.

// What is exported is reached by its name, and the header is made of what is `pub`.
#![allow(unreachable_pub)]

mod backend;
mod call;
mod capsule;
mod pool;
mod region;
mod sleep;
mod status;
mod stores;
mod tensor;
mod texts;
mod torch;
