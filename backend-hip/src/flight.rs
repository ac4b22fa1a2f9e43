//! Work in flight: a stream of its own, and what is queued on it.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{self, hipError_t, hipStream_t, hipStreamNonBlocking};
use gpu_vmm_core::workbench::Flight;
use gpu_vmm_core::{DeviceId, Error, Result, Stream};
use std::ptr::null_mut;
use std::sync::Arc;

/// A stream that no null stream waits for.
#[derive(Debug)]
pub(crate) struct HipFlight {
    driver: Arc<Driver>,
    device: DeviceId,
    stream: hipStream_t,
    query: ffi::hipStreamQuery,
    destroy: ffi::hipStreamDestroy,
}

// SAFETY: HIP takes a stream from any thread; the pointer is a name that this crate never follows.
unsafe impl Send for HipFlight {}

impl HipFlight {
    /// A stream of the device, which is current.
    pub(crate) fn new(operation: &'static str, driver: Arc<Driver>, device: DeviceId) -> Result<Self> {
        let hip = &driver.hip;
        let (Some(create), Some(query), Some(destroy)) =
            (hip.hipStreamCreateWithFlags, hip.hipStreamQuery, hip.hipStreamDestroy)
        else {
            let reason = "this HIP has no hipStreamCreateWithFlags and what belongs to it".to_owned();
            return Err(Error::Unsupported { operation, reason });
        };
        let mut stream = null_mut();
        // SAFETY: HIP writes one stream.
        let code = unsafe { create(&raw mut stream, hipStreamNonBlocking) };
        driver.check(operation, "hipStreamCreateWithFlags", code, || device.to_string())?;
        Ok(Self { driver, device, stream, query, destroy })
    }

    pub(crate) const fn raw(&self) -> hipStream_t {
        self.stream
    }

    /// Waits, and gives the stream back.
    fn end(&self, operation: &'static str) -> Result<()> {
        let _current = self.driver.on(operation, self.device)?;
        let finished = self.driver.synchronize_stream(self.stream());
        // SAFETY: the stream was made by this and is destroyed once, here.
        let code = unsafe { (self.destroy)(self.stream) };
        finished.and(self.driver.check(operation, "hipStreamDestroy", code, || self.device.to_string()))
    }
}

impl Flight for HipFlight {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: the stream lives as long as it is borrowed.
        unsafe { Stream::from_raw(self.stream.cast()) }
    }

    fn is_done(&self) -> Result<bool> {
        const OPERATION: &str = "ask a stream";
        let _current = self.driver.on(OPERATION, self.device)?;
        // SAFETY: the stream is alive.
        let code = unsafe { (self.query)(self.stream) };
        match self.driver.check(OPERATION, "hipStreamQuery", code, || format!("stream {:p}", self.stream)) {
            Err(_) if code == hipError_t::hipErrorNotReady => Ok(false),
            answer => answer.map(|()| true),
        }
    }
}

impl Drop for HipFlight {
    fn drop(&mut self) {
        match self.end("finish work") {
            // In a forked child the stream is the parent's; with its device it has died.
            Ok(()) | Err(Error::Forked { .. } | Error::DeviceLost { .. }) => {}
            Err(error) => self.driver.drop_log.record(error),
        }
    }
}
