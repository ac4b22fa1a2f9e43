//! Streams of a vendor, and the choice of what to wait for before memory is unmapped.

use crate::driver::{Backend, wait_for_devices};
use crate::types::{Detail, DeviceId, Error, ErrorKind, Operation, Result};
use std::ffi::c_void;
use std::marker::PhantomData;

/// A stream of a vendor's driver. CUDA: `CUstream`, HIP: `hipStream_t`.
///
/// The host backend has only the default stream and the streams that tests create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream<'a> {
    raw: *mut c_void,
    lifetime: PhantomData<&'a ()>,
}

// SAFETY: both vendors accept a stream from any thread, and the pointer is never dereferenced here.
#[allow(unsafe_code)]
unsafe impl Send for Stream<'_> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Stream<'_> {}

impl Stream<'static> {
    /// The default stream. CUDA: the legacy default stream, HIP: the null stream.
    ///
    /// Each device has its own default stream, and on CUDA each context. The call that takes the stream determines which one is
    /// meant.
    pub const DEFAULT: Self = Self { raw: std::ptr::null_mut(), lifetime: PhantomData };

    /// The [per-thread default stream](Stream::is_per_thread), which is a different stream in each thread.
    pub const PER_THREAD: Self =
        Self { raw: std::ptr::without_provenance_mut(PER_THREAD), lifetime: PhantomData };
}

impl<'a> Stream<'a> {
    /// Wraps a vendor's stream. A null pointer means the default stream.
    ///
    /// # Safety
    ///
    /// For `'a`, `raw` must be null or a live stream of the vendor to whose backend it is passed.
    #[allow(unsafe_code)]
    #[must_use]
    pub const unsafe fn from_raw(raw: *mut c_void) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    /// Returns the vendor's pointer.
    #[must_use]
    pub const fn as_raw(self) -> *mut c_void {
        self.raw
    }

    /// Returns true for the default stream: null, `CU_STREAM_LEGACY` on CUDA, `hipStreamLegacy` on HIP.
    #[inline]
    #[must_use]
    pub fn is_default(self) -> bool {
        self.raw.addr() <= LEGACY
    }

    /// Returns true for the per-thread default stream, whose handle means a different stream in each thread. CUDA:
    /// `CU_STREAM_PER_THREAD`, HIP: `hipStreamPerThread`.
    #[inline]
    #[must_use]
    pub fn is_per_thread(self) -> bool {
        self.raw.addr() == PER_THREAD
    }

    /// Rejects the [per-thread default stream](Stream::is_per_thread), for calls that pass a stream to other threads.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for the per-thread default stream.
    pub fn check_shared(self, operation: Operation) -> Result<()> {
        if !self.is_per_thread() {
            return Ok(());
        }
        let reason = "stream 0x2 is the per-thread default stream (CU_STREAM_PER_THREAD, hipStreamPerThread), which is \
                      another stream in each thread; pass a stream that the program created, or the default stream";
        Err(Error::new(operation, Detail::Unsupported { reason: reason.to_owned() }))
    }
}

/// `CU_STREAM_LEGACY` and `hipStreamLegacy`.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD` and `hipStreamPerThread`.
const PER_THREAD: usize = 2;

/// The work to wait for before memory is unmapped.
///
/// A driver's unmap does not reliably wait for work that still uses the memory: CUDA's returns while a kernel runs, and the
/// kernel then faults. Every function that unmaps memory therefore takes a `WaitFor`.
#[derive(Clone, Copy, Debug)]
pub struct WaitFor<'a>(Wait<'a>);

#[derive(Clone, Copy, Debug)]
enum Wait<'a> {
    Devices,
    Streams(&'a [Stream<'a>]),
    Nothing,
}

impl<'a> WaitFor<'a> {
    /// Waits until every device that has access to the memory has finished all work that this process has queued
    /// (`cuCtxSynchronize`, `hipDeviceSynchronize`).
    ///
    /// On CUDA, work is queued in contexts. The wait covers the device's primary context, every context that a backend was
    /// opened with, and the calling thread's current one. It does not cover other contexts that the program created
    /// (`cuCtxCreate`) or work of other processes.
    ///
    /// While a stream captures, the call fails with [`Detail::Capturing`] and unmaps nothing.
    #[must_use]
    pub const fn all_devices() -> Self {
        Self(Wait::Devices)
    }

    /// Waits for the work that is queued on these streams when the wait begins (`cuStreamSynchronize`, `hipStreamSynchronize`).
    /// The default stream means the default streams of all devices that have access to the memory.
    ///
    /// The [per-thread default stream](Stream::is_per_thread) is rejected with [`Detail::Unsupported`].
    ///
    /// # Safety
    ///
    /// The list must be complete: no work on any other stream uses the memory now or later.
    #[allow(unsafe_code)]
    #[must_use]
    pub const unsafe fn streams(streams: &'a [Stream<'a>]) -> Self {
        Self(Wait::Streams(streams))
    }

    /// Does not wait.
    ///
    /// # Safety
    ///
    /// No work on any device uses the memory now or later. Such work would access addresses that are unmapped or map other
    /// memory by then.
    #[allow(unsafe_code)]
    #[must_use]
    pub const unsafe fn nothing() -> Self {
        Self(Wait::Nothing)
    }

    /// Replaces [`ErrorKind::DeviceLost`] by `done`, because a lost device no longer uses any memory. For authors of backends.
    ///
    /// # Errors
    ///
    /// Any other error of `answer`.
    pub fn or_lost<T>(answer: Result<T>, done: T) -> Result<T> {
        match answer {
            Err(error) if error.kind() == ErrorKind::DeviceLost => Ok(done),
            other => other,
        }
    }

    /// Waits now. `devices` returns the devices that have access to the memory. A lost device counts as finished.
    ///
    /// For allocators that must not wait while they hold a lock.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] if a stream captures, [`Detail::Unsupported`] for the
    /// [per-thread default stream](Stream::is_per_thread), or any other error that the driver returns.
    pub fn wait<B: Backend, D: Iterator<Item = DeviceId>>(
        self,
        backend: &B,
        devices: impl FnOnce() -> D,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::WaitForStream;
        match self.0 {
            Wait::Nothing => Ok(()),
            Wait::Devices => wait_for_devices(backend, Operation::WaitForDevice, devices()),
            Wait::Streams(streams) => {
                streams.iter().try_for_each(|stream| stream.check_shared(OPERATION))?;
                let wait = |device, stream| Self::or_lost(backend.synchronize_stream(device, stream), ());
                let (default, others): (Vec<Stream<'_>>, Vec<Stream<'_>>) =
                    streams.iter().copied().partition(|stream| stream.is_default());
                // Only a default stream depends on the device argument.
                others.into_iter().try_for_each(|stream| wait(DeviceId(0), stream))?;
                match default.first() {
                    Some(stream) => devices().try_for_each(|device| wait(device, *stream)),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_the_default_stream_and_no_other_are_the_default_stream() {
        // SAFETY: no driver is called with them.
        let stream = |raw| unsafe { Stream::from_raw(std::ptr::without_provenance_mut(raw)) };
        let is: [(bool, bool); 4] = [0, LEGACY, PER_THREAD, 0x1000]
            .map(|raw| (stream(raw).is_default(), stream(raw).is_per_thread()));
        assert_eq!(is, [(true, false), (true, false), (false, true), (false, false)]);
    }

    #[test]
    fn the_per_thread_stream_is_refused_by_the_names_of_both_vendors() {
        let error = Stream::PER_THREAD.check_shared(Operation::RecordUse).map_err(|error| error.to_string());
        let text = "record use: not supported: stream 0x2 is the per-thread default stream (CU_STREAM_PER_THREAD, \
                    hipStreamPerThread), which is another stream in each thread; pass a stream that the program \
                    created, or the default stream";
        assert_eq!(error, Err(text.to_owned()));
        assert!(Stream::DEFAULT.check_shared(Operation::RecordUse).is_ok());
    }
}
