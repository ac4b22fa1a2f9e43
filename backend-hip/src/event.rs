//! Events on streams, and queries whether a stream captures.
#![allow(unsafe_code)] // calls into HIP

use crate::device::Current;
use crate::device_state::StreamName;
use crate::driver::Driver;
use crate::ffi::{self, hipError_t, hipEvent_t, hipEventDisableTiming, hipStream_t, hipStreamCaptureStatus};
use crate::relaxed::is_implicit;
use crate::stream::{needed, raw};
use gpu_vmm_core::{Detail, DeviceId, Error, Event, Operation, Result, Stream, WaitFor};
use std::ptr::null_mut;
use std::sync::Arc;

/// HIP's event functions; a version has all of them or none.
#[derive(Clone, Copy, Debug)]
struct Calls {
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
    calls: Calls,
}

// SAFETY: HIP takes an event from any thread; this crate never dereferences the pointer.
unsafe impl Send for HipEvent {}
// SAFETY: as above.
unsafe impl Sync for HipEvent {}

/// Creates an event for streams of a device, which exists.
pub(crate) fn create(driver: &Arc<Driver>, device: DeviceId) -> Result<Box<dyn Event>> {
    const OPERATION: Operation = Operation::CreateEvent;
    let hip = &driver.hip;
    let create = needed(OPERATION, "hipEventCreateWithFlags", hip.hipEventCreateWithFlags)?;
    let calls = Calls {
        record: needed(OPERATION, "hipEventRecord", hip.hipEventRecord)?,
        query: needed(OPERATION, "hipEventQuery", hip.hipEventQuery)?,
        synchronize: needed(OPERATION, "hipEventSynchronize", hip.hipEventSynchronize)?,
        hold: needed(OPERATION, "hipStreamWaitEvent", hip.hipStreamWaitEvent)?,
        destroy: needed(OPERATION, "hipEventDestroy", hip.hipEventDestroy)?,
    };
    let _current = driver.on(OPERATION, device)?;
    let mut event = null_mut();
    // SAFETY: HIP writes one event, which belongs to the current device.
    let code = unsafe { create(&raw mut event, hipEventDisableTiming) };
    driver.check(OPERATION, "hipEventCreateWithFlags", code, || device.to_string())?;
    Ok(Box::new(HipEvent { driver: Arc::clone(driver), device, event, recorded: None, calls }))
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

    /// True while a query of the event would invalidate a capture (quirk `events-spoil-captures`). The null stream
    /// never captures.
    fn is_spoiling(&self, operation: Operation) -> bool {
        let named = self.recorded.filter(|StreamName(stream)| !stream.is_null());
        // SAFETY: versions with the quirk return an error for a destroyed stream.
        let captures = |StreamName(stream)| unsafe { ask(&self.driver, operation, stream) }.unwrap_or(false);
        self.driver.quirks.events_spoil_captures && named.is_some_and(captures)
    }

    fn query(&self) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryEvent;
        let _current = self.enter(OPERATION)?;
        if self.is_spoiling(OPERATION) {
            return Ok(false);
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
        if self.is_spoiling(OPERATION) {
            return Err(Error::new(OPERATION, Detail::Capturing { source: None }));
        }
        let _relaxed = self.driver.relax(OPERATION)?;
        // SAFETY: the event is alive.
        let code = unsafe { (self.calls.synchronize)(self.event) };
        self.check(OPERATION, "hipEventSynchronize", code)
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
        self.recorded = Some(StreamName(raw(stream)));
        let _current = self.enter(OPERATION)?;
        self.check_device(OPERATION, stream)?;
        // SAFETY: the event and the stream are alive and belong to one device, which is current.
        let code = unsafe { (self.calls.record)(self.event, raw(stream)) };
        self.check(OPERATION, "hipEventRecord", code)
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
        // SAFETY: both are alive; there are no flags.
        let code = unsafe { (self.calls.hold)(stream, self.event, 0) };
        self.check(OPERATION, "hipStreamWaitEvent", code)
    }
}

impl Drop for HipEvent {
    fn drop(&mut self) {
        self.driver.log_end(self.end());
    }
}
