//! A vendor's stream, and the proof that a device is done with memory.

use crate::{Backend, DeviceId, Error, Result};
use std::ffi::c_void;
use std::marker::PhantomData;

/// A stream of the vendor: CUDA's `CUstream`, HIP's `hipStream_t`. Host memory has none but those of
/// [`Workbench::own_stream`](crate::Workbench::own_stream), on which all work is done when its call returns.
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
    pub const DEFAULT: Self = Self { raw: std::ptr::null_mut(), lifetime: PhantomData };
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
}

/// How it is known that no device still works on memory that is about to be taken away.
///
/// No driver's unmap can be relied on to wait for work that still uses the memory: CUDA's returns while a kernel
/// runs, and the kernel then faults. So whatever unmaps asks for one of these.
#[derive(Clone, Copy, Debug)]
pub struct Done<'a>(Wait<'a>);

#[derive(Clone, Copy, Debug)]
enum Wait<'a> {
    Devices,
    Streams(&'a [Stream<'a>]),
    Nothing,
}

impl<'a> Done<'a> {
    /// Waits until every device that has access to the memory has finished all of its work
    /// (`cuCtxSynchronize`, `hipDeviceSynchronize`).
    #[must_use]
    pub const fn when_devices_idle() -> Self {
        Self(Wait::Devices)
    }

    /// Waits for the work that is queued on these streams now: name every stream that used the memory
    /// (`cuStreamSynchronize`, `hipStreamSynchronize`).
    #[must_use]
    pub const fn when_streams_idle(streams: &'a [Stream<'a>]) -> Self {
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
    pub const unsafe fn promised() -> Self {
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
            Err(Error::DeviceLost { .. }) => Ok(done),
            other => other,
        }
    }

    /// Waits as it says, for `devices` where it is these. A device that has died uses nothing any more.
    pub(crate) fn wait<B: Backend, D: Iterator<Item = DeviceId>>(
        self,
        backend: &B,
        devices: impl FnOnce() -> D,
    ) -> Result<()> {
        let settle = |answer| Self::or_lost(answer, ());
        match self.0 {
            Wait::Nothing => Ok(()),
            Wait::Devices => devices().try_for_each(|device| settle(backend.synchronize(device))),
            Wait::Streams(streams) => {
                streams.iter().try_for_each(|stream| settle(backend.synchronize_stream(*stream)))
            }
        }
    }
}
