//! Events on streams, and queries whether a stream captures.
#![allow(unsafe_code)] // calls into HIP

use crate::device::Current;
use crate::device_state::StreamName;
use crate::driver::Driver;
use crate::ffi::{
    self, hipError_t, hipEvent_t, hipEventDisableTiming, hipStream_t, hipStreamCaptureStatus,
    hipStreamNonBlocking,
};
use crate::relaxed::is_implicit;
use crate::stream::{OwnStream, needed, raw};
use gpu_vmm_core::{Detail, DeviceId, Error, Event, Operation, Result, Stream, WaitFor};
use std::ptr::null_mut;
use std::sync::Arc;

/// HIP's event functions; a version has all of them or none.
#[derive(Clone, Copy, Debug)]
struct Calls {
    create: ffi::hipEventCreateWithFlags,
    record: ffi::hipEventRecord,
    query: ffi::hipEventQuery,
    synchronize: ffi::hipEventSynchronize,
    hold: ffi::hipStreamWaitEvent,
    destroy: ffi::hipEventDestroy,
}

/// An event and its device. In a forked child dropping it does nothing.
#[derive(Debug)]
struct HipEvent {
    driver: Arc<Driver>,
    device: DeviceId,
    event: hipEvent_t,
    /// The stream of the last record, which may have been destroyed.
    recorded: Option<StreamName>,
    /// The event's own stream, on which an event that outlives its stream is recorded.
    own: Option<OwnStream>,
    calls: Calls,
}

/// What the stream of the last record means for a query of the event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordedOn {
    /// HIP may be asked.
    Usable,
    /// The stream captures, and a query would invalidate the capture.
    Capturing,
    /// The stream was destroyed, and a query would read its freed memory.
    Destroyed,
}

// SAFETY: HIP takes an event from any thread; this crate never dereferences the pointer.
unsafe impl Send for HipEvent {}
// SAFETY: as above.
unsafe impl Sync for HipEvent {}

/// Creates an event for streams of a device, which exists.
pub(crate) fn create(driver: &Arc<Driver>, device: DeviceId) -> Result<Box<dyn Event>> {
    const OPERATION: Operation = Operation::CreateEvent;
    let hip = &driver.hip;
    let calls = Calls {
        create: needed(OPERATION, "hipEventCreateWithFlags", hip.hipEventCreateWithFlags)?,
        record: needed(OPERATION, "hipEventRecord", hip.hipEventRecord)?,
        query: needed(OPERATION, "hipEventQuery", hip.hipEventQuery)?,
        synchronize: needed(OPERATION, "hipEventSynchronize", hip.hipEventSynchronize)?,
        hold: needed(OPERATION, "hipStreamWaitEvent", hip.hipStreamWaitEvent)?,
        destroy: needed(OPERATION, "hipEventDestroy", hip.hipEventDestroy)?,
    };
    let _current = driver.on(OPERATION, device)?;
    let event = calls.create(driver, OPERATION, device)?;
    Ok(Box::new(HipEvent { driver: Arc::clone(driver), device, event, recorded: None, own: None, calls }))
}

impl Calls {
    /// Creates an event of the device, which is current.
    fn create(&self, driver: &Driver, operation: Operation, device: DeviceId) -> Result<hipEvent_t> {
        let mut event = null_mut();
        // SAFETY: HIP writes one event, which belongs to the current device.
        let code = unsafe { (self.create)(&raw mut event, hipEventDisableTiming) };
        driver.check(operation, "hipEventCreateWithFlags", code, || device.to_string())?;
        Ok(event)
    }
}

/// Whether a stream captures.
///
/// The null stream never captures. For it the answer is whether a blocking stream captures, because work on the null
/// stream would invalidate that capture. Such work also invalidates captures of non-blocking streams, which HIP does
/// not report.
pub(crate) fn is_capturing(driver: &Driver, stream: Stream<'_>) -> Result<bool> {
    const OPERATION: Operation = Operation::QueryCapture;
    driver.process.check(OPERATION)?;
    // SAFETY: the stream is alive, by the promise of `Stream`.
    unsafe { ask(driver, OPERATION, raw(stream)) }
}

/// True for the error that HIP returns for a destroyed stream.
fn is_destroyed(error: &Error) -> bool {
    let destroyed = i64::from(hipError_t::hipErrorContextIsDestroyed.0);
    error.driver_error().is_some_and(|source| source.code == destroyed)
}

/// The same for a raw stream handle.
///
/// # Safety
///
/// The stream is alive, or this HIP looks it up among its streams before it dereferences the pointer.
unsafe fn ask(driver: &Driver, operation: Operation, stream: hipStream_t) -> Result<bool> {
    let ask = needed(operation, "hipStreamIsCapturing", driver.hip.hipStreamIsCapturing)?;
    let mut status = hipStreamCaptureStatus::hipStreamCaptureStatusNone;
    // SAFETY: the caller's promise; HIP writes one number.
    let code = unsafe { ask(stream, &raw mut status) };
    let answer = driver.check(operation, "hipStreamIsCapturing", code, || format!("stream {stream:p}"));
    if is_implicit(code) {
        return Ok(true);
    }
    answer?;
    Ok(status != hipStreamCaptureStatus::hipStreamCaptureStatusNone)
}

impl HipEvent {
    /// Makes the event's device current, so that the null stream is that device's.
    fn enter(&self, operation: Operation) -> Result<Current<'_>> {
        self.driver.on(operation, self.device)
    }

    fn check(&self, operation: Operation, call: &'static str, code: hipError_t) -> Result<()> {
        self.driver.check(operation, call, code, || format!("event {:p} of {}", self.event, self.device))
    }

    /// Refuses a stream of another device, if HIP can report a stream's device.
    fn check_device(&self, operation: Operation, stream: Stream<'_>) -> Result<()> {
        // The null stream and the per-thread stream belong to the current device, which is the event's.
        match self.driver.device_of(operation, stream)? {
            Some(device) if device != self.device => {
                let (theirs, ours) = (device.to_string(), self.device.to_string());
                Err(Error::new(operation, Detail::ForeignStream { theirs, ours }))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether HIP may be asked about the event (quirks `events-spoil-captures`, `event-reads-its-stream`). The null
    /// stream never captures and is never destroyed.
    fn recorded_on(&self, operation: Operation) -> RecordedOn {
        let quirks = &self.driver.quirks;
        let named = self.recorded.filter(|StreamName(stream)| !stream.is_null());
        let Some(StreamName(stream)) =
            named.filter(|_| quirks.events_spoil_captures || quirks.event_reads_its_stream)
        else {
            return RecordedOn::Usable;
        };
        // SAFETY: versions with the quirks return an error for a destroyed stream.
        match unsafe { ask(&self.driver, operation, stream) } {
            Ok(true) if quirks.events_spoil_captures => RecordedOn::Capturing,
            Err(error) if quirks.event_reads_its_stream && is_destroyed(&error) => RecordedOn::Destroyed,
            _ => RecordedOn::Usable,
        }
    }

    fn query(&self) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryEvent;
        let _current = self.enter(OPERATION)?;
        match self.recorded_on(OPERATION) {
            RecordedOn::Usable => {}
            RecordedOn::Capturing => return Ok(false),
            // hipStreamDestroy has waited for the stream's work.
            RecordedOn::Destroyed => return Ok(true),
        }
        let _relaxed = self.driver.relax(OPERATION)?;
        // SAFETY: the event is alive.
        let code = unsafe { (self.calls.query)(self.event) };
        match self.check(OPERATION, "hipEventQuery", code) {
            Err(_) if code == hipError_t::hipErrorNotReady => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    fn finish(&self) -> Result<()> {
        const OPERATION: Operation = Operation::WaitForEvent;
        let _current = self.enter(OPERATION)?;
        match self.recorded_on(OPERATION) {
            RecordedOn::Usable => {}
            RecordedOn::Capturing => return Err(Error::new(OPERATION, Detail::Capturing { source: None })),
            RecordedOn::Destroyed => return Ok(()),
        }
        let _relaxed = self.driver.relax(OPERATION)?;
        // SAFETY: the event is alive.
        let code = unsafe { (self.calls.synchronize)(self.event) };
        self.check(OPERATION, "hipEventSynchronize", code)
    }

    /// Replaces the event by one on a stream of its own, which waits for the old one.
    fn move_to_own_stream(&mut self) -> Result<()> {
        const OPERATION: Operation = Operation::RecordEvent;
        let own = OwnStream::new(OPERATION, &self.driver, self.device, hipStreamNonBlocking)?;
        let driver = Arc::clone(&self.driver);
        let _current = driver.on(OPERATION, self.device)?;
        // SAFETY: both are alive; there are no flags.
        let code = unsafe { (self.calls.hold)(own.raw(), self.event, 0) };
        self.check(OPERATION, "hipStreamWaitEvent", code)?;
        let before = std::mem::replace(&mut self.event, self.calls.create(&driver, OPERATION, self.device)?);
        // SAFETY: the event and the stream are alive and belong to the current device.
        let code = unsafe { (self.calls.record)(self.event, own.raw()) };
        let recorded = self.check(OPERATION, "hipEventRecord", code);
        let unused = if recorded.is_ok() { before } else { std::mem::replace(&mut self.event, before) };
        // SAFETY: this object created the event, which is destroyed once, here; streams that wait for it still do.
        let code = unsafe { (self.calls.destroy)(unused) };
        let destroyed = driver.check(OPERATION, "hipEventDestroy", code, || format!("event {unused:p}"));
        recorded?;
        self.recorded = Some(StreamName(own.raw()));
        self.own = Some(own);
        destroyed
    }

    /// Destroys the event without waiting: recorded work and waiting streams continue.
    fn end(&self) -> Result<()> {
        const OPERATION: Operation = Operation::DestroyEvent;
        let _current = self.enter(OPERATION)?;
        // SAFETY: this object created the event, which is destroyed once, here.
        let code = unsafe { (self.calls.destroy)(self.event) };
        self.check(OPERATION, "hipEventDestroy", code)
    }
}

// SAFETY: an event is done only if the runtime reports it, or if the device is lost.
unsafe impl Event for HipEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::RecordEvent;
        let driver = Arc::clone(&self.driver);
        let _current = driver.on(OPERATION, self.device)?;
        self.check_device(OPERATION, stream)?;
        self.recorded = Some(StreamName(raw(stream)));
        // SAFETY: the event and the stream are alive and belong to one device, which is current.
        let code = unsafe { (self.calls.record)(self.event, raw(stream)) };
        let recorded = self.check(OPERATION, "hipEventRecord", code);
        // HIP reads it through the event until here.
        self.own = None;
        recorded
    }

    fn is_done(&self) -> Result<bool> {
        WaitFor::or_lost(self.query(), true)
    }

    fn wait(&self) -> Result<()> {
        WaitFor::or_lost(self.finish(), ())
    }

    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::StreamWaitEvent;
        let stream = raw(stream);
        let _current = self.enter(OPERATION)?;
        if self.recorded_on(OPERATION) == RecordedOn::Destroyed {
            return Ok(());
        }
        // SAFETY: both are alive; there are no flags.
        let code = unsafe { (self.calls.hold)(stream, self.event, 0) };
        self.check(OPERATION, "hipStreamWaitEvent", code)
    }

    fn outlive_stream(&mut self) -> Result<()> {
        let is_named = self.recorded.is_some_and(|StreamName(stream)| !stream.is_null());
        let needs_stream = self.driver.quirks.event_reads_its_stream && is_named && self.own.is_none();
        // A query that could invalidate a capture is not made: moving does without one.
        if needs_stream && !(self.driver.can_relax() && self.is_done()?) {
            return self.move_to_own_stream();
        }
        Ok(())
    }
}

impl Drop for HipEvent {
    fn drop(&mut self) {
        self.driver.log_end(self.end());
    }
}
