//! A device's accesses to memory: address by address through its current page table. Work on many bytes checks the table
//! again at every 2 MiB and holds no lock in between, so that it faults on memory that is unmapped while it runs.
#![allow(unsafe_code)] // reaches memory by address

use crate::c::{GRANULARITY, access};
use crate::code::{Answer, Code};
use crate::device;
use crate::memory::{Byte, Identity, Memory};
use crate::state::{Object, State, state};
use crate::violation::say;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Read,
    Write,
}

/// The source of an access: a kernel, or the driver's own copies and fills, which reach plain memory of every device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Kernel(usize),
    Driver(usize),
}

/// Memory from an address on, within one granule.
pub(crate) struct Piece {
    memory: Arc<Memory>,
    offset: u64,
    pub(crate) size: u64,
    /// Further targets of a write: the other members of a multicast object.
    others: Vec<Byte>,
}

impl Piece {
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.memory.pointer(self.offset)
    }

    /// Returns its words, which others may use at the same time. It must begin at a word.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the piece is mapped as long as its memory is held, which is as long as the slice; the caller has checked
        // that it begins at a word; atomics may be shared.
        unsafe { slice::from_raw_parts(self.pointer().cast(), self.size as usize / size_of::<u64>()) }
    }

    /// Copies a write to the other members.
    fn spread(&self) {
        for (memory, offset) in &self.others {
            // SAFETY: each has this size, and the copy permits overlap.
            unsafe { memory.pointer(*offset).copy_from(self.pointer(), self.size as usize) };
        }
    }
}

impl Who {
    const fn device(self) -> usize {
        match self {
            Self::Kernel(device) | Self::Driver(device) => device,
        }
    }
}

impl State {
    /// Returns the memory at an address, up to `size`, or why it cannot be reached.
    fn step(&self, who: Who, at: u64, size: u64, need: Need) -> Result<Piece, &'static str> {
        let device = who.device();
        let piece = |memory: &Arc<Memory>, offset: u64| {
            let left = (memory.size - offset).min(GRANULARITY - offset % GRANULARITY);
            Piece { memory: Arc::clone(memory), offset, size: left.min(size), others: Vec::new() }
        };
        if let Some((base, mapping)) = self.mapping(at) {
            let needed = if need == Need::Read { access::READ } else { access::READ_WRITE };
            if mapping.access[device] & needed != needed {
                return Err("the device has no such access");
            }
            return match self.handles.get(&mapping.handle).map(|handle| &handle.object) {
                Some(Object::Memory { memory, .. }) => Ok(piece(memory, at - base)),
                Some(Object::Multicast { team, .. }) => self.store(*team, who, at - base, size, need),
                None => Err("nothing is mapped there"),
            };
        }
        let Some((base, plain)) = self.plain(at) else { return Err("nothing is mapped there") };
        let reaches = match who {
            Who::Kernel(device) => device == plain.device,
            Who::Driver(device) => device::reaches(device, plain.device),
        };
        if reaches { Ok(piece(&plain.memory, at - base)) } else { Err("it is another device's memory") }
    }

    /// Returns the targets of a kernel's store to a multicast object, of this process. A plain load is undefined, and copies
    /// by the driver are not documented.
    fn store(
        &self,
        team: Identity,
        who: Who,
        offset: u64,
        size: u64,
        need: Need,
    ) -> Result<Piece, &'static str> {
        if need == Need::Read || matches!(who, Who::Driver(_)) {
            return Err("a multicast object is mapped there, which only accepts stores of kernels");
        }
        let left = size.min(GRANULARITY - offset % GRANULARITY);
        let (members, size) = self.teams.get(&team).ok_or("nothing is there")?.members(offset, left)?;
        let mut others = members.into_iter();
        let (memory, offset) = others.next().ok_or("no device of this process is in the team")?;
        Ok(Piece { memory, offset, size, others: others.collect() })
    }

    /// Checks whether all of a range can be reached now.
    pub(crate) fn check(&self, who: Who, at: u64, size: u64, need: Need) -> Result<(), &'static str> {
        let end = at.checked_add(size).ok_or("it goes beyond the last address")?;
        let mut next = at;
        while next < end {
            next += self.step(who, next, end - next, need)?.size;
        }
        Ok(())
    }
}

/// Returns the memory at an address, or the fault that ends the context.
pub(crate) fn reach(who: Who, at: u64, size: u64, need: Need) -> Answer<Piece> {
    state().step(who, at, size, need).map_err(|why| {
        say(format_args!("{who:?} faults at {at:#x} ({need:?}): {why}"));
        Code::ILLEGAL_ADDRESS
    })
}

/// Calls `work` for each piece of a range.
pub(crate) fn each(who: Who, at: u64, size: u64, need: Need, mut work: impl FnMut(&Piece)) -> Answer {
    let end = at.checked_add(size).ok_or(Code::ILLEGAL_ADDRESS)?;
    let mut next = at;
    while next < end {
        let piece = reach(who, next, end - next, need)?;
        work(&piece);
        piece.spread();
        next += piece.size;
    }
    Ok(())
}
