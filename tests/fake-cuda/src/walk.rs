//! How a device reaches memory: address by address through its page table, as it is at that moment. Work on many bytes
//! looks again at every 2 MiB and holds no lock in between, so that what is unmapped while it runs is missed there.
#![allow(unsafe_code)] // reaches memory by address

use crate::c::{GRANULARITY, access};
use crate::code::{Answer, Code};
use crate::device;
use crate::memory::{Identity, Memory, Place};
use crate::state::{Object, State, state};
use crate::violation::say;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Read,
    Write,
}

/// Who accesses: a kernel, or the driver's own copies and fills, which reach plain memory of every device.
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
    /// Where else what is written goes: the other members of a multicast object.
    others: Vec<Place>,
}

impl Piece {
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.memory.pointer(self.offset)
    }

    /// Its words, which others may use at the same time. It begins between words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the piece is mapped as long as its memory is held, which is as long as the slice; it begins at a word,
        // by the caller's check; atomics may be shared with anyone.
        unsafe { slice::from_raw_parts(self.pointer().cast(), self.size as usize / size_of::<u64>()) }
    }

    /// Writes what was written to the others as well.
    fn spread(&self) {
        for (memory, offset) in &self.others {
            // SAFETY: each holds so many bytes, and where two are one memory, the copy allows for it.
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
    /// What is at an address, as far as `size`, or why it cannot be reached.
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
        if reaches { Ok(piece(&plain.memory, at - base)) } else { Err("it is another device's") }
    }

    /// What a kernel's store to a multicast object reaches, of this process. A plain load is undefined, and copies by the
    /// driver are not documented.
    fn store(
        &self,
        team: Identity,
        who: Who,
        offset: u64,
        size: u64,
        need: Need,
    ) -> Result<Piece, &'static str> {
        if need == Need::Read || matches!(who, Who::Driver(_)) {
            return Err("a multicast object is mapped there, which takes stores of kernels alone");
        }
        let left = size.min(GRANULARITY - offset % GRANULARITY);
        let (members, size) = self.teams.get(&team).ok_or("nothing is there")?.members(offset, left)?;
        let mut others = members.into_iter();
        let (memory, offset) = others.next().ok_or("no device of this process is in the team")?;
        Ok(Piece { memory, offset, size, others: others.collect() })
    }

    /// Whether all of a range can be reached at this moment.
    pub(crate) fn check(&self, who: Who, at: u64, size: u64, need: Need) -> Result<(), &'static str> {
        let end = at.checked_add(size).ok_or("it goes beyond the last address")?;
        let mut next = at;
        while next < end {
            next += self.step(who, next, end - next, need)?.size;
        }
        Ok(())
    }
}

/// What is at an address, or the fault that ends the context.
pub(crate) fn reach(who: Who, at: u64, size: u64, need: Need) -> Answer<Piece> {
    state().step(who, at, size, need).map_err(|why| {
        say(format_args!("{who:?} faults at {at:#x} ({need:?}): {why}"));
        Code::ILLEGAL_ADDRESS
    })
}

/// Goes over a range piece by piece.
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
