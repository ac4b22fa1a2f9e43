//! gpu-vmm on host memory: the reference for the rules, and what runs where there is no GPU.
//!
//! A device is an amount of the machine's memory. Physical memory is pages of a memfd, a reservation is addresses
//! without any right, a mapping is `mmap` with `MAP_SHARED | MAP_FIXED`, access is `mprotect`: the kernel does the
//! work that a GPU's driver does, and the CPU's MMU does the checking.
//!
//! ```
//! use gpu_vmm_core::{Backend, Bytes, DeviceId};
//! use gpu_vmm_host::HostConfig;
//!
//! let host = HostConfig::new().devices(2).memory(Bytes::mib(64)).open()?;
//! assert_eq!(host.memory_info(DeviceId(1))?.free, Bytes::mib(64));
//! # Ok::<(), gpu_vmm_core::Error>(())
//! ```
//!
//! # What is as on a GPU, and what is not
//!
//! - A device has a set amount of memory, which `create` takes from and which comes back once the handle and the
//!   last mapping are gone. It is a count of this backend: pages come from the machine when they are first touched,
//!   so a device that is given more memory than the machine has ends as every overcommitted process does.
//! - **One CPU stands in for all devices.** Each mapping knows what each device may do, and the copies, fills and
//!   patterns of this backend keep to it. The MMU cannot tell devices apart: a page is as open as the most that any
//!   device may do with it, and code that uses the address itself meets this joint right.
//! - A reservation's hint is a wish, as it is for the drivers: where the address is taken or cannot be had,
//!   `reserve` succeeds somewhere else.
//! - Work is done when its call returns, but for that of
//!   [`start_pattern_on`](gpu_vmm_core::testkit::TestKit::start_pattern_on), which threads of the backend do: a stream is a queue, and
//!   an event a place in it. Such work that reaches what is not mapped, or not for its device, ends all work of the device, as
//!   a fault does on a GPU.
//!
//! # Modules
//!
//! | file | subject |
//! |---|---|
//! | `config` | [`HostConfig`]: the number of devices and their memory |
//! | `backend`, `device`, `capabilities`, `quirks` | which module answers which method, devices, what they can do |
//! | `memory`, `store`, `extents`, `handle` | pages of one file that all handles share or of a file of their own, the free list of the first, handles |
//! | `host` | what a backend, its handles and its reservations share |
//! | `memory_types` | which locations and handle types memory can have |
//! | `reservation`, `pages`, `reserve_mappings` | address ranges, the system calls on them, unmapping at the kernel's limit of mappings |
//! | `mappings` | what is mapped where and which device may use it, checked by `copy` and `testkit` |
//! | `share` | handles as file descriptors |
//! | `copy`, `staging` | moving data, buffers for it |
//! | `stream`, `stream_names`, `queues`, `work`, `event` | streams and their numbers, their queues, the work in them, points in them |
//! | `capture`, `captures` | work that is recorded in graphs |
//! | `testkit` | patterns written and checked |
//! | `unsupported` | the uninhabited backend of other systems |
//!
//! On systems other than 64-bit Linux the crate compiles, and opening answers
//! [`Unsupported`](gpu_vmm_core::Detail::Unsupported).
// What the testkit alone uses is not used without it.
#![cfg_attr(not(feature = "testkit"), allow(dead_code))]

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
