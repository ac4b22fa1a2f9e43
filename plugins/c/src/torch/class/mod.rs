//! The functions that the allocator class of gpu_vmm.torch calls.
//!
//! The class is C++, compiled against the installed PyTorch. It keeps PyTorch's statistics, history and exceptions; everything
//! about memory is here. All functions return a status, and none throws.

mod account;
mod blocks;
mod pools;
mod share;

#[cfg(test)]
mod tests;
