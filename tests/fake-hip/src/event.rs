//! Events. A call that queries or waits for an event executes the work before it, so `hipEventQuery` never returns
//! `hipErrorNotReady` by itself.

use crate::c::{Answer, Out, give, stop};
use crate::call::current;
use crate::state::State;
use crate::stream::{Event, null};
use std::ffi::c_uint;

/// `hipEventDisableTiming`.
const DISABLE_TIMING: c_uint = 2;

/// The first handle of events. It is below the handles of streams, since each number from [`NULL`](crate::stream::NULL) on is a null
/// stream.
const FIRST: usize = 0x5a5a_0000_0000;

hip!(hipEventCreateWithFlags, |state, event: Out<'_, usize>, flags: c_uint| {
    rule!(flags == DISABLE_TIMING, "hipEventCreateWithFlags with the flags {flags:#x}");
    let raw = FIRST + state.number() as usize * 64;
    state.events.insert(raw, Event { device: current(), stream: None });
    give(event, raw)
});

hip!(hipEventRecord, |state, event: usize, stream: usize| {
    let stream = if stream == 0 { null(current()) } else { stream };
    let device = state.stream(stream).device;
    let event = state.event(event);
    rule!(event.device == device, "an event of device {} on a stream of device {device}", event.device);
    event.stream = Some(stream);
    Ok(())
});

hip!(hipEventQuery, |state, event: usize| state.reach(event));
hip!(hipEventSynchronize, |state, event: usize| state.reach(event));
hip!(hipStreamWaitEvent, |state, stream: usize, event: usize, flags: c_uint| {
    rule!(flags == 0, "hipStreamWaitEvent with the flags {flags:#x}");
    state.stream(if stream == 0 { null(current()) } else { stream });
    state.reach(event)
});

hip!(hipEventDestroy, |state, event: usize| {
    state.event(event);
    state.events.remove(&event);
    Ok(())
});

impl State {
    fn event(&mut self, raw: usize) -> &mut Event {
        match self.events.get_mut(&raw) {
            Some(event) => event,
            None => stop(format_args!("{raw:#x} is not an event, or was destroyed")),
        }
    }

    /// Executes the work before an event. A stream that was destroyed has none left.
    fn reach(&mut self, event: usize) -> Answer {
        let recorded = self.event(event).stream;
        match recorded {
            Some(stream) if self.streams.contains_key(&stream) => self.finish(stream),
            _ => Ok(()),
        }
    }
}
