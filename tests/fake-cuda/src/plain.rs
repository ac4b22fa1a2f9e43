//! Memory without virtual memory management: `cuMemAlloc`, `cuMemAllocManaged`, `cuMemFree`, and the amount of free memory.
//!
//! Measured: freeing waits for all work of the context, and does not accept mapped addresses. Decided here: managed memory is on the
//! device of the context that it was allocated in, which the CPU reaches there at any time, and no other device.
#![allow(unsafe_code)] // exported to C

use crate::c::{GRANULARITY, Out, access, given};
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

/// `CU_MEM_ATTACH_GLOBAL` and `CU_MEM_ATTACH_HOST`: the streams whose work may reach managed memory, which is not checked.
const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;

impl State {
    fn allocate(&mut self, device: usize, context: usize, size: u64, managed: bool) -> Answer<u64> {
        let whole = size.checked_next_multiple_of(GRANULARITY).ok_or(Code::OUT_OF_MEMORY)?;
        self.charge(device, whole)?;
        let made = Memory::new(whole, Kind::of_device(device)).ok().zip(Pages::closed(whole, GRANULARITY));
        let Some((memory, addresses)) = made else {
            self.discharge(device, whole);
            return Err(Code::OUT_OF_MEMORY);
        };
        let at = addresses.start();
        if managed && memory.show(at, access::READ_WRITE).is_err() {
            self.discharge(device, whole);
            return Err(Code::OUT_OF_MEMORY);
        }
        let plain = Plain { size, managed, device, context, memory: Arc::new(memory), _addresses: addresses };
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

/// Allocates memory in the current context.
fn allocate(size: usize, managed: bool) -> Answer<u64> {
    if size == 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("size 0")));
    }
    let (context, device) = {
        let mut work = work();
        capture_rules::prohibits(&mut work)?;
        context::usable(&work)?
    };
    state().allocate(device, context, size as u64, managed)
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
        given(out, "dptr")?.write(allocate(size, false)?);
        Ok(())
    }

    /// Allocates memory that the CPU reaches, too.
    fn cuMemAllocManaged(out: Out<'_, u64>, size: usize, flags: u32) {
        if flags != ATTACH_GLOBAL && flags != ATTACH_HOST {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        given(out, "dptr")?.write(allocate(size, true)?);
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
