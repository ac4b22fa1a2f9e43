//! Work in flight: a stream of its own, and what is queued on it.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::CudaBackend;
use crate::ffi::{CuContext, CuResult, CuStream, STREAM_NON_BLOCKING};
use gpu_vmm_core::workbench::Flight;
use gpu_vmm_core::{DeviceId, Error, Result, Stream};

/// A stream that no default stream waits for.
#[derive(Debug)]
pub(crate) struct CudaFlight {
    backend: CudaBackend,
    context: CuContext,
    stream: CuStream,
}

impl CudaFlight {
    /// A stream in the device's context, which is current.
    pub(crate) fn new(operation: &'static str, backend: &CudaBackend, device: DeviceId) -> Result<Self> {
        let context = backend.context(operation, device)?.raw;
        let mut stream = CuStream::NULL;
        // SAFETY: the pointer is good for one stream, and a context is current.
        let result = unsafe { (backend.functions().stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        backend.check(operation, "cuStreamCreate", result, || device.to_string())?;
        Ok(Self { backend: backend.clone(), context, stream })
    }

    pub(crate) const fn raw(&self) -> CuStream {
        self.stream
    }

    /// Waits, and gives the stream back.
    fn end(&self, operation: &'static str) -> Result<()> {
        self.backend.here(operation)?;
        let _entered = self.backend.enter(operation, self.context)?;
        let finished = self.backend.finish(operation, self.stream);
        // SAFETY: the stream was made in this context and is destroyed once, here.
        let result = unsafe { (self.backend.functions().stream_destroy)(self.stream) };
        finished.and(self.backend.check(operation, "cuStreamDestroy_v2", result, String::new))
    }
}

impl Flight for CudaFlight {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: the stream lives as long as it is borrowed.
        unsafe { Stream::from_raw(self.stream.0) }
    }

    fn is_done(&self) -> Result<bool> {
        const OPERATION: &str = "ask a stream";
        let _entered = self.backend.enter(OPERATION, self.context)?;
        // SAFETY: the stream is live, and its context is current.
        match unsafe { (self.backend.functions().stream_query)(self.stream) } {
            CuResult::NOT_READY => Ok(false),
            result => {
                let context = || format!("stream {:?}", self.stream);
                self.backend.check(OPERATION, "cuStreamQuery", result, context).map(|()| true)
            }
        }
    }
}

impl Drop for CudaFlight {
    fn drop(&mut self) {
        match self.end("finish work") {
            // In a forked child the stream is the parent's; with its device it has died.
            Ok(()) | Err(Error::Forked { .. } | Error::DeviceLost { .. }) => {}
            Err(error) => self.backend.inner.drop_log.record(error),
        }
    }
}
