//! A fake of AMD's `libamdhip64` that is only quirks: what each version of HIP is documented to do wrong in virtual
//! memory management, for the versions of which there is no packaged binary to run.
//!
//! It shows that gpu-vmm-hip copes with what is known, and that without its handling it would not. It is no proof about
//! HIP: whoever wrote it believed the same documents as the backend. AMD's own binaries, over a simulated HSA runtime, are
//! that proof, for 6.4.3 and 7.2.4.
//!
//! | file | subject |
//! |---|---|
//! | `bucket` | which version misbehaves how, with the source of each entry; nowhere else are versions compared |
//! | `settings` | what the environment says: version, devices, memory |
//! | `c` | HIP's types, codes, the frame of every function, and the end of a process |
//! | `state`, `memory` | the tables of HIP and of the runtime below it; pages in memory files |
//! | `device`, `handle`, `space`, `access`, `copy` | HIP's functions, by subject |
//! | `hsa` | functions of ROCr |
//!
//! A call that gpu-vmm-hip must never make ends the process with a line that says which rule was broken, on every version
//! alike, whether HIP crashes there, refuses, or does something else than was meant. Where a GPU would fault, the line is in
//! ROCr's words. Work on a stream is done when it is waited for, not before. A device's memory is that of the worst cards
//! there are: mappings in units below 2 MiB fault when they are used, as on RDNA4.
//!
//! Its own tests run gpu-vmm-hip on every version. Another program is run on it by naming the library that
//! `cargo build -p gpu-vmm-fake-hip` makes:
//!
//! ```sh
//! export GPU_VMM_HIP_LIBRARY=$PWD/target/debug/libgpu_vmm_fake_hip.so FAKE_HIP_VERSION=7.0 FAKE_HIP_MEMORY_MB=8192
//! GPU_VMM_TEST_BACKENDS=hip cargo test -p gpu-vmm-conformance --test conformance -- hip::grow::
//! ```
#![cfg(target_os = "linux")]
#![allow(unsafe_code, non_snake_case)] // the interfaces of HIP, ROCr and the system

#[macro_use]
mod c;
mod access;
mod bucket;
mod copy;
mod device;
mod handle;
mod hsa;
mod memory;
mod settings;
mod space;
mod state;

pub use state::Counts;
