//! The driver's calls for waiting, and what they do to captures.

use crate::driver::{Event, Stream};
#[cfg(doc)]
use crate::types::Detail;
use crate::types::{DeviceId, Result};

/// Waiting for devices, streams and events.
///
/// # Safety
///
/// - [`synchronize`](Self::synchronize) and [`synchronize_stream`](Self::synchronize_stream) return `Ok` only after the work
///   that they name has finished, and [`Detail::DeviceLost`] only if that work cannot run any more.
/// - [`event`](Self::event) returns an object that keeps what [`Event`] promises, for this driver and the device that
///   was given.
pub unsafe trait SyncCalls {
    /// Waits until a device has finished everything that this process has queued. CUDA: `cuCtxSynchronize` in each context
    /// that the backend knows, HIP: `hipDeviceSynchronize`.
    ///
    /// # Errors
    ///
    /// [`Detail::DeviceLost`] if the device has died, and with it all its work; [`Detail::Capturing`] if a stream captures,
    /// so that the driver refuses to wait; else what the driver answers.
    fn synchronize(&self, device: DeviceId) -> Result<()>;

    /// Waits for a stream; the default stream is `device`'s. CUDA: `cuStreamSynchronize`, HIP: `hipStreamSynchronize`.
    ///
    /// The [per-thread default stream](Stream::is_per_thread) is the calling thread's.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](SyncCalls::synchronize).
    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()>;

    /// An event for streams of a device, not recorded yet. CUDA: `cuEventCreate`, HIP: `hipEventCreateWithFlags`, without
    /// the time, which gpu-vmm does not use.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], [`Detail::Unsupported`] where the driver lacks them, or what the driver answers.
    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>>;

    /// Whether what is queued on the stream goes into a graph, to be run later and any number of times, instead of to the
    /// device; true as well for a capture that has been spoilt and not ended. CUDA: `cuStreamIsCapturing`, HIP:
    /// `hipStreamIsCapturing`.
    ///
    /// Memory that work in a graph uses is in use whenever the graph runs: no [`Event`] on such a stream tells when that
    /// is over. A default stream that all threads share never captures; for that one the result is true while work on
    /// it would break the capture of another stream, as far as the driver reports it (`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`).
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool>;

    /// True if a question about an [`Event`] spoils the captures of streams that have nothing to do with it, whichever
    /// thread asks.
    fn queries_spoil_captures(&self) -> bool;
}
