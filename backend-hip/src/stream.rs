//! A stream of one's own, which no null stream waits for: work in flight and copies on their way are on one.
#![allow(unsafe_code)] // calls into HIP

use crate::device::Current;
use crate::driver::Driver;
use crate::ffi::hipStream_t;
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result, Stream};
use std::ptr::null_mut;
use std::sync::Arc;

/// The stream, and the device that it is on. Dropping it waits. In a forked child dropping does nothing.
#[derive(Debug)]
pub(crate) struct OwnStream {
    pub(crate) driver: Arc<Driver>,
    pub(crate) device: DeviceId,
    stream: hipStream_t,
}

// SAFETY: HIP takes a stream from any thread; the pointer is a name that this crate never follows.
unsafe impl Send for OwnStream {}
// SAFETY: as above.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    /// A stream of the device, with these flags (`hipStreamDefault`, `hipStreamNonBlocking`).
    pub(crate) fn new(
        operation: Operation,
        driver: &Arc<Driver>,
        device: DeviceId,
        flags: u32,
    ) -> Result<Self> {
        let hip = &driver.hip;
        let create = needed(operation, "hipStreamCreateWithFlags", hip.hipStreamCreateWithFlags)?;
        // Without it the stream could not be given back.
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

    /// Makes its device current, as the calls want it that are given the stream.
    pub(crate) fn enter(&self, operation: Operation) -> Result<Current<'_>> {
        self.driver.on(operation, self.device)
    }

    /// Waits for all that is queued on it.
    pub(crate) fn wait(&self, operation: Operation) -> Result<()> {
        let _current = self.enter(operation)?;
        self.driver.wait_for(operation, self.stream)
    }

    /// Waits, and gives the stream back.
    fn end(&self, operation: Operation) -> Result<()> {
        let _current = self.enter(operation)?;
        let finished = self.driver.wait_for(operation, self.stream);
        let destroy = needed(operation, "hipStreamDestroy", self.driver.hip.hipStreamDestroy)?;
        // SAFETY: the stream was made by this and is destroyed once, here.
        let code = unsafe { destroy(self.stream) };
        finished.and(self.driver.check(operation, "hipStreamDestroy", code, || self.device.to_string()))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        self.driver.log_end(self.end(Operation::DestroyStream));
    }
}

/// HIP's name of a stream. The default stream is null by either name: `hipStreamLegacy` (1) came in the middle of the 6th
/// version, and one that does not know it would follow it as a pointer. `hipStreamPerThread` (2) is older than 6.1.
pub(crate) fn raw(stream: Stream<'_>) -> hipStream_t {
    if stream.is_default() { null_mut() } else { stream.as_raw().cast() }
}

/// A function that not every version of HIP has, or the error that names it.
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
