//! Streams that this crate creates, for copies and for work in flight.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::context::Entered;
use crate::driver::Opened;
use crate::ffi::{CuContext, CuStream};
use crate::own_context::OwnContext;
use gpu_vmm_core::{DeviceId, Operation, Result};
use std::sync::Arc;

/// A stream and its context. Dropping it waits for the stream. In a forked child dropping does nothing.
#[derive(Debug)]
pub(crate) struct OwnStream {
    pub(crate) backend: Arc<Opened>,
    context: CuContext,
    stream: CuStream,
    /// A context that was created for the stream and is destroyed after it.
    pub(crate) own: Option<OwnContext>,
}

impl Opened {
    /// Creates a stream in the current context with these flags (`CUstream_flags`).
    pub(crate) fn new_stream(&self, operation: Operation, flags: u32) -> Result<CuStream> {
        let mut stream = CuStream::NULL;
        // SAFETY: the pointer is valid for one stream, and a context is current.
        let result = unsafe { (self.functions().stream_create)(&raw mut stream, flags) };
        self.check(operation, "cuStreamCreate", result, || format!("flags {flags}"))?;
        Ok(stream)
    }
}

impl OwnStream {
    /// Creates a stream in the device's context with these flags (`CUstream_flags`).
    pub(crate) fn new(
        operation: Operation,
        backend: &Arc<Opened>,
        device: DeviceId,
        flags: u32,
    ) -> Result<Self> {
        let context = backend.context(operation, device)?.raw;
        Self::inside(operation, backend, context, flags, None)
    }

    /// Creates a stream in a context that is destroyed with the stream.
    pub(crate) fn elsewhere(operation: Operation, own: OwnContext, flags: u32) -> Result<Self> {
        let (backend, context) = (Arc::clone(&own.backend), own.raw);
        Self::inside(operation, &backend, context, flags, Some(own))
    }

    fn inside(
        operation: Operation,
        backend: &Arc<Opened>,
        context: CuContext,
        flags: u32,
        own: Option<OwnContext>,
    ) -> Result<Self> {
        let _entered = backend.enter(operation, context)?;
        let stream = backend.new_stream(operation, flags)?;
        Ok(Self { backend: Arc::clone(backend), context, stream, own })
    }

    pub(crate) const fn raw(&self) -> CuStream {
        self.stream
    }

    /// Makes the stream's context current, as calls on the stream require.
    pub(crate) fn enter(&self, operation: Operation) -> Result<Entered<'_>> {
        self.backend.here(operation)?;
        self.backend.enter(operation, self.context)
    }

    /// Waits for all work queued on the stream.
    pub(crate) fn wait(&self, operation: Operation) -> Result<()> {
        let _entered = self.enter(operation)?;
        self.backend.finish(operation, self.stream)
    }

    /// Waits for the stream and destroys it.
    fn end(&self, operation: Operation) -> Result<()> {
        let _entered = self.enter(operation)?;
        let finished = self.backend.finish(operation, self.stream);
        // SAFETY: the stream was created in this context and is destroyed only here.
        let result = unsafe { (self.backend.functions().stream_destroy)(self.stream) };
        finished.and(self.backend.check(operation, "cuStreamDestroy_v2", result, String::new))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        self.backend.log_end(self.end(Operation::DestroyStream));
    }
}
