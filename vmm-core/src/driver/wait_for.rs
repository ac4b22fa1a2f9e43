//! The choice of what to wait for before memory is unmapped.

use crate::driver::{Backend, Stream, wait_for_devices};
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{DeviceId, ErrorKind, Operation, Result};

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
