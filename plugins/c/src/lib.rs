//! The C library: the functions that `include/gpu_vmm.h` declares, among them those that PyTorch's `CUDAPluggableAllocator` calls.
//!
//! | file | subject |
//! |---|---|
//! | `status` | status codes and the text of the last error |
//! | `call` | the wrapper of every exported function: errors become a status, and no panic crosses into C |
//! | `texts` | strings, objects and out-parameters that cross the border to C |
//! | `backend` | opening a vendor's driver |
//! | `capture` | announcing captures of streams; memory that was kept because of one |
//! | `pool`, `sleep`, `stores` | allocating blocks; suspending and resuming them; where their contents are kept |
//! | `version` | the version of the library |
//! | `properties`, `device` | properties of memory; granularities and capabilities of devices |
//! | `physical`, `share` | physical memory; memory and regions in other processes |
//! | `exchange` | regions that another process follows while they change |
//! | `reservation`, `mapping`, `replace` | regions of chosen addresses; mappings in them; other memory at the same addresses |
//! | `banked`, `snapshot` | one address with several banks of memory; regions in files |
//! | `queue`, `event` | queued copies and page-locked memory; events |
//! | `handles` | the pointers by which C names objects |
//! | `callback` | whether a callback of C runs on the thread |
//! | `observer` | callbacks before and after the memory behind an address changes |
//! | `region`, `tensor`, `capsule` | memory that grows in place, its DLPack tensors, and their capsules in Python |
//! | `torch` | the functions that PyTorch calls, and their pools |
//!
//! A null pointer, and one that names no live object of its type, is an error with a text.

// C reaches the exported functions by name, and cbindgen reads the `pub` items.
#![allow(unreachable_pub)]

mod backend;
mod banked;
mod call;
mod callback;
mod capsule;
mod capture;
mod device;
mod event;
#[cfg(target_os = "linux")]
mod exchange;
mod handles;
mod mapping;
mod observer;
mod physical;
mod pool;
mod properties;
mod queue;
mod region;
mod replace;
mod reservation;
mod share;
mod sleep;
mod snapshot;
mod status;
mod stores;
mod tensor;
mod texts;
mod torch;
mod version;

#[cfg(test)]
mod tests;
