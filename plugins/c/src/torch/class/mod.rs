//! The functions that the allocator class of gpu_vmm.torch calls.
//!
//! The class is C++, compiled against the installed PyTorch. It keeps PyTorch's statistics, history and exceptions; everything
//! about memory is here. All functions return a status, and none throws.
//!
//! | file | subject |
//! |---|---|
//! | `blocks` | allocating, freeing, finding |
//! | `pools` | private pools and their checkpoints |
//! | `share` | blocks in other processes |
//! | `account` | amounts, the limit, and which memory is where |

mod account;
mod blocks;
mod pools;
mod share;

#[cfg(test)]
mod tests;
