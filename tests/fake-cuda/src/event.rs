//! Events: positions in streams, and the times at which they were reached.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::code::{Answer, Code};
use crate::objects::{Event, Ticket};
use crate::violation::refuse;
use crate::work::{self, Work, queue, work};
use crate::{capture_rules, context, stream};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

impl Work {
    pub(crate) fn event(&mut self, name: usize) -> Answer<&mut Event> {
        let found = self.events.get_mut(&name);
        found.ok_or_else(|| refuse(Code::INVALID_HANDLE, format_args!("there is no event {name:#x}")))
    }
}

/// Returns an event's context, and its position if it was recorded. Refuses an event in a graph.
fn place(work: &mut Work, name: usize) -> Answer<(usize, Option<Ticket>)> {
    let event = work.event(name)?;
    let (place, captured) = ((event.context, event.recorded), event.captured);
    capture_rules::refuse_captured(work, captured)?;
    Ok(place)
}

/// Returns when an event with timing was reached.
fn time(name: usize) -> Answer<Instant> {
    let mut work = work();
    let event = work.event(name)?;
    if event.flags & DISABLE_TIMING != 0 || event.recorded.is_none() {
        let what = format_args!("event {name:#x} keeps no time, or was not recorded");
        return Err(refuse(Code::INVALID_HANDLE, what));
    }
    event.time.get().copied().ok_or(Code::NOT_READY)
}

cuda! {
    /// Creates an event.
    fn cuEventCreate(out: Out<'_, usize>, flags: u32) {
        let out = given(out, "phEvent")?;
        if flags > 7 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        let mut work = work();
        let (context, _) = context::usable(&work)?;
        let name = work.new_name();
        let event = Event { context, flags, recorded: None, captured: None, time: Arc::default() };
        work.events.insert(name, event);
        out.write(name);
        Ok(())
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(name: usize) {
        let mut work = work();
        let context = work.event(name)?.context;
        work.events.remove(&name);
        work.check(context)
    }

    /// Records an event after all work of a stream.
    fn cuEventRecord(name: usize, raw: usize) {
        let mut locked = work();
        let (stream, _) = stream::for_work(&mut locked, raw)?;
        let time = Arc::new(OnceLock::new());
        let its = &locked.streams[&stream];
        let (context, captured) = (its.context, its.capture.as_ref().map(|capture| capture.name));
        let event = locked.event(name)?;
        if event.context != context {
            let what = format_args!("event {name:#x} is of another context than stream {raw:#x}");
            return Err(refuse(Code::INVALID_HANDLE, what));
        }
        event.time = Arc::clone(&time);
        event.captured = captured;
        event.recorded = None;
        if captured.is_some() {
            return Ok(());
        }
        let job = move || {
            let _ = time.set(Instant::now());
            Ok(())
        };
        let ticket = queue(locked, stream, Arc::new(job));
        work().event(name)?.recorded = Some(ticket);
        Ok(())
    }

    /// Returns whether an event was reached.
    fn cuEventQuery(name: usize) {
        let mut work = work();
        let (context, recorded) = place(&mut work, name)?;
        capture_rules::prohibits(&mut work)?;
        work.check(context)?;
        if recorded.is_none_or(|ticket| work.is_done(ticket)) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// Waits until an event is reached.
    fn cuEventSynchronize(name: usize) {
        let recorded = {
            let mut work = work();
            let (_, recorded) = place(&mut work, name)?;
            capture_rules::prohibits(&mut work)?;
            recorded
        };
        recorded.map_or(Ok(()), work::finish)
    }

    /// Returns the milliseconds between two events.
    fn cuEventElapsedTime(out: Out<'_, f32>, start: usize, end: usize) {
        let out = given(out, "pMilliseconds")?;
        let (start, end) = (time(start)?, time(end)?);
        out.write(end.saturating_duration_since(start).as_secs_f32() * 1000.0);
        Ok(())
    }
}
