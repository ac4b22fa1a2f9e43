//! The driver's calls that wait, and their effects on stream captures.

use crate::driver::{Event, Stream};
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{DeviceId, Result};

/// The driver's calls that wait for devices and streams and that create events.
///
/// # Safety
///
/// - [`synchronize`](Self::synchronize) and [`synchronize_stream`](Self::synchronize_stream) return `Ok` only after the work
///   that they wait for has finished, and [`Detail::DeviceLost`] only if that work cannot run any more.
/// - [`event`](Self::event) returns an object that meets the `# Safety` section of [`Event`] for this driver and the given
///   device.
pub unsafe trait SyncCalls {
    /// Waits until a device has finished all work that this process has queued. CUDA: `cuCtxSynchronize` in each context
    /// that the backend knows, HIP: `hipDeviceSynchronize`.
    ///
    /// # Errors
    ///
    /// [`Detail::DeviceLost`] if the device is lost, which ends all its work. [`Detail::Capturing`] if a stream captures, so that
    /// the driver refuses to wait. Any other error that the driver returns.
    fn synchronize(&self, device: DeviceId) -> Result<()>;

    /// Waits until a stream has finished its queued work. CUDA: `cuStreamSynchronize`, HIP: `hipStreamSynchronize`.
    ///
    /// The default stream belongs to `device`, and the [per-thread default stream](Stream::is_per_thread) to the calling
    /// thread.
    ///
    /// # Errors
    ///
    /// The same as for [`synchronize`](SyncCalls::synchronize).
    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()>;

    /// Creates an event for streams of a device, without timing. CUDA: `cuEventCreate`, HIP: `hipEventCreateWithFlags`.
    ///
    /// Pools need events to reuse freed memory. A backend whose work has ended when its call returns creates events that are always
    /// done.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], [`Detail::Unsupported`] if the driver has no events, or any error that the driver returns.
    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>>;

    /// Returns true if the stream captures its work into a graph instead of running it. CUDA: `cuStreamIsCapturing`, HIP:
    /// `hipStreamIsCapturing`.
    ///
    /// The result is also true for an invalidated capture that has not ended. A graph can run later and any number of times, and
    /// uses the memory of its work each time: no [`Event`] on the stream reports when that is over.
    ///
    /// A default stream that all threads share never captures. For that stream, the result is true while work on it would
    /// invalidate the capture of another stream, as far as the driver reports that (`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`).
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool>;

    /// Returns true if a query of an [`Event`] from any thread invalidates the captures of unrelated streams.
    fn queries_spoil_captures(&self) -> bool;

    /// Returns true if [`synchronize`](Self::synchronize) fails while a stream captures, and may invalidate the capture. False on HIP,
    /// where the backend waits by another call.
    fn waits_spoil_captures(&self) -> bool {
        true
    }
}
