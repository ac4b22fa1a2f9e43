//! Streams: created and destroyed, queried, waited for.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::code::{Answer, Code};
use crate::objects::Ticket;
use crate::violation::refuse;
use crate::work::{self, Work, work};
use crate::{capture_rules, context};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`, which null means as well, and `CU_STREAM_PER_THREAD`.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

thread_local! {
    /// The thread's own default streams, keyed by their contexts. Never dropped, as the stack of contexts.
    static OWN: RefCell<ManuallyDrop<BTreeMap<usize, usize>>> =
        const { RefCell::new(ManuallyDrop::new(BTreeMap::new())) };
}

/// Returns the stream that a handle means: a live one, or a default one of the current context.
pub(crate) fn meant(work: &mut Work, raw: usize) -> Answer<usize> {
    match raw {
        0 | LEGACY => Ok(work.contexts[&context::current(work)?].default),
        PER_THREAD => {
            let context = context::current(work)?;
            OWN.with_borrow_mut(|own| {
                // A reset of the context has destroyed its streams.
                own.retain(|_, stream| work.streams.contains_key(stream));
                Ok(*own.entry(context).or_insert_with(|| work.new_stream(context, true, true)))
            })
        }
        _ if work.streams.get(&raw).is_some_and(|stream| !stream.closing) => Ok(raw),
        _ => Err(refuse(
            Code::INVALID_HANDLE,
            format_args!("stream {raw:#x} does not exist, or was destroyed"),
        )),
    }
}

/// Returns the stream and its device for new work, which requires a stream of the current context.
pub(crate) fn for_work(work: &mut Work, raw: usize) -> Answer<(usize, usize)> {
    let (current, device) = context::usable(work)?;
    let name = meant(work, raw)?;
    if work.streams[&name].context != current {
        let what = format_args!("stream {raw:#x} is not of the current context");
        return Err(refuse(Code::INVALID_HANDLE, what));
    }
    capture_rules::refuse_implicit(work, name)?;
    Ok((name, device))
}

fn create(flags: u32) -> Answer<usize> {
    if flags & !NON_BLOCKING != 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
    }
    let mut work = work();
    let (context, _) = context::usable(&work)?;
    Ok(work.new_stream(context, flags & NON_BLOCKING == 0, false))
}

/// Returns the last ticket of a stream for a wait. Refuses a capturing stream.
fn last(raw: usize) -> Answer<(Ticket, usize)> {
    let mut work = work();
    let name = meant(&mut work, raw)?;
    capture_rules::refuse_of(&mut work, name)?;
    capture_rules::refuse_implicit(&mut work, name)?;
    capture_rules::prohibits(&mut work)?;
    Ok((work.last(name), work.streams[&name].context))
}

cuda! {
    /// Creates a stream.
    fn cuStreamCreate(out: Out<'_, usize>, flags: u32) {
        given(out, "phStream")?.write(create(flags)?);
        Ok(())
    }

    /// Creates a stream; the priority is ignored.
    fn cuStreamCreateWithPriority(out: Out<'_, usize>, flags: u32, _priority: i32) {
        given(out, "phStream")?.write(create(flags)?);
        Ok(())
    }

    /// Destroys a stream. It is removed when its work is done.
    fn cuStreamDestroy_v2(raw: usize) {
        if raw <= PER_THREAD {
            return Err(refuse(Code::INVALID_HANDLE, format_args!("a default stream")));
        }
        let mut work = work();
        let name = meant(&mut work, raw)?;
        let failed = work.check(work.streams[&name].context);
        work.close(name);
        failed
    }

    /// Returns whether a stream's work is done.
    fn cuStreamQuery(raw: usize) {
        let (ticket, context) = last(raw)?;
        let work = work();
        work.check(context)?;
        if work.is_done(ticket) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// Waits until a stream's work is done.
    fn cuStreamSynchronize(raw: usize) {
        work::finish(last(raw)?.0)
    }

    /// Returns a stream's context.
    fn cuStreamGetCtx(raw: usize, out: Out<'_, usize>) {
        let out = given(out, "pctx")?;
        let mut work = work();
        let name = meant(&mut work, raw)?;
        out.write(work.streams[&name].context);
        Ok(())
    }

    /// Makes the later work of a stream wait for an event.
    fn cuStreamWaitEvent(raw: usize, event: usize, flags: u32) {
        let mut work = work();
        let name = meant(&mut work, raw)?;
        capture_rules::refuse_implicit(&mut work, name)?;
        let recorded = work.event(event)?.recorded;
        if flags > 1 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        if let Some(ticket) = recorded {
            work.add_wait(name, ticket);
        }
        Ok(())
    }
}
