//! A vendor's stream, and the proof that a device is done with memory.

use crate::driver::{Backend, wait_for_devices};
use crate::types::{Detail, DeviceId, Error, ErrorKind, Operation, Result};
use std::ffi::c_void;
use std::marker::PhantomData;

/// A stream of the vendor: CUDA's `CUstream`, HIP's `hipStream_t`. Host memory has the default stream alone, and
/// those that tests make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream<'a> {
    raw: *mut c_void,
    lifetime: PhantomData<&'a ()>,
}

// SAFETY: a stream is a name that both vendors accept from any thread; nothing is reached through the pointer here.
#[allow(unsafe_code)]
unsafe impl Send for Stream<'_> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Stream<'_> {}

impl Stream<'static> {
    /// The default stream, which every device has. CUDA: the legacy default stream, HIP: the null stream.
    ///
    /// Each device has its own, and on CUDA each context: which one is meant says whatever the stream is given to.
    pub const DEFAULT: Self = Self { raw: std::ptr::null_mut(), lifetime: PhantomData };

    /// The [per-thread default stream](Stream::is_per_thread): another stream in each thread.
    pub const PER_THREAD: Self =
        Self { raw: std::ptr::without_provenance_mut(PER_THREAD), lifetime: PhantomData };
}

impl<'a> Stream<'a> {
    /// Takes a vendor's stream as it is; null is the default stream.
    ///
    /// # Safety
    ///
    /// `raw` is null or a live stream of the vendor whose backend it will be given to, and stays so for `'a`.
    #[allow(unsafe_code)]
    #[must_use]
    pub const unsafe fn from_raw(raw: *mut c_void) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    /// The vendor's pointer.
    #[must_use]
    pub const fn as_raw(self) -> *mut c_void {
        self.raw
    }

    /// True for the default stream: null, or CUDA's `CU_STREAM_LEGACY`, HIP's `hipStreamLegacy`.
    #[inline]
    #[must_use]
    pub fn is_default(self) -> bool {
        self.raw.addr() <= LEGACY
    }

    /// True for the handle that means another stream in each thread: CUDA's `CU_STREAM_PER_THREAD`, HIP's
    /// `hipStreamPerThread`.
    #[inline]
    #[must_use]
    pub fn is_per_thread(self) -> bool {
        self.raw.addr() == PER_THREAD
    }

    /// Refuses the [per-thread default stream](Stream::is_per_thread), for calls that hand a stream to other threads.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`], with what to pass instead.
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

/// How it is known that no device still works on memory that is about to be taken away.
///
/// No driver's unmap can be relied on to wait for work that still uses the memory: CUDA's returns while a kernel
/// runs, and the kernel then faults. So whatever unmaps asks for one of these.
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
    /// On CUDA, work is queued in contexts. Waited for are the device's primary context, every context that a backend was
    /// opened with, and the calling thread's current one. Work in any other context that the program made
    /// (`cuCtxCreate`), and work of other processes, cannot be waited for.
    ///
    /// While a stream captures, the result is [`Detail::Capturing`]; nothing is taken away then.
    #[must_use]
    pub const fn all_devices() -> Self {
        Self(Wait::Devices)
    }

    /// Waits for the work that is queued on these streams now (`cuStreamSynchronize`, `hipStreamSynchronize`). The default
    /// stream stands for that of every device that has access to the memory.
    ///
    /// The [per-thread default stream](Stream::is_per_thread) is refused with [`Detail::Unsupported`].
    ///
    /// # Safety
    ///
    /// The list is complete: no work on any other stream still uses the memory or will use it.
    #[allow(unsafe_code)]
    #[must_use]
    pub const unsafe fn streams(streams: &'a [Stream<'a>]) -> Self {
        Self(Wait::Streams(streams))
    }

    /// Waits for nothing.
    ///
    /// # Safety
    ///
    /// No work on any device still uses the memory or will use it: it would read or write what is not there any
    /// more, or what has been put there since.
    #[allow(unsafe_code)]
    #[must_use]
    pub const unsafe fn nothing() -> Self {
        Self(Wait::Nothing)
    }

    /// What waiting for a device came to, or asking it: `done` where it has died, since it uses nothing any more. For
    /// authors of a backend.
    ///
    /// # Errors
    ///
    /// All others of the answer's.
    pub fn or_lost<T>(answer: Result<T>, done: T) -> Result<T> {
        match answer {
            Err(error) if error.kind() == ErrorKind::DeviceLost => Ok(done),
            other => other,
        }
    }

    /// Waits now, as it says; `devices` are those that have access to the memory. A device that has died uses nothing any
    /// more. For allocators that must not wait while they hold a lock.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] if a stream captures, [`Detail::Unsupported`] for the
    /// [per-thread default stream](Stream::is_per_thread), or what the driver answers.
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
                // Such a stream's device is its own, whichever is named.
                others.into_iter().try_for_each(|stream| wait(DeviceId(0), stream))?;
                match default.first() {
                    Some(stream) => devices().try_for_each(|device| wait(device, *stream)),
                    None => Ok(()),
                }
            }
        }
    }
}
