//! Events: positions in the work of a stream that can be queried and waited for.
#![allow(unsafe_code)] // an unsafe trait

use crate::driver::Stream;
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::Result;
use std::fmt::Debug;

/// An event that records the work queued on a stream. CUDA: `CUevent` with `CU_EVENT_DISABLE_TIMING`, HIP: `hipEvent_t`
/// with `hipEventDisableTiming`. [`SyncCalls::event`](crate::SyncCalls::event) creates it for one device.
///
/// Dropping an event does not wait, and streams that [wait for it](Event::hold) still do. In a forked child, every call returns
/// an error and dropping does nothing. On host memory, work is done when its call returns, so every event is done.
///
/// # Captures
///
/// An event that is recorded on a [capturing](crate::SyncCalls::is_capturing) stream becomes part of the graph. Until it is
/// recorded elsewhere, queries and waits return an error (`CUDA_ERROR_CAPTURED_EVENT`, `hipErrorCapturedEvent`). On NVIDIA's
/// driver, such a query also invalidates the capture if that is still active.
///
/// Both vendors also refuse to query or wait for any event, and invalidate the capture, while the calling thread captures in a
/// mode other than relaxed, or while any thread captures in global mode. The backends avoid both: they switch the calling
/// thread to relaxed mode during the call ([`queries_spoil_captures`](crate::SyncCalls::queries_spoil_captures)).
///
/// # Safety
///
/// [`is_done`](Event::is_done) returns `Ok(true)`, and [`wait`](Event::wait) returns `Ok`, only after the recorded work has
/// finished or can never run any more. The recorded work is the work that was queued on the stream when the event was last
/// recorded. Memory is unmapped and reused on the strength of these results.
pub unsafe trait Event: Debug + Send + Sync {
    /// Records the work that is queued on the stream now, and replaces the earlier record. CUDA: `cuEventRecord`, HIP:
    /// `hipEventRecord`.
    ///
    /// The default stream belongs to the event's device.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignStream`] for a stream of another device or, on CUDA, of another context; the earlier record then stays.
    /// Any other error that the driver returns.
    fn record(&mut self, stream: Stream<'_>) -> Result<()>;

    /// Returns true if the recorded work is done or nothing was recorded. CUDA: `cuEventQuery`, HIP: `hipEventQuery`.
    ///
    /// The work of a lost device counts as done, because it has ended.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    fn is_done(&self) -> Result<bool>;

    /// Waits until the recorded work is done or its device is lost. CUDA: `cuEventSynchronize`, HIP:
    /// `hipEventSynchronize`.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    fn wait(&self) -> Result<()>;

    /// Makes all work that is queued on the stream from now on wait for the recorded work. CUDA: `cuStreamWaitEvent`, HIP:
    /// `hipStreamWaitEvent`.
    ///
    /// The CPU does not wait. Recording the event again later does not change what the stream waits for. The stream may belong
    /// to another device; the default stream belongs to the event's device.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    fn hold(&self, stream: Stream<'_>) -> Result<()>;

    /// Makes the record independent of its stream, so that the event can be asked while another thread destroys the stream. It must
    /// be called while the stream lives. Dropping the event may wait for the recorded work then.
    ///
    /// Drivers need no call for that, except for HIP before 7.0 (quirk `event-reads-its-stream`).
    ///
    /// # Errors
    ///
    /// Any error that the driver returns. The event then still depends on its stream.
    fn outlive_stream(&mut self) -> Result<()> {
        Ok(())
    }
}
