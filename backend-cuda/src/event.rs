//! Events in streams.
//!
//! An event belongs to the context that this backend uses for the event's device, as do the streams that it is recorded on. A
//! stream that waits for it can belong to any context. Recorded on the default stream, or on the calling thread's own, the event covers
//! those of every context of the device (see `idle`): a stream of the event's own waits for marker events in the other contexts, and the
//! event is recorded after them. The marker events are destroyed at once, so that a program may destroy its context while the event
//! lives. Such an event can complete a moment later than the default streams.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::context::Entered;
use crate::driver::Opened;
use crate::ffi::{CuContext, CuEvent, CuResult, CuStream, EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING};
use gpu_vmm_core::{Detail, DeviceId, Error, Event, Operation, Result, Stream, WaitFor};
use std::sync::Arc;

/// An event and its context. In a forked child dropping does nothing.
#[derive(Debug)]
struct CudaEvent {
    backend: Arc<Opened>,
    device: DeviceId,
    context: CuContext,
    event: CuEvent,
    /// The stream that joins the default streams of several contexts, created on first use.
    joint: Option<CuStream>,
}

impl Opened {
    pub(crate) fn create_event(self: &Arc<Self>, device: DeviceId) -> Result<Box<dyn Event>> {
        const OPERATION: Operation = Operation::CreateEvent;
        let context = self.context(OPERATION, device)?.raw;
        let _entered = self.enter(OPERATION, context)?;
        let event = self.new_event(OPERATION, device)?;
        Ok(Box::new(CudaEvent { backend: Arc::clone(self), device, context, event, joint: None }))
    }

    /// Creates an event in the current context.
    fn new_event(&self, operation: Operation, device: DeviceId) -> Result<CuEvent> {
        let mut event = CuEvent::NULL;
        // SAFETY: the pointer is valid for one event, and a context is current.
        let result = unsafe { (self.functions().event_create)(&raw mut event, EVENT_DISABLE_TIMING) };
        self.check(operation, "cuEventCreate", result, || device.to_string())?;
        Ok(event)
    }
}

impl CudaEvent {
    /// Makes a context current: the event's or a stream's.
    fn enter(&self, operation: Operation, context: CuContext) -> Result<Entered<'_>> {
        self.backend.here(operation)?;
        self.backend.enter(operation, context)
    }

    /// Returns the context of a stream; for a default stream, the event's.
    fn context_of(&self, operation: Operation, stream: CuStream) -> Result<CuContext> {
        self.backend.here(operation)?;
        if stream.is_default() { Ok(self.context) } else { self.backend.context_of(operation, stream) }
    }

    fn foreign(&self, operation: Operation, context: CuContext) -> Error {
        let theirs = match self.backend.device_of(operation, context) {
            Ok(device) => format!("{device}, context {context:?}"),
            Err(_) => format!("context {context:?}"),
        };
        Error::new(
            operation,
            Detail::ForeignStream { theirs, ours: format!("{}, context {:?}", self.device, self.context) },
        )
    }

    fn check(&self, operation: Operation, call: &'static str, result: CuResult) -> Result<()> {
        self.backend.check(operation, call, result, || format!("event {:?} of {}", self.event, self.device))
    }

    /// Records the event on a stream of its context, which is current.
    fn record_on(&self, operation: Operation, stream: CuStream) -> Result<()> {
        // SAFETY: the event and the stream are live and belong to the current context.
        let result = unsafe { (self.backend.functions().event_record)(self.event, stream) };
        self.check(operation, "cuEventRecord", result)
    }

    /// Records the event after all work on a default stream, the legacy or the calling thread's one, of all contexts of the device.
    fn record_default(&mut self, operation: Operation, default: CuStream) -> Result<()> {
        let mut others = false;
        self.backend.for_contexts_of(operation, self.device, |context| {
            others |= context != self.context;
            Ok(())
        })?;
        if others {
            return self.record_joint(operation, default);
        }
        let _entered = self.enter(operation, self.context)?;
        self.backend.check_default(operation)?;
        self.record_on(operation, default)
    }

    /// Records the event after the default streams of several contexts.
    fn record_joint(&mut self, operation: Operation, default: CuStream) -> Result<()> {
        let joint = self.joint(operation)?;
        self.backend
            .in_contexts_of(operation, self.device, |_| self.join_default(operation, joint, default))?;
        let _entered = self.enter(operation, self.context)?;
        self.record_on(operation, joint)
    }

    /// Returns the stream that waits for the default streams.
    fn joint(&mut self, operation: Operation) -> Result<CuStream> {
        if let Some(joint) = self.joint {
            return Ok(joint);
        }
        let joint = {
            let _entered = self.enter(operation, self.context)?;
            self.backend.new_stream(operation, STREAM_NON_BLOCKING)?
        };
        Ok(*self.joint.insert(joint))
    }

    /// Makes `joint`, a stream of the event's context, wait for the work on a default stream of the current context.
    fn join_default(&self, operation: Operation, joint: CuStream, default: CuStream) -> Result<()> {
        self.backend.check_default(operation)?;
        let functions = self.backend.functions();
        let mark = self.backend.new_event(operation, self.device)?;
        // SAFETY: the marker event belongs to the current context, as does its default stream.
        let recorded = unsafe { (functions.event_record)(mark, default) };
        let joined = self.check(operation, "cuEventRecord", recorded).and_then(|()| {
            let _entered = self.enter(operation, self.context)?;
            // SAFETY: the marker event and the stream are live, and the stream's context is current; there are no flags.
            let result = unsafe { (functions.stream_wait_event)(joint, mark, 0) };
            self.check(operation, "cuStreamWaitEvent", result)
        });
        // SAFETY: the marker event was created above in the current context and is destroyed once; streams that wait for it still
        // do so.
        let destroyed = unsafe { (functions.event_destroy)(mark) };
        joined.and(self.check(operation, "cuEventDestroy_v2", destroyed))
    }

    fn query(&self) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryEvent;
        let _entered = self.enter(OPERATION, self.context)?;
        let _relaxed = self.backend.relax(OPERATION)?;
        // SAFETY: the event is live, and its context is current.
        match unsafe { (self.backend.functions().event_query)(self.event) } {
            CuResult::NOT_READY => Ok(false),
            result => self.check(OPERATION, "cuEventQuery", result).map(|()| true),
        }
    }

    fn finish(&self) -> Result<()> {
        const OPERATION: Operation = Operation::WaitForEvent;
        let _entered = self.enter(OPERATION, self.context)?;
        let _relaxed = self.backend.relax(OPERATION)?;
        // SAFETY: as above.
        let result = unsafe { (self.backend.functions().event_synchronize)(self.event) };
        self.check(OPERATION, "cuEventSynchronize", result)
    }

    /// Destroys the event without waiting: the work before it and the streams that wait for it are unaffected.
    fn end(&self) -> Result<()> {
        const OPERATION: Operation = Operation::DestroyEvent;
        let _entered = self.enter(OPERATION, self.context)?;
        // SAFETY: the event was created in this context and is destroyed only here.
        let result = unsafe { (self.backend.functions().event_destroy)(self.event) };
        let destroyed = self.check(OPERATION, "cuEventDestroy_v2", result);
        let Some(joint) = self.joint else { return destroyed };
        // SAFETY: the stream was created in this context and is destroyed only here; work queued on it still runs.
        let result = unsafe { (self.backend.functions().stream_destroy)(joint) };
        destroyed.and(self.check(OPERATION, "cuStreamDestroy_v2", result))
    }
}

// SAFETY: `is_done` and `wait` report completion only if the driver did or the device has died.
unsafe impl Event for CudaEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::RecordEvent;
        self.backend.here(OPERATION)?;
        if stream.is_default() {
            return self.record_default(OPERATION, CuStream::NULL);
        }
        if stream.is_per_thread() {
            return self.record_default(OPERATION, CuStream(stream.as_raw()));
        }
        let stream = CuStream(stream.as_raw());
        let context = self.context_of(OPERATION, stream)?;
        if context != self.context {
            return Err(self.foreign(OPERATION, context));
        }
        let _entered = self.enter(OPERATION, context)?;
        self.record_on(OPERATION, stream)
    }

    fn is_done(&self) -> Result<bool> {
        WaitFor::or_lost(self.query(), true)
    }

    fn wait(&self) -> Result<()> {
        WaitFor::or_lost(self.finish(), ())
    }

    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::StreamWaitEvent;
        self.backend.here(OPERATION)?;
        let hold = |stream| {
            // SAFETY: both are live, and the stream belongs to the current context; there are no flags.
            let result = unsafe { (self.backend.functions().stream_wait_event)(stream, self.event, 0) };
            self.check(OPERATION, "cuStreamWaitEvent", result)
        };
        if stream.is_default() {
            return self.backend.in_contexts_of(OPERATION, self.device, |_| {
                self.backend.check_default(OPERATION)?;
                hold(CuStream::NULL)
            });
        }
        let stream = CuStream(stream.as_raw());
        let _entered = self.enter(OPERATION, self.context_of(OPERATION, stream)?)?;
        hold(stream)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.backend.log_end(self.end());
    }
}
