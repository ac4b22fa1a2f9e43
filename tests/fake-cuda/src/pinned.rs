//! Page-locked memory of the host: `cuMemHostAlloc`, `cuMemFreeHost`, and the program's own by `cuMemHostRegister`,
//! `cuMemHostUnregister`. Copies between it and a device are asynchronous.
//!
//! Decided here: it is page-locked for contexts other than its own only if it was allocated as `PORTABLE`, and pageable for
//! them otherwise. Kernels cannot reach it. A copy across its border is refused. Freeing it during a copy is a violation,
//! which waits for the copy.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::capture_rules;
use crate::code::{Answer, Code};
use crate::context;
use crate::objects::Ticket;
use crate::pages::Pages;
use crate::state::{Pinned, State, state};
use crate::violation::{note, refuse};
use crate::work::{finish, work};
use std::collections::btree_map::Entry;
use std::ffi::c_void;

/// `CU_MEMHOSTALLOC_PORTABLE`; the other two are `DEVICEMAP` and `WRITECOMBINED`.
const PORTABLE: u32 = 1;
const FLAGS: u32 = 7;
/// `PORTABLE`, `DEVICEMAP`, `IOMEMORY` and `READ_ONLY` of `CU_MEMHOSTREGISTER`.
const REGISTER_FLAGS: u32 = 15;

impl State {
    /// Returns the key of the allocation that contains host bytes; `None` if they are pageable for the context.
    pub(crate) fn pinned(&self, at: u64, size: u64, context: usize) -> Answer<Option<u64>> {
        let end = at.saturating_add(size);
        let before = self.pinned.range(..end).next_back();
        let Some((base, found)) = before.filter(|(base, found)| at < *base + found.size) else {
            return Ok(None);
        };
        if at < *base || end > base + found.size {
            let what = format_args!("{size:#x} at {at:#x} exceeds its page-locked allocation");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        Ok((found.portable || found.context == context).then_some(*base))
    }

    /// Notes that a copy uses an allocation.
    pub(crate) fn use_pinned(&mut self, base: u64, by: Ticket) {
        let work = work();
        if let Some(found) = self.pinned.get_mut(&base) {
            found.used_by.retain(|ticket| !work.is_done(*ticket));
            found.used_by.push(by);
        }
    }

    /// Frees the allocations of a destroyed context.
    pub(crate) fn free_pinned_of(&mut self, context: usize) {
        self.pinned.retain(|_, pinned| pinned.context != context);
    }
}

fn allocate(size: u64, flags: u32) -> Answer<u64> {
    if size == 0 || flags & !FLAGS != 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("size {size:#x}, flags {flags:#x}")));
    }
    let context = {
        let mut work = work();
        capture_rules::prohibits(&mut work)?;
        context::usable(&work)?.0
    };
    let pages = Pages::open(size).ok_or(Code::OUT_OF_MEMORY)?;
    let at = pages.start();
    let pinned =
        Pinned { pages: Some(pages), size, context, portable: flags & PORTABLE != 0, used_by: Vec::new() };
    state().pinned.insert(at, pinned);
    Ok(at)
}

fn register(at: u64, size: u64, flags: u32) -> Answer {
    if at == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("{size:#x} at {at:#x}, flags {flags:#x}")));
    }
    let context = {
        let mut work = work();
        capture_rules::prohibits(&mut work)?;
        context::usable(&work)?.0
    };
    let mut state = state();
    let end = at.saturating_add(size);
    if state.pinned.range(..end).next_back().is_some_and(|(base, found)| base + found.size > at) {
        let what = format_args!("{size:#x} at {at:#x}: some of it is page-locked");
        return Err(refuse(Code::HOST_MEMORY_ALREADY_REGISTERED, what));
    }
    let portable = flags & PORTABLE != 0;
    state.pinned.insert(at, Pinned { pages: None, size, context, portable, used_by: Vec::new() });
    Ok(())
}

/// Frees an allocation, or ends a registration. Errors of the current context are returned after that.
fn free(at: u64, is_allocated: bool, unknown: Code) -> Answer {
    let context = {
        let mut work = work();
        capture_rules::prohibits(&mut work)?;
        context::current(&work)?
    };
    let found = match state().pinned.entry(at) {
        Entry::Occupied(found) if found.get().pages.is_some() == is_allocated => found.remove(),
        _ => return Err(refuse(unknown, format_args!("no such page-locked memory begins at {at:#x}"))),
    };
    for ticket in found.used_by {
        if !work().is_done(ticket) {
            note(format_args!("a copy still uses the memory at {at:#x}"));
        }
        // Errors of the copy belong to its own context.
        let _ = finish(ticket);
    }
    drop(found.pages);
    work().check(context)
}

cuda! {
    /// Allocates page-locked memory.
    fn cuMemHostAlloc(out: Out<'_, u64>, size: usize, flags: u32) {
        given(out, "pp")?.write(allocate(size as u64, flags)?);
        Ok(())
    }

    /// Frees page-locked memory.
    fn cuMemFreeHost(at: *mut c_void) {
        free(at.addr() as u64, true, Code::INVALID_VALUE)
    }

    /// Page-locks memory of the program.
    fn cuMemHostRegister_v2(at: *mut c_void, size: usize, flags: u32) {
        register(at.addr() as u64, size as u64, flags)
    }

    /// Ends the page-locking of the program's memory.
    fn cuMemHostUnregister(at: *mut c_void) {
        free(at.addr() as u64, false, Code::HOST_MEMORY_NOT_REGISTERED)
    }

    /// Returns the address at which a device reaches page-locked memory: with unified addressing, that of the host.
    fn cuMemHostGetDevicePointer_v2(out: Out<'_, u64>, at: *mut c_void, flags: u32) {
        let out = given(out, "pdptr")?;
        let context = context::usable(&work())?.0;
        let at = at.addr() as u64;
        if flags != 0 || state().pinned(at, 1, context)?.is_none() {
            let what = format_args!("flags {flags:#x}, or {at:#x} is not page-locked for the context");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        out.write(at);
        Ok(())
    }
}
