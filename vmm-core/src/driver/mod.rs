//! What a driver is to this crate: the traits that a backend implements, streams, events, and waiting for devices.

mod backend;
mod drop_log;
mod event;
mod staging;
mod stream;

pub use backend::{Backend, CopyCalls, Deferred, Handle, MemoryCalls, Reservation, SyncCalls, check_same};
pub(crate) use backend::{Release, wait_for_devices};
pub use drop_log::DropLog;
pub use event::Event;
pub(crate) use staging::CopyStreams;
pub use staging::{CopyStream, Pinned};
pub use stream::{Stream, WaitFor};
