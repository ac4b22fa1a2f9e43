//! A stream that the backend owns, for copies and for work in flight.
#![allow(unsafe_code)] // calls into HIP

use crate::device::Current;
use crate::driver::Driver;
use crate::ffi::hipStream_t;
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result, Stream};
use std::ptr::null_mut;
use std::sync::Arc;

/// A stream and its device. Dropping it waits for its work. In a forked child dropping it does nothing.
#[derive(Debug)]
pub(crate) struct OwnStream {
    pub(crate) driver: Arc<Driver>,
    pub(crate) device: DeviceId,
    stream: hipStream_t,
}

// SAFETY: HIP takes a stream from any thread; this crate never dereferences the pointer.
unsafe impl Send for OwnStream {}
// SAFETY: as above.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    /// Creates a stream of a device with flags (`hipStreamDefault`, `hipStreamNonBlocking`).
    pub(crate) fn new(
        operation: Operation,
        driver: &Arc<Driver>,
        device: DeviceId,
        flags: u32,
    ) -> Result<Self> {
        let hip = &driver.hip;
        let create = needed(operation, "hipStreamCreateWithFlags", hip.hipStreamCreateWithFlags)?;
        // Without it the stream could not be destroyed.
        needed(operation, "hipStreamDestroy", hip.hipStreamDestroy)?;
        let _current = driver.on(operation, device)?;
        let mut stream = null_mut();
        // SAFETY: HIP writes one stream.
        let code = unsafe { create(&raw mut stream, flags) };
        driver.check(operation, "hipStreamCreateWithFlags", code, || device.to_string())?;
        Ok(Self { driver: Arc::clone(driver), device, stream })
    }

    pub(crate) const fn raw(&self) -> hipStream_t {
        self.stream
    }

    /// Makes the stream's device current, as calls on the stream require.
    pub(crate) fn enter(&self, operation: Operation) -> Result<Current<'_>> {
        self.driver.on(operation, self.device)
    }

    /// Waits for all work that is queued on the stream.
    pub(crate) fn wait(&self, operation: Operation) -> Result<()> {
        let _current = self.enter(operation)?;
        self.driver.wait_for(operation, self.stream)
    }

    /// Waits, and destroys the stream.
    fn end(&self, operation: Operation) -> Result<()> {
        let _current = self.enter(operation)?;
        let finished = self.driver.wait_for(operation, self.stream);
        let destroy = needed(operation, "hipStreamDestroy", self.driver.hip.hipStreamDestroy)?;
        // SAFETY: this object created the stream, which is destroyed once, here.
        let code = unsafe { destroy(self.stream) };
        finished.and(self.driver.check(operation, "hipStreamDestroy", code, || self.device.to_string()))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        self.driver.log_end(self.end(Operation::DestroyStream));
    }
}

/// Returns HIP's handle of a stream. The default stream is always null: `hipStreamLegacy` (1) was added within version
/// 6, and a version that does not know it would dereference it. `hipStreamPerThread` (2) is older than 6.1.
pub(crate) fn raw(stream: Stream<'_>) -> hipStream_t {
    if stream.is_default() { null_mut() } else { stream.as_raw().cast() }
}

impl Driver {
    /// Returns a stream's device; `None` for the null stream and the per-thread stream, which belong to the current device, and if
    /// this HIP cannot report it.
    pub(crate) fn device_of(&self, operation: Operation, stream: Stream<'_>) -> Result<Option<DeviceId>> {
        let is_named = !stream.is_default() && !stream.is_per_thread();
        let Some(device_of) = self.hip.hipStreamGetDevice.filter(|_| is_named) else {
            return Ok(None);
        };
        let stream = raw(stream);
        let mut device = -1;
        // SAFETY: the stream is alive, by the promise of `Stream`; HIP writes one number.
        let code = unsafe { device_of(stream, &raw mut device) };
        self.check(operation, "hipStreamGetDevice", code, || format!("stream {stream:p}"))?;
        u32::try_from(device).map(|device| Some(DeviceId(device))).map_err(|_| {
            let what = format!("hipStreamGetDevice returned device {device} for stream {stream:p}");
            Error::new(operation, Detail::DriverContractViolated { what })
        })
    }
}

/// Returns a function that some versions of HIP lack, or the error that names it.
pub(crate) fn needed<T>(operation: Operation, name: &str, function: Option<T>) -> Result<T> {
    function.ok_or_else(|| {
        Error::new(operation, Detail::Unsupported { reason: format!("this HIP has no {name}") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_missing_is_named() {
        assert_eq!(needed(Operation::PinMemory, "hipHostMalloc", Some(7)).unwrap(), 7);
        let error = needed::<()>(Operation::PinMemory, "hipHostMalloc", None).unwrap_err();
        assert!(
            matches!(error.detail(), Detail::Unsupported { .. }) && error.operation() == Operation::PinMemory,
            "{error:?}"
        );
        assert!(error.to_string().contains("hipHostMalloc"), "{error}");
    }
}
