//! Each device's primary context, which the whole process shares.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::code::{Answer, Code};
use crate::context::{create, destroy, reset};
use crate::device::device;
use crate::violation::refuse;
use crate::work::{Work, work};
use std::sync::{Mutex, PoisonError};

/// Held while a primary context is created or destroyed, so that two threads do not create two.
static CHANGING: Mutex<()> = Mutex::new(());

fn retain(device: usize) -> Answer<usize> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let known = work().primary[device];
    if let Some(name) = known {
        if let Some(context) = work().contexts.get_mut(&name) {
            context.retained += 1;
            if context.failed == Some(Code::CONTEXT_IS_DESTROYED) {
                context.failed = None;
            }
        }
        return Ok(name);
    }
    let name = create(device, 1)?;
    work().primary[device] = Some(name);
    Ok(name)
}

impl Work {
    /// Releases a reference. Returns the context if that was the last.
    fn release(&mut self, device: usize) -> Answer<Option<usize>> {
        let name = self.primary[device];
        let Some(context) = name.and_then(|name| self.contexts.get_mut(&name)) else {
            let what = format_args!("the primary context of device {device} is not retained");
            return Err(refuse(Code::INVALID_CONTEXT, what));
        };
        context.retained -= 1;
        if context.retained > 0 {
            return Ok(None);
        }
        self.primary[device] = None;
        Ok(name)
    }
}

cuda! {
    /// Retains the context; the first call creates it.
    fn cuDevicePrimaryCtxRetain(out: Out<'_, usize>, raw: i32) {
        given(out, "pctx")?.write(retain(device(raw)?)?);
        Ok(())
    }

    /// Releases the context; the last release destroys it.
    fn cuDevicePrimaryCtxRelease_v2(raw: i32) {
        let device = device(raw)?;
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = work().release(device)?;
        ended.into_iter().for_each(destroy);
        Ok(())
    }

    /// Destroys all that the context has, in use or not. Documented: it stays retained. Decided here: it can be used again, under the same
    /// name, once it is retained again, and memory of virtual memory management, which needs no context, stays.
    fn cuDevicePrimaryCtxReset_v2(raw: i32) {
        let device = device(raw)?;
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let name = work().primary[device];
        name.into_iter().for_each(reset);
        Ok(())
    }

    /// Returns whether the context exists.
    fn cuDevicePrimaryCtxGetState(raw: i32, flags: Out<'_, u32>, active: Out<'_, i32>) {
        let (flags, active) = (given(flags, "flags")?, given(active, "active")?);
        let device = device(raw)?;
        flags.write(0);
        let work = work();
        let context = work.primary[device].and_then(|name| work.contexts.get(&name));
        active.write(context.is_some_and(|context| context.failed != Some(Code::CONTEXT_IS_DESTROYED)).into());
        Ok(())
    }
}
