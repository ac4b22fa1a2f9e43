//! What invalidates a capture, and what a capture prohibits.
//!
//! Measured on an H100 and an H200 with the driver of CUDA 13.0, for captures of non-blocking streams, and the same here:
//!
//! - `cuCtxSynchronize` fails and invalidates the captures of its context, in every mode and from every thread. Captures of
//!   other contexts continue.
//! - `cuEventQuery`, `cuEventSynchronize`, `cuStreamQuery` and `cuStreamSynchronize` of any event or stream, `cuMemAlloc` and
//!   `cuMemFree`, `cuMemHostAlloc` and `cuMemFreeHost` do the same to every capture in global mode. They do so to a capture
//!   in thread-local mode if its own thread makes the call. A thread in relaxed mode may make all of these calls.
//! - `cuEventQuery` and `cuEventSynchronize` of an event that was recorded in a capture fail with `CUDA_ERROR_CAPTURED_EVENT`
//!   and invalidate the capture, in every mode and from every thread. Once the capture has ended, they fail with
//!   `CUDA_ERROR_INVALID_VALUE`.
//! - Calls for virtual memory, copies and fills, recording events, stream waits for events, querying the capture status, and
//!   creating and destroying events and streams do not affect a capture.
//!
//! Documented: a capturing stream cannot be waited for. While a blocking stream captures, its context's default stream cannot
//! be used, queried or waited for, and the attempt invalidates the capture. `cuStreamIsCapturing` of that default stream
//! fails with the same code and invalidates nothing.

use crate::code::{Answer, Code};
use crate::objects::Capture;
use crate::violation::refuse;
use crate::work::{Stream, Work};
use std::cell::Cell;
use std::thread;

/// `CUstreamCaptureMode`.
const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

thread_local! {
    pub(crate) static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

pub(crate) fn check_mode(mode: u32) -> Answer {
    if mode <= RELAXED { Ok(()) } else { Err(refuse(Code::INVALID_VALUE, format_args!("mode {mode}"))) }
}

impl Work {
    /// Invalidates the captures that a call reaches. Returns whether there were any.
    fn spoil(&mut self, is_reached: impl Fn(usize, &Stream, &Capture) -> bool) -> bool {
        let mut any = false;
        for (name, stream) in &mut self.streams {
            let reached = stream.capture.as_ref().is_some_and(|capture| is_reached(*name, stream, capture));
            any |= reached;
            if let Some(capture) = &mut stream.capture {
                capture.is_spoilt |= reached;
            }
        }
        any
    }
}

const fn refused_if(any: bool, code: Code) -> Answer {
    if any { Err(code) } else { Ok(()) }
}

/// Refuses to wait for a context with a capturing stream.
pub(crate) fn refuse_in(work: &mut Work, context: usize) -> Answer {
    let any = work.spoil(|_, its, _| its.context == context);
    refused_if(any, Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses to wait for a capturing stream.
pub(crate) fn refuse_of(work: &mut Work, stream: usize) -> Answer {
    let any = work.spoil(|name, _, _| name == stream);
    refused_if(any, Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses to query an event that was last recorded in a capture. The query invalidates the capture if it is active.
pub(crate) fn refuse_captured(work: &mut Work, captured: Option<usize>) -> Answer {
    let Some(name) = captured else { return Ok(()) };
    let goes_on = work.spoil(|_, _, capture| capture.name == name);
    Err(if goes_on { Code::CAPTURED_EVENT } else { Code::INVALID_VALUE })
}

/// Returns the context whose shared default stream this is.
fn context_of_default(work: &Work, stream: usize) -> Option<usize> {
    let context = work.streams.get(&stream)?.context;
    work.contexts.get(&context).filter(|its| its.default == stream).map(|_| context)
}

/// Refuses work on a default stream that would have to wait for a capturing stream.
pub(crate) fn refuse_implicit(work: &mut Work, stream: usize) -> Answer {
    let Some(context) = context_of_default(work, stream) else { return Ok(()) };
    let any = work.spoil(|_, its, _| its.context == context && its.blocking);
    refused_if(any, Code::STREAM_CAPTURE_IMPLICIT)
}

/// Refuses a query for the same reason, without invalidating a capture.
pub(crate) fn is_implicit(work: &Work, stream: usize) -> Answer {
    let context = context_of_default(work, stream);
    let mut streams = work.streams.values();
    let any = streams.any(|its| Some(its.context) == context && its.blocking && its.capture.is_some());
    refused_if(any, Code::STREAM_CAPTURE_IMPLICIT)
}

/// Refuses calls that the capture modes prohibit, because they could wait for a capturing stream.
pub(crate) fn prohibits(work: &mut Work) -> Answer {
    let (this, mode) = (thread::current().id(), MODE.get());
    let any = work.spoil(|_, _, capture| {
        let by_own = capture.by == this && capture.mode != RELAXED;
        let by_other = capture.by != this && capture.mode == GLOBAL && mode == GLOBAL;
        mode != RELAXED && (by_own || by_other)
    });
    refused_if(any, Code::STREAM_CAPTURE_UNSUPPORTED)
}
