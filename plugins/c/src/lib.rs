//! The C library: the functions that `include/gpu_vmm.h` declares, among them those that PyTorch's `CUDAPluggableAllocator` calls.
//!
//! | file | subject |
//! |---|---|
//! | `status` | status codes and the text of the last error |
//! | `call` | the wrapper of every exported function: errors become a status, and no panic crosses into C |
//! | `texts` | strings, objects and out-parameters that cross the border to C |
//! | `backend` | opening a vendor's driver |
//! | `pool`, `sleep`, `stores` | allocating blocks; suspending and resuming them; where their contents are kept |
//! | `region`, `tensor`, `capsule` | memory that grows in place, its DLPack tensors, and their capsules in Python |
//! | `torch` | the functions that PyTorch calls, and their pools |
//!
//! A null pointer is an error with a text. A dangling pointer or one to a freed object is undefined behavior.

// C reaches the exported functions by name, and cbindgen reads the `pub` items.
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
