//! The gpu-vmm backend for host memory: a reference implementation of the rules, for machines without a GPU.
//!
//! A device is an amount of the machine's memory. Physical memory is pages of a memfd, a reservation is an address range without
//! access, a mapping is `mmap` with `MAP_SHARED | MAP_FIXED`, and access is set by `mprotect`. The kernel does the work of a GPU's
//! driver, and the CPU's MMU checks accesses.
//!
//! ```
//! # mod gpu_vmm { pub use gpu_vmm_core::*; pub use gpu_vmm_host as host; }
//! use gpu_vmm::{Backend, Bytes, DeviceId};
//! use gpu_vmm::host::HostConfig;
//!
//! let host = HostConfig::new().devices(2).memory(Bytes::mib(64)).open()?;
//! assert_eq!(host.memory_info(DeviceId(1))?.free, Bytes::mib(64));
//! # Ok::<(), gpu_vmm_core::Error>(())
//! ```
//!
//! # Differences from a GPU
//!
//! - Each device has a fixed amount of memory. `create` takes from it, and it is free again once the handle and the last mapping
//!   are gone. The amount is only a count in this backend: the machine provides pages when they are first touched. If a device has
//!   more memory than the machine, the process can be killed like any overcommitted process.
//! - **One CPU acts for all devices.** Each mapping records the access of each device, and the copies, fills and patterns of this
//!   backend check it. The MMU cannot tell devices apart: a page has the widest access of any device, and code that uses the
//!   address directly gets that access.
//! - A reservation's hint is advisory, as with the drivers: if the address is taken or unavailable, `reserve` succeeds at another
//!   address.
//! - Work is complete when its call returns, except for [`start_pattern_on`](gpu_vmm_core::testkit::TestKit::start_pattern_on),
//!   whose work threads of the backend do: a stream is a queue, and an event a position in it. If such work accesses memory that is
//!   not mapped, or to which its device has no access, all work of the device ends, as after a fault on a GPU.
//!
//! On systems other than 64-bit Linux the crate compiles, and opening returns [`Unsupported`](gpu_vmm_core::Detail::Unsupported).
// Code that only the testkit uses is dead without it.
#![cfg_attr(not(feature = "testkit"), allow(dead_code))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;

cfg_if::cfg_if! {
    if #[cfg(all(target_os = "linux", target_pointer_width = "64"))] {
        mod backend;
        mod capabilities;
        mod capture;
        mod captures;
        mod copy;
        mod device;
        mod event;
        mod extents;
        mod handle;
        mod host;
        mod memory_types;
        mod mappings;
        mod memory;
        mod pages;
        mod plain;
        mod quirks;
        mod queues;
        mod reservation;
        mod share;
        mod reserve_mappings;
        mod staging;
        mod store;
        mod stream;
        mod stream_names;
        mod work;
        #[cfg(feature = "testkit")]
        mod testkit;

        pub use backend::HostBackend;
        pub use handle::HostHandle;
        pub use reservation::HostReservation;
    } else {
        mod unsupported;

        pub use unsupported::{HostBackend, HostHandle, HostReservation};
    }
}

pub use config::HostConfig;

/// Compiles the example in the README.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../README.md")]
struct Readme;
