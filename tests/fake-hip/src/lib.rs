//! A fake of AMD's `libamdhip64` that consists of quirks: the documented errors of each version of HIP in virtual memory
//! management, for versions without a packaged binary.
//!
//! It shows that gpu-vmm-hip copes with the known quirks, and that without its workarounds it would not. It proves nothing
//! about HIP: its author relied on the same documents as the backend's. AMD's own binaries, over a simulated HSA runtime, are
//! that proof, for 6.4.3 and 7.2.4.
//!
//! A call that gpu-vmm-hip must never make ends the process with a line that names the broken rule. This is so on every
//! version, whether HIP crashes, refuses, or does something else. For a GPU fault, the line uses ROCr's words. Work on a
//! stream is executed when it is waited for, not before. A device's memory is as on the worst cards: mappings in units
//! below 2 MiB fault when they are used, as on RDNA4.
//!
//! Its own tests run gpu-vmm-hip on every version. To run another program on it, name the library that `cargo build -p
//! gpu-vmm-fake-hip` builds:
//!
//! ```sh
//! export GPU_VMM_HIP_LIBRARY=$PWD/target/debug/libgpu_vmm_fake_hip.so FAKE_HIP_VERSION=7.0 FAKE_HIP_MEMORY_MB=8192
//! GPU_VMM_TEST_BACKENDS=hip cargo test -p gpu-vmm-conformance --test conformance -- hip::grow::
//! ```
#![cfg(target_os = "linux")]
#![allow(unsafe_code, non_snake_case)] // the interfaces of HIP, ROCr and the system

#[macro_use]
mod c;
#[macro_use]
mod call;
mod access;
mod attribute;
mod bucket;
mod copy;
mod device;
mod event;
mod handle;
mod hsa;
mod memory;
mod settings;
mod space;
mod state;
mod stream;

pub use state::Counts;
