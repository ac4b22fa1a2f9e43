//! A stream of one's own, which no default stream waits for: work in flight and copies on their way are on one.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::CudaBackend;
use crate::context::Entered;
use crate::ffi::{CuContext, CuStream};
use crate::own_context::OwnContext;
use gpu_vmm_core::{DeviceId, Operation, Result};

/// The stream, and the context that it is in. Dropping it waits. In a forked child dropping does nothing.
#[derive(Debug)]
pub(crate) struct OwnStream {
    pub(crate) backend: CudaBackend,
    context: CuContext,
    stream: CuStream,
    /// A context that was made for the stream, and ends after it.
    pub(crate) own: Option<OwnContext>,
}

impl CudaBackend {
    /// Makes a stream in the current context, with these flags (`CUstream_flags`).
    pub(crate) fn new_stream(&self, operation: Operation, flags: u32) -> Result<CuStream> {
        let mut stream = CuStream::NULL;
        // SAFETY: the pointer is good for one stream, and a context is current.
        let result = unsafe { (self.functions().stream_create)(&raw mut stream, flags) };
        self.check(operation, "cuStreamCreate", result, || format!("flags {flags}"))?;
        Ok(stream)
    }
}

impl OwnStream {
    /// Makes a stream in the device's context, with these flags (`CUstream_flags`).
    pub(crate) fn new(
        operation: Operation,
        backend: &CudaBackend,
        device: DeviceId,
        flags: u32,
    ) -> Result<Self> {
        let context = backend.context(operation, device)?.raw;
        Self::inside(operation, backend, context, flags, None)
    }

    /// Makes a stream in a context that ends with the stream.
    pub(crate) fn elsewhere(operation: Operation, own: OwnContext, flags: u32) -> Result<Self> {
        let (backend, context) = (own.backend.clone(), own.raw);
        Self::inside(operation, &backend, context, flags, Some(own))
    }

    fn inside(
        operation: Operation,
        backend: &CudaBackend,
        context: CuContext,
        flags: u32,
        own: Option<OwnContext>,
    ) -> Result<Self> {
        let _entered = backend.enter(operation, context)?;
        let stream = backend.new_stream(operation, flags)?;
        Ok(Self { backend: backend.clone(), context, stream, own })
    }

    pub(crate) const fn raw(&self) -> CuStream {
        self.stream
    }

    /// Makes its context current, as all calls want it that are given the stream.
    pub(crate) fn enter(&self, operation: Operation) -> Result<Entered<'_>> {
        self.backend.here(operation)?;
        self.backend.enter(operation, self.context)
    }

    /// Waits for all that is queued on it.
    pub(crate) fn wait(&self, operation: Operation) -> Result<()> {
        let _entered = self.enter(operation)?;
        self.backend.finish(operation, self.stream)
    }

    /// Waits, and gives the stream back.
    fn end(&self, operation: Operation) -> Result<()> {
        let _entered = self.enter(operation)?;
        let finished = self.backend.finish(operation, self.stream);
        // SAFETY: the stream was made in this context and is destroyed once, here.
        let result = unsafe { (self.backend.functions().stream_destroy)(self.stream) };
        finished.and(self.backend.check(operation, "cuStreamDestroy_v2", result, String::new))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        self.backend.log_end(self.end(Operation::DestroyStream));
    }
}
