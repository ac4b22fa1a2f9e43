//! Streams of a vendor.

use crate::types::{Detail, Error, Operation, Result};
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

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    #[test]
    fn default_stream_has_exactly_two_names() {
        // SAFETY: no driver is called with them.
        let stream = |raw| unsafe { Stream::from_raw(std::ptr::without_provenance_mut(raw)) };
        let is: [(bool, bool); 4] = [0, LEGACY, PER_THREAD, 0x1000]
            .map(|raw| (stream(raw).is_default(), stream(raw).is_per_thread()));
        assert_eq!(is, [(true, false), (true, false), (false, true), (false, false)]);
    }

    #[test]
    fn per_thread_stream_refusal_names_both_vendors() {
        let error = Stream::PER_THREAD.check_shared(Operation::RecordUse).map_err(|error| error.to_string());
        let text = "record use: not supported: stream 0x2 is the per-thread default stream (CU_STREAM_PER_THREAD, \
                    hipStreamPerThread), which is another stream in each thread; pass a stream that the program \
                    created, or the default stream";
        assert_eq!(error, Err(text.to_owned()));
        assert!(Stream::DEFAULT.check_shared(Operation::RecordUse).is_ok());
    }
}
