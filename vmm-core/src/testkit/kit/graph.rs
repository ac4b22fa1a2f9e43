//! Captures of streams, and the graphs that they create.

use crate::driver::Stream;
use crate::types::{Detail, Error, Operation, Result, Vendor};
use std::fmt::Debug;

/// The calls that a capture forbids while it lasts. CUDA: `CUstreamCaptureMode`; HIP: `hipStreamCaptureMode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureMode {
    /// Potentially unsafe calls of every thread.
    Global,
    /// Potentially unsafe calls of the thread that began the capture.
    ThreadLocal,
    /// No calls.
    Relaxed,
}

impl CaptureMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Global, Self::ThreadLocal, Self::Relaxed];

    /// Returns the number of the mode, which both vendors use.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Global => 0,
            Self::ThreadLocal => 1,
            Self::Relaxed => 2,
        }
    }
}

/// Captured work that is ready to launch. Dropping the graph destroys it.
pub trait Graph: Debug + Send {
    /// Queues all of its work on a stream. CUDA: `cuGraphLaunch`, HIP: `hipGraphLaunch`.
    ///
    /// # Safety
    ///
    /// The memory that the work uses is mapped, and the devices have the access that it needs, until the work is done. The
    /// graph is not dropped before that.
    ///
    /// # Errors
    ///
    /// The driver's error.
    unsafe fn launch(&self, stream: Stream<'_>) -> Result<()>;
}

/// The handle of the per-thread default stream, for vendors that have one.
pub(super) const fn per_thread_stream(vendor: Vendor) -> Option<Stream<'static>> {
    match vendor {
        Vendor::Cuda | Vendor::Hip => Some(Stream::PER_THREAD),
        Vendor::Host => None,
    }
}

/// The error of a backend that lacks a part of the test kit.
pub(super) fn absent<T>(operation: Operation, what: &str) -> Result<T> {
    Err(Error::new(operation, Detail::Unsupported { reason: format!("this backend has no {what}") }))
}
