//! A place in the work of a stream, and whether a device has come to it.
#![allow(unsafe_code)] // traits that make promises

use crate::driver::Stream;
#[cfg(doc)]
use crate::types::Detail;
use crate::types::Result;
use std::fmt::Debug;

/// A mark behind the work that is queued on a stream. CUDA: `CUevent` with `CU_EVENT_DISABLE_TIMING`, HIP: `hipEvent_t`
/// with `hipEventDisableTiming`. Made by [`SyncCalls::event`](crate::SyncCalls::event) for one device.
///
/// Dropping it neither waits nor takes the mark away from those whom it [holds](Event::hold). In a forked child every call
/// is an error and dropping does nothing. On host memory all work is done when its call returns, so every event is done.
///
/// # Captures
///
/// An event that is recorded on a stream [under capture](crate::SyncCalls::is_capturing) becomes a part of the graph and
/// marks nothing that could be asked about or waited for: until it is recorded elsewhere, both are errors
/// (`CUDA_ERROR_CAPTURED_EVENT`, `hipErrorCapturedEvent`), and on NVIDIA's driver the question spoils the capture while that
/// goes on. By themselves, both vendors also refuse questions about any event and waits for it, and spoil the capture, while
/// this thread captures in a mode that is not relaxed, or any thread in the global one. The backends put the calling thread
/// into relaxed mode for the call, in which neither happens
/// ([`queries_spoil_captures`](crate::SyncCalls::queries_spoil_captures)).
///
/// # Safety
///
/// [`is_done`](Event::is_done) returns `Ok(true)`, and [`wait`](Event::wait) `Ok`, only after the work that was queued on the
/// stream when the event was last recorded has finished, or can never run any more: memory is unmapped and handed out
/// again on these answers.
pub unsafe trait Event: Debug + Send + Sync {
    /// Marks the work that is queued on the stream now, in the place of what was marked before. CUDA: `cuEventRecord`, HIP:
    /// `hipEventRecord`.
    ///
    /// The default stream is that of the event's device.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignStream`] for a stream of another device or, on CUDA, of another context;
    /// then the event marks what it did before. Else what the driver answers.
    fn record(&mut self, stream: Stream<'_>) -> Result<()>;

    /// Whether the marked work is done; true where nothing was ever marked. CUDA: `cuEventQuery`, HIP: `hipEventQuery`.
    ///
    /// With a device that has died its work has ended: that counts as done.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn is_done(&self) -> Result<bool>;

    /// Waits until the marked work is done, or has died with its device. CUDA: `cuEventSynchronize`, HIP:
    /// `hipEventSynchronize`.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn wait(&self) -> Result<()>;

    /// Has what is queued on the stream from now on wait for the work that is marked now. No CPU waits, and what the event
    /// marks later is not waited for. CUDA: `cuStreamWaitEvent`, HIP: `hipStreamWaitEvent`.
    ///
    /// The stream may be of another device; the default stream is that of the event's.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn hold(&self, stream: Stream<'_>) -> Result<()>;
}
