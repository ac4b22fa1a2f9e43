//! Contexts, and each thread's current one.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::capture_rules;
use crate::code::{Answer, Code};
use crate::device::device;
use crate::objects::Context;
use crate::settings::{ComputeMode, settings};
use crate::state::state;
use crate::violation::refuse;
use crate::work::{Work, finish as finish_ticket, work};
use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// The device memory that a context takes; some hundred MiB on hardware.
const TAKES: u64 = 64 << 20;

thread_local! {
    /// Never dropped: exit handlers and other locals' destructors call the driver after the thread's locals have ended.
    static STACK: RefCell<ManuallyDrop<Vec<usize>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Returns the thread's current context.
pub(crate) fn current(work: &Work) -> Answer<usize> {
    let Some(name) = STACK.with_borrow(|stack| stack.last().copied()) else {
        return Err(refuse(Code::INVALID_CONTEXT, format_args!("the thread has no current context")));
    };
    known(work, name)
}

/// Returns it with its device, if it has not failed.
pub(crate) fn usable(work: &Work) -> Answer<(usize, usize)> {
    let name = current(work)?;
    work.check(name)?;
    Ok((name, work.contexts[&name].device))
}

fn known(work: &Work, name: usize) -> Answer<usize> {
    if work.contexts.contains_key(&name) {
        return Ok(name);
    }
    Err(refuse(
        Code::CONTEXT_IS_DESTROYED,
        format_args!("context {name:#x} does not exist, or was destroyed"),
    ))
}

/// Returns whether any context exists.
pub(crate) fn any() -> bool {
    !work().contexts.is_empty()
}

/// Returns the error of a failed context of the device. It was measured that releasing memory continues to work after a
/// failure; that calls which take more memory of the device return its error is decided here.
pub(crate) fn check_device(device: usize) -> Answer {
    let work = work();
    let mut contexts = work.contexts.values().filter(|context| context.device == device);
    // A reset is no failure.
    let failed =
        contexts.find_map(|context| context.failed.filter(|code| *code != Code::CONTEXT_IS_DESTROYED));
    failed.map_or(Ok(()), Err)
}

/// Creates a context.
pub(crate) fn create(device: usize, retained: usize) -> Answer<usize> {
    if settings().compute_mode != ComputeMode::Default {
        return Err(Code::DEVICE_UNAVAILABLE);
    }
    state().charge(device, TAKES)?;
    let mut work = work();
    let name = work.new_name();
    let default = work.new_stream(name, true, true);
    work.contexts.insert(name, Context { device, failed: None, default, retained });
    Ok(name)
}

/// Destroys the objects of a context, once its work is done.
fn clear(name: usize) {
    // An earlier failure of the context does not matter any more.
    let _ = finish(name);
    {
        let mut work = work();
        let own = work.streams.iter().filter(|(_, stream)| stream.context == name).map(|(name, _)| *name);
        own.collect::<Vec<_>>().into_iter().for_each(|stream| work.close(stream));
        work.events.retain(|_, event| event.context != name);
        work.modules.retain(|_, module| module.context != name);
        work.functions.retain(|_, function| function.context != name);
    }
    let mut state = state();
    state.free_of(name);
    state.free_pinned_of(name);
}

/// Destroys a context with its objects, once its work is done.
pub(crate) fn destroy(name: usize) {
    clear(name);
    let device = work().contexts.remove(&name).map(|context| context.device);
    if let Some(device) = device {
        state().discharge(device, TAKES);
    }
}

/// Destroys the objects of a context, which cannot be used until it is retained again.
pub(crate) fn reset(name: usize) {
    clear(name);
    let mut work = work();
    let default = work.new_stream(name, true, true);
    if let Some(context) = work.contexts.get_mut(&name) {
        context.default = default;
        context.failed = Some(Code::CONTEXT_IS_DESTROYED);
    }
}

/// Waits for all work of a context.
pub(crate) fn finish(name: usize) -> Answer {
    let tickets: Vec<_> = {
        let work = work();
        let own = work.streams.iter().filter(|(_, stream)| stream.context == name);
        own.map(|(stream, _)| work.last(*stream)).collect()
    };
    for ticket in tickets {
        // The context returns the same error for each.
        let _ = finish_ticket(ticket);
    }
    work().check(name)
}

cuda! {
    /// Creates a context and makes it the thread's current one.
    fn cuCtxCreate_v2(out: Out<'_, usize>, flags: u32, raw: i32) {
        let out = given(out, "pctx")?;
        if flags > 0xff {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        let name = create(device(raw)?, 0)?;
        STACK.with_borrow_mut(|stack| stack.push(name));
        out.write(name);
        Ok(())
    }

    /// Destroys a context that the program created.
    fn cuCtxDestroy_v2(name: usize) {
        let is_primary = {
            let work = work();
            work.contexts[&known(&work, name)?].retained > 0
        };
        if is_primary {
            return Err(refuse(Code::INVALID_CONTEXT, format_args!("{name:#x} is a primary context")));
        }
        destroy(name);
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&name) {
                stack.pop();
            }
        });
        Ok(())
    }

    /// Pushes a context onto the thread's stack.
    fn cuCtxPushCurrent_v2(name: usize) {
        known(&work(), name)?;
        STACK.with_borrow_mut(|stack| stack.push(name));
        Ok(())
    }

    /// Pops it.
    fn cuCtxPopCurrent_v2(out: Out<'_, usize>) {
        let Some(name) = STACK.with_borrow_mut(|stack| stack.pop()) else {
            return Err(refuse(Code::INVALID_CONTEXT, format_args!("the thread has no current context")));
        };
        out.map(|out| out.write(name));
        Ok(())
    }

    /// Replaces the current context; null means none.
    fn cuCtxSetCurrent(name: usize) {
        if name != 0 {
            known(&work(), name)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend((name != 0).then_some(name));
        });
        Ok(())
    }

    /// Returns the thread's current context, or null.
    fn cuCtxGetCurrent(out: Out<'_, usize>) {
        let name = STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0));
        given(out, "pctx")?.write(name);
        Ok(())
    }

    /// Returns the current context's device.
    fn cuCtxGetDevice(out: Out<'_, i32>) {
        let out = given(out, "device")?;
        let work = work();
        // Another thread may have destroyed it, so it is checked.
        let top = STACK.with_borrow(|stack| stack.last().copied());
        if top.is_some_and(|name| !work.contexts.contains_key(&name)) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        out.write(work.contexts[&current(&work)?].device as i32);
        Ok(())
    }

    /// Waits for all work of the current context.
    fn cuCtxSynchronize() {
        let name = {
            let mut work = work();
            let name = current(&work)?;
            capture_rules::refuse_in(&mut work, name)?;
            name
        };
        finish(name)
    }
}
