//! Captures of host streams: work queued during a capture goes into a graph, and each launch of the graph queues it.
//!
//! A capture forbids waiting for its stream, waiting for its device, and querying or waiting for an event that was recorded in it.
//! A capture of a blocking stream also forbids operations on the default stream that callers wait for. Such a call fails and
//! invalidates the capture, from any thread and in every mode, as with `cuCtxSynchronize`. Other calls are allowed in every mode.

use crate::capture::{Capture, Waiting};
use crate::queues::Queues;
use crate::stream_names::default_of;
use crate::work::Work;
use gpu_vmm_core::extend::system::refusal;
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

impl Queues {
    /// Returns [`Detail::Capturing`] if a capture forbids this wait, and invalidates the capture.
    pub(crate) fn check_waiting(&self, operation: Operation, waiting: Waiting) -> Result<()> {
        self.process.check(operation)?;
        if self.shared.captures.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut state = self.shared.state();
        let mut found = false;
        for (name, queue) in &mut state.queues {
            let concerned = match waiting {
                Waiting::Device(device) => queue.device == device,
                Waiting::Stream(stream) => *name == stream,
                Waiting::Default(device) => queue.device == device && queue.is_blocking,
            };
            if let Some(capture) = queue.capture.as_mut().filter(|_| concerned) {
                capture.is_spoilt = true;
                found = true;
            }
        }
        if !found {
            return Ok(());
        }
        let source = refusal("the host backend", Errno::BUSY, "a stream captures");
        Err(Error::new(operation, Detail::Capturing { source: Some(source) }))
    }

    /// Returns the number of the capture that a stream is in.
    pub(crate) fn capture_of(&self, name: usize) -> Option<u64> {
        if self.shared.captures.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.shared.state().queues.get(&name)?.capture.as_ref().map(|capture| capture.number)
    }

    /// Refuses to query an event that was recorded in a capture, and invalidates the capture if it is still active.
    pub(crate) fn check_asking(&self, operation: Operation, captured: Option<u64>) -> Result<()> {
        let Some(number) = captured else { return Ok(()) };
        self.process.check(operation)?;
        let mut state = self.shared.state();
        let mut captures = state.queues.values_mut().filter_map(|queue| queue.capture.as_mut());
        if let Some(capture) = captures.find(|capture| capture.number == number) {
            capture.is_spoilt = true;
        }
        Err(invalid(operation, "the event is in a graph"))
    }

    /// Returns whether a stream captures, or whether work on it would invalidate a capture.
    pub(crate) fn is_capturing(&self, operation: Operation, name: usize) -> Result<bool> {
        self.process.check(operation)?;
        if self.shared.captures.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        let state = self.shared.state();
        let mut captured = state.queues.iter().filter(|(_, queue)| queue.capture.is_some());
        Ok(captured
            .any(|(own, queue)| *own == name || (queue.is_blocking && default_of(queue.device) == name)))
    }

    pub(crate) fn begin_capture(&self, operation: Operation, device: DeviceId, name: usize) -> Result<()> {
        self.process.check(operation)?;
        if name == default_of(device) {
            return Err(invalid(operation, "the default stream cannot capture"));
        }
        let mut state = self.shared.state();
        let number = state.captures + 1;
        let queue = state.queues.entry(name).or_default();
        if queue.capture.is_some() {
            return Err(invalid(operation, "the stream captures already"));
        }
        queue.device = device;
        queue.capture = Some(Capture { number, ..Capture::default() });
        state.captures = number;
        self.shared.captures.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn end_capture(&self, operation: Operation, name: usize) -> Result<Vec<Work>> {
        self.process.check(operation)?;
        let mut state = self.shared.state();
        let capture = state.queues.get_mut(&name).and_then(|queue| queue.capture.take());
        let capture = capture.ok_or_else(|| invalid(operation, "the stream does not capture"))?;
        self.shared.captures.fetch_sub(1, Ordering::AcqRel);
        if capture.is_spoilt {
            let source = refusal("the host backend", Errno::CANCELED, "a call has invalidated the capture");
            return Err(Error::new(operation, Detail::Capturing { source: Some(source) }));
        }
        Ok(capture.work)
    }
}

fn invalid(operation: Operation, why: &'static str) -> Error {
    let source = refusal("the host backend", Errno::INVAL, why);
    Error::new(operation, Detail::Driver { source, context: String::new() })
}
