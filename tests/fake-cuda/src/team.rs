//! The state of a multicast object: the devices of its team, and their bound memory.
//!
//! An object is a memfd of one page, so that it can be exported. The page has the data that all its processes see: its size,
//! the number of devices, which are added, and which have bound memory. Only the process that bound memory knows where.
#![allow(unsafe_code)] // reaches the page

use crate::c::{MULTICAST_MINIMUM, MulticastProperties};
use crate::code::{Answer, Code};
use crate::memory::{Byte, Identity, Memory, named, new_file};
use crate::pages::Pages;
use crate::violation::refuse;
use rustix::fs::fstat;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The name of the memfd, after the common prefix.
const NAME: &str = "multicast";
const PAGE: u64 = 4096;

/// The data that all processes see.
#[repr(C)]
struct Shared {
    size: u64,
    /// The number of devices.
    wanted: u32,
    handle_types: u32,
    /// A bit for each added device.
    added: AtomicU32,
    /// A bit for each device with bound memory.
    bound: AtomicU32,
}

/// Bound memory.
pub(crate) struct Bound {
    pub(crate) size: u64,
    pub(crate) memory: Arc<Memory>,
    /// The offset in the memory.
    from: u64,
}

pub(crate) struct Team {
    file: OwnedFd,
    page: Pages,
    pub(crate) identity: Identity,
    /// A bit for each device that this process added.
    here: u32,
    /// The memory that this process bound, keyed by device and offset in the object.
    pub(crate) bound: BTreeMap<(usize, u64), Bound>,
}

impl Team {
    pub(crate) fn new(properties: &MulticastProperties) -> Result<Self, Errno> {
        let team = Self::of_file(new_file(NAME, PAGE)?)?;
        let shared = Shared {
            size: properties.size as u64,
            wanted: properties.devices,
            handle_types: properties.handle_types as u32,
            added: AtomicU32::new(0),
            bound: AtomicU32::new(0),
        };
        // SAFETY: the page is new, large enough, and not shared yet.
        unsafe { team.page.pointer().cast::<Shared>().write(shared) };
        Ok(team)
    }

    /// Returns the object behind a descriptor; `None` if the descriptor is something else.
    pub(crate) fn import(file: BorrowedFd<'_>) -> Option<Self> {
        if named(file)? != NAME {
            return None;
        }
        Self::of_file(file.try_clone_to_owned().ok()?).ok()
    }

    fn of_file(file: OwnedFd) -> Result<Self, Errno> {
        let page = Pages::of_file(file.as_fd(), PAGE)?;
        let identity = fstat(&file)?.st_ino;
        Ok(Self { file, page, identity, here: 0, bound: BTreeMap::new() })
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 0)
    }

    const fn shared(&self) -> &Shared {
        // SAFETY: the creator of the file initialized it before it exported a descriptor; changing fields are atomics.
        unsafe { &*self.page.pointer().cast::<Shared>() }
    }

    pub(crate) const fn handle_types(&self) -> u32 {
        self.shared().handle_types
    }

    /// Returns its size, once all devices are added.
    pub(crate) fn complete(&self) -> Answer<u64> {
        let shared = self.shared();
        let added = shared.added.load(SeqCst).count_ones();
        if added < shared.wanted {
            let what = format_args!("{added} of {} devices are added", shared.wanted);
            return Err(refuse(Code::ILLEGAL_STATE, what));
        }
        Ok(shared.size)
    }

    /// Returns the object's size, if it can be mapped at this address.
    pub(crate) fn mappable(&self, at: u64) -> Answer<u64> {
        if !at.is_multiple_of(MULTICAST_MINIMUM) {
            let what = format_args!("{at:#x} is not a multiple of the granularity of multicast");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        self.complete()
    }

    /// Refuses access of a device outside of the team, or before all devices have bound memory.
    pub(crate) fn check_access(&self, device: usize) -> Answer {
        let (added, bound) = (self.shared().added.load(SeqCst), self.shared().bound.load(SeqCst));
        if added & (1 << device) == 0 {
            let what = format_args!("device {device} is not in the team");
            return Err(refuse(Code::INVALID_DEVICE, what));
        }
        if bound != added {
            let what = format_args!("devices {added:#b} are added, and {bound:#b} have bound memory");
            return Err(refuse(Code::ILLEGAL_STATE, what));
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, device: usize) -> Answer {
        let shared = self.shared();
        let added = shared.added.load(SeqCst);
        if added & (1 << device) != 0 || added.count_ones() == shared.wanted {
            let what = format_args!("device {device} was already added, or the team is full");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        shared.added.fetch_or(1 << device, SeqCst);
        self.here |= 1 << device;
        Ok(())
    }

    /// Binds memory from `from` on; `shareable` is true for memory that can be exported or was imported.
    pub(crate) fn bind(
        &mut self,
        offset: u64,
        memory: Arc<Memory>,
        from: u64,
        size: u64,
        shareable: bool,
    ) -> Answer {
        let whole = self.complete()?;
        let home = memory.kind.home;
        // Memory of the host is bound with calls that are not implemented here.
        let device =
            home.device().ok_or_else(|| refuse(Code::INVALID_VALUE, format_args!("memory of {home:?}")))?;
        let what = |what: &str| {
            let numbers =
                format_args!("{size:#x} at {offset:#x}, from {from:#x} of device {device}'s memory");
            Err(refuse(Code::INVALID_VALUE, format_args!("{numbers}: {what}")))
        };
        if size == 0 || [offset, from, size].iter().any(|number| !number.is_multiple_of(MULTICAST_MINIMUM)) {
            return what("not whole granules of multicast");
        }
        if self.here & (1 << device) == 0 {
            return what("this process has not added the device");
        }
        if self.handle_types() != 0 && !shareable {
            return what("the object can be exported, and the memory cannot");
        }
        if from.checked_add(size).is_none_or(|end| end > memory.size) {
            return what("it exceeds the memory");
        }
        let Some(end) = offset.checked_add(size).filter(|end| *end <= whole) else {
            return what("it exceeds the object");
        };
        let before = self.bound.range((device, 0)..(device, end)).next_back();
        if before.is_some_and(|((_, start), bound)| start + bound.size > offset) {
            return what("the range is already bound");
        }
        self.bound.insert((device, offset), Bound { size, memory, from });
        self.shared().bound.fetch_or(1 << device, SeqCst);
        Ok(())
    }

    /// Unbinds the memory that was bound with these numbers.
    pub(crate) fn unbind(&mut self, device: usize, offset: u64, size: u64) -> Answer {
        if self.bound.get(&(device, offset)).is_none_or(|bound| bound.size != size) {
            let what = format_args!("{size:#x} at {offset:#x} of device {device} was not bound as one");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        self.bound.remove(&(device, offset));
        if !self.bound.keys().any(|(other, _)| *other == device) {
            self.shared().bound.fetch_and(!(1 << device), SeqCst);
        }
        Ok(())
    }

    /// Returns the targets of a store at an offset: a place in each device's memory of this process, and the length for which
    /// all are contiguous.
    pub(crate) fn members(&self, offset: u64, size: u64) -> Result<(Vec<Byte>, u64), &'static str> {
        let (mut members, mut left) = (Vec::new(), size);
        for device in (0..u32::BITS as usize).filter(|device| self.here & (1 << device) != 0) {
            let before = self.bound.range((device, 0)..=(device, offset)).next_back();
            let found = before.filter(|((_, start), bound)| offset - start < bound.size);
            let ((_, start), bound) = found.ok_or("a device of the team has bound nothing there")?;
            members.push((Arc::clone(&bound.memory), bound.from + (offset - start)));
            left = left.min(start + bound.size - offset);
        }
        Ok((members, left))
    }
}
