//! Events: places in the work of streams.
//!
//! Each is of the context that this backend uses for its device, as are the streams that it is recorded on; a stream that it
//! holds can be any context's.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::CudaBackend;
use crate::context::Entered;
use crate::ffi::{CuContext, CuEvent, CuResult, CuStream, EVENT_DISABLE_TIMING};
use gpu_vmm_core::{DeviceId, Done, Error, Event, Result, Stream};

/// An event, and the context that it is of. In a forked child dropping does nothing.
#[derive(Debug)]
struct CudaEvent {
    backend: CudaBackend,
    device: DeviceId,
    context: CuContext,
    event: CuEvent,
}

impl CudaBackend {
    pub(crate) fn create_event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        const OPERATION: &str = "make an event";
        let context = self.context(OPERATION, device)?.raw;
        let _entered = self.enter(OPERATION, context)?;
        let mut event = CuEvent::NULL;
        // SAFETY: the pointer is good for one event, and a context is current.
        let result = unsafe { (self.functions().event_create)(&raw mut event, EVENT_DISABLE_TIMING) };
        self.check(OPERATION, "cuEventCreate", result, || device.to_string())?;
        Ok(Box::new(CudaEvent { backend: self.clone(), device, context, event }))
    }
}

impl CudaEvent {
    /// Makes a context current, the event's or that of a stream.
    fn enter(&self, operation: &'static str, context: CuContext) -> Result<Entered<'_>> {
        self.backend.here(operation)?;
        self.backend.enter(operation, context)
    }

    /// The context of a stream, where a default one is the event's.
    fn context_of(&self, operation: &'static str, stream: CuStream) -> Result<CuContext> {
        self.backend.here(operation)?;
        if stream.is_default() { Ok(self.context) } else { self.backend.context_of(operation, stream) }
    }

    fn foreign(&self, operation: &'static str, context: CuContext) -> Error {
        let theirs = match self.backend.device_of(operation, context) {
            Ok(device) => format!("{device}, context {context:?}"),
            Err(_) => format!("context {context:?}"),
        };
        Error::ForeignStream {
            operation,
            theirs,
            ours: format!("{}, context {:?}", self.device, self.context),
        }
    }

    fn check(&self, operation: &'static str, call: &'static str, result: CuResult) -> Result<()> {
        self.backend.check(operation, call, result, || format!("event {:?} of {}", self.event, self.device))
    }

    fn query(&self) -> Result<bool> {
        const OPERATION: &str = "ask an event";
        let _entered = self.enter(OPERATION, self.context)?;
        // SAFETY: the event is live, and its context is current.
        match unsafe { (self.backend.functions().event_query)(self.event) } {
            CuResult::NOT_READY => Ok(false),
            result => self.check(OPERATION, "cuEventQuery", result).map(|()| true),
        }
    }

    fn finish(&self) -> Result<()> {
        const OPERATION: &str = "wait for an event";
        let _entered = self.enter(OPERATION, self.context)?;
        // SAFETY: as above.
        let result = unsafe { (self.backend.functions().event_synchronize)(self.event) };
        self.check(OPERATION, "cuEventSynchronize", result)
    }

    /// Gives the event back, which does not wait: what it marks and holds goes on.
    fn end(&self) -> Result<()> {
        const OPERATION: &str = "give back an event";
        let _entered = self.enter(OPERATION, self.context)?;
        // SAFETY: the event was made in this context and is destroyed once, here.
        let result = unsafe { (self.backend.functions().event_destroy)(self.event) };
        self.check(OPERATION, "cuEventDestroy_v2", result)
    }
}

// SAFETY: done means that the driver said so, or that the device has died.
unsafe impl Event for CudaEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: &str = "record an event";
        let stream = CuStream(stream.as_raw());
        let context = self.context_of(OPERATION, stream)?;
        if context != self.context {
            return Err(self.foreign(OPERATION, context));
        }
        let _entered = self.enter(OPERATION, context)?;
        // SAFETY: the event and the stream are live, and of the context that is current.
        let result = unsafe { (self.backend.functions().event_record)(self.event, stream) };
        self.check(OPERATION, "cuEventRecord", result)
    }

    fn is_done(&self) -> Result<bool> {
        Done::or_lost(self.query(), true)
    }

    fn wait(&self) -> Result<()> {
        Done::or_lost(self.finish(), ())
    }

    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: &str = "hold a stream";
        let stream = CuStream(stream.as_raw());
        let _entered = self.enter(OPERATION, self.context_of(OPERATION, stream)?)?;
        // SAFETY: both are live, and the stream is of the context that is current; there are no flags.
        let result = unsafe { (self.backend.functions().stream_wait_event)(stream, self.event, 0) };
        self.check(OPERATION, "cuStreamWaitEvent", result)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.backend.log_end(self.end());
    }
}
