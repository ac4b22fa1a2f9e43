//! The tables: HIP's own (handles, reservations and their mappings) and the tables of the runtime below (physical memory).
//! References keep an object alive.

use crate::c::{Answer, HipError, Out, stop};
use crate::memory::Memory;
use crate::settings::SETTINGS;
use crate::stream::{Event, Stream};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

pub(crate) static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

#[derive(Default)]
pub(crate) struct State {
    /// Keyed by HIP's pointer, until the caller releases them.
    pub(crate) handles: HashMap<usize, Arc<Handle>>,
    /// The references of a handle beyond its first, keyed in the same way.
    pub(crate) retains: HashMap<usize, usize>,
    /// Reservations and plain allocations, keyed by address.
    pub(crate) places: BTreeMap<usize, Reserved>,
    /// Freed ranges that a thread of HIP still holds.
    pub(crate) held: Vec<Range<usize>>,
    /// Page-locked memory of the host: its sizes, keyed by address.
    pub(crate) locked: BTreeMap<usize, usize>,
    /// Keyed by HIP's pointer; null streams too, by [`null`](crate::stream::null).
    pub(crate) streams: BTreeMap<usize, Stream>,
    /// Keyed by HIP's pointer.
    pub(crate) events: BTreeMap<usize, Event>,
    /// Memory of which ROCr has returned a handle.
    pub(crate) retained: HashMap<u64, Arc<Memory>>,
    /// The number of calls of each function that is refused some time.
    calls: HashMap<&'static str, u64>,
    objects: Vec<Weak<Handle>>,
    physical: Vec<Weak<Memory>>,
    last_number: u64,
}

/// HIP's object for a handle. Mappings refer to it as well.
pub(crate) struct Handle {
    /// Empty until an imported descriptor is read.
    pub(crate) memory: OnceLock<Arc<Memory>>,
    /// The descriptor of such an import.
    pub(crate) descriptor: c_int,
    /// The device that HIP considers its owner.
    pub(crate) device: usize,
    /// The type of handle as which it can be exported, or 0.
    pub(crate) exported_as: c_int,
    /// HIP's pointer, or 0 in a plain allocation.
    pub(crate) raw: usize,
}

/// A reservation, or a plain allocation as one with one mapping.
#[derive(Default)]
pub(crate) struct Reserved {
    pub(crate) range: Range<usize>,
    pub(crate) is_plain: bool,
    pub(crate) mappings: BTreeMap<usize, Mapping>,
    /// Physical memory that is only freed with the addresses.
    pub(crate) stays: Vec<Arc<Memory>>,
    /// Whether a thread of HIP held its addresses when it was reserved.
    pub(crate) is_lost: bool,
    pub(crate) last_command: Option<Instant>,
}

pub(crate) struct Mapping {
    pub(crate) size: usize,
    pub(crate) handle: Arc<Handle>,
    /// HIP's access flags, by device.
    pub(crate) access: Vec<u32>,
    pub(crate) host_access: bool,
    pub(crate) is_corrupt: bool,
    /// The order of HIP's objects for mappings.
    pub(crate) order: u64,
}

impl Mapping {
    /// Creates a mapping without any access.
    pub(crate) fn new(size: usize, handle: Arc<Handle>, order: u64) -> Self {
        let access = vec![0; SETTINGS.devices];
        Self { size, handle, access, host_access: false, is_corrupt: false, order }
    }
}

impl State {
    /// Returns a number that was not used before.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Counts a call, and returns the code with which it is refused.
    pub(crate) fn refusal(&mut self, name: &str) -> Option<HipError> {
        let (known, _, _) = SETTINGS.refuses.iter().find(|(refused, _, _)| refused == name)?;
        let count = self.calls.entry(known).or_default();
        *count += 1;
        let mut refused = SETTINGS.refuses.iter().filter(|(refused, at, _)| refused == name && at == count);
        refused.next().map(|(_, _, code)| HipError::from_code(*code))
    }

    /// Returns the reservation or plain allocation that contains an address.
    pub(crate) fn place(&self, address: usize) -> Option<&Reserved> {
        let (_, place) = self.places.range(..=address).next_back()?;
        place.range.contains(&address).then_some(place)
    }

    /// Returns the reservation that contains an address, for a function that works on one.
    pub(crate) fn reservation(&mut self, function: &str, address: usize) -> &mut Reserved {
        match self.places.range_mut(..=address).next_back() {
            Some((_, place)) if place.range.contains(&address) && !place.is_plain => place,
            _ => stop(format_args!("{function} at {address:#x}, which is not reserved")),
        }
    }

    /// Returns where the mappings of a call begin. They must be whole, without a hole, and of one reservation.
    pub(crate) fn tiles(&mut self, function: &str, at: usize, size: usize) -> Vec<usize> {
        let place = self.reservation(function, at);
        let mut next = at;
        let mut found = Vec::new();
        while let Some(mapping) = place.mappings.get(&next).filter(|_| next < at + size) {
            found.push(next);
            next += mapping.size;
        }
        let are_whole = size != 0 && next == at + size;
        rule!(are_whole, "{function} of {size:#x} at {at:#x}, which does not consist of whole mappings");
        found
    }

    /// Returns the mapping that contains an address, and its first address.
    pub(crate) fn mapping(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (at, mapping) = self.place(address)?.mappings.range(..=address).next_back()?;
        (address < at + mapping.size).then_some((*at, mapping))
    }

    pub(crate) fn handle(&self, function: &str, raw: usize) -> &Arc<Handle> {
        match self.handles.get(&raw) {
            Some(handle) => handle,
            None => stop(format_args!("{function} follows {raw:#x}, which is not a handle, or was released")),
        }
    }

    /// Returns HIP's pointer for a new handle, which no caller may dereference.
    pub(crate) fn add_handle(&mut self, mut handle: Handle) -> usize {
        const FIRST: u64 = 0x5a5a_0000_0000;
        let raw = (FIRST + self.number() * 64) as usize;
        handle.raw = raw;
        let handle = Arc::new(handle);
        self.objects.push(Arc::downgrade(&handle));
        self.handles.insert(raw, handle);
        raw
    }

    fn memories(&self) -> impl Iterator<Item = Arc<Memory>> {
        self.physical.iter().filter_map(Weak::upgrade)
    }

    /// Returns the free memory of a device.
    pub(crate) fn free_of(&self, device: usize) -> u64 {
        let taken = self.memories().filter(|memory| memory.device == Some(device));
        SETTINGS.memory - taken.map(|memory| memory.size as u64).sum::<u64>()
    }

    /// Takes memory of a device or of the host.
    pub(crate) fn take_memory(&mut self, device: Option<usize>, size: usize) -> Answer<Arc<Memory>> {
        if device.is_some_and(|device| self.free_of(device) < size as u64) {
            return Err(HipError::OUT_OF_MEMORY);
        }
        Ok(self.add_memory(Memory::new(size, device).map_err(|_| HipError::OUT_OF_MEMORY)?))
    }

    fn add_memory(&mut self, memory: Memory) -> Arc<Memory> {
        let memory = Arc::new(memory);
        self.physical.push(Arc::downgrade(&memory));
        memory
    }

    /// Returns the memory with a number.
    pub(crate) fn memory_with(&self, number: u64) -> Option<Arc<Memory>> {
        self.memories().find(|memory| memory.number() == number)
    }

    /// Returns the memory behind a descriptor.
    pub(crate) fn memory_of(&mut self, fd: c_int) -> Answer<Arc<Memory>> {
        let memory = Memory::of_descriptor(fd).ok_or(HipError::INVALID_VALUE)?;
        let known = self.memories().find(|known| known.is_same(&memory));
        Ok(known.unwrap_or_else(|| self.add_memory(memory)))
    }
}

/// The number of objects of each kind, for leak checks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// HIP's objects for handles.
    pub handles: usize,
    /// Physical memory objects.
    pub physical: usize,
    /// Reservations, mappings, plain allocations, page-locked allocations, streams that callers created, events.
    pub others: [usize; 6],
}

#[unsafe(no_mangle)]
extern "C" fn fake_hip_counts(to: Out<'_, Counts>) {
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let (plain, reserved): (Vec<_>, Vec<_>) = state.places.values().partition(|place| place.is_plain);
    let counts = Counts {
        handles: state.objects.iter().filter(|object| object.strong_count() > 0).count(),
        physical: state.memories().count(),
        others: [
            reserved.len(),
            reserved.iter().map(|place| place.mappings.len()).sum(),
            plain.len(),
            state.locked.len(),
            state.streams.values().filter(|stream| !stream.is_null).count(),
            state.events.len(),
        ],
    };
    to.map(|to| to.write(counts));
}
