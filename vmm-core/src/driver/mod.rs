//! The interface to a vendor's driver: the traits that a backend implements, streams, events, and waits for devices.

mod backend;
mod drop_log;
mod event;
mod host_memory;
mod host_pages;
mod staging;
mod stream;
mod wait_for;

pub use backend::{
    Backend, CopyCalls, Deferred, Handle, MemoryCalls, Reservation, SyncCalls, check_same,
    check_virtual_memory, usable_device,
};
pub(crate) use backend::{Release, wait_for_devices};
pub use drop_log::DropLog;
pub use event::Event;
pub(crate) use host_memory::check_available;
pub use host_memory::host_out_of_memory;
pub use host_pages::HostPages;
pub(crate) use host_pages::copy_threads;
pub(crate) use staging::CopyStreams;
pub use staging::{CopyStream, Pinned};
pub use stream::Stream;
pub use wait_for::WaitFor;
