//! Memory without virtual memory management: `cuMemAlloc`, `cuMemFree`, and the amount of free memory.
//!
//! Measured: freeing waits for all work of the context, and does not accept mapped addresses.
#![allow(unsafe_code)] // exported to C

use crate::c::{GRANULARITY, Out, given};
use crate::capture_rules;
use crate::code::{Answer, Code};
use crate::context;
use crate::memory::{Kind, Memory};
use crate::pages::Pages;
use crate::settings::settings;
use crate::state::{Plain, State, state};
use crate::violation::refuse;
use crate::work::work;
use std::sync::Arc;

impl State {
    fn allocate(&mut self, device: usize, context: usize, size: u64) -> Answer<u64> {
        let whole = size.checked_next_multiple_of(GRANULARITY).ok_or(Code::OUT_OF_MEMORY)?;
        self.charge(device, whole)?;
        let made = Memory::new(whole, Kind::of_device(device)).ok().zip(Pages::closed(whole, GRANULARITY));
        let Some((memory, addresses)) = made else {
            self.discharge(device, whole);
            return Err(Code::OUT_OF_MEMORY);
        };
        let at = addresses.start();
        let plain = Plain { size, device, context, memory: Arc::new(memory), _addresses: addresses };
        self.plain.insert(at, plain);
        Ok(at)
    }

    fn free_plain(&mut self, at: u64) {
        if let Some(plain) = self.plain.remove(&at) {
            self.discharge(plain.device, plain.memory.size);
        }
    }

    /// Frees the allocations of a destroyed context.
    pub(crate) fn free_of(&mut self, context: usize) {
        let left = self.plain.iter().filter(|(_, plain)| plain.context == context).map(|(at, _)| *at);
        left.collect::<Vec<_>>().into_iter().for_each(|at| self.free_plain(at));
    }
}

cuda! {
    /// Returns the free memory and the memory size of the current context's device.
    fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) {
        let (free, total) = (given(free, "free")?, given(total, "total")?);
        let (_, device) = context::usable(&work())?;
        free.write(state().free(device) as usize);
        total.write(settings().memory as usize);
        Ok(())
    }

    /// Allocates memory.
    fn cuMemAlloc_v2(out: Out<'_, u64>, size: usize) {
        let out = given(out, "dptr")?;
        if size == 0 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("size 0")));
        }
        let (context, device) = {
            let mut work = work();
            capture_rules::prohibits(&mut work)?;
            context::usable(&work)?
        };
        out.write(state().allocate(device, context, size as u64)?);
        Ok(())
    }

    /// Waits for the context, and frees memory.
    fn cuMemFree_v2(at: u64) {
        if !state().plain.contains_key(&at) {
            return Err(refuse(Code::INVALID_VALUE, format_args!("no allocation begins at {at:#x}")));
        }
        let context = {
            let mut work = work();
            capture_rules::prohibits(&mut work)?;
            context::usable(&work)?.0
        };
        context::finish(context)?;
        state().free_plain(at);
        Ok(())
    }
}
