//! The tables: HIP's own (handles, reservations and what is mapped in them) and those of the runtime below (physical
//! memory with its references).

use crate::bucket::Bucket;
use crate::c::crash;
use crate::copy::Work;
use crate::memory::{self, Memory};
use crate::settings::Settings;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Instant;

pub(crate) static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));

pub(crate) struct State {
    pub(crate) version: u32,
    pub(crate) bucket: Bucket,
    pub(crate) devices: Vec<Device>,
    /// The number of devices, from the first on, that report no virtual memory management.
    pub(crate) without_vmm: usize,
    /// By number.
    pub(crate) physical: HashMap<u64, Physical>,
    /// By HIP's pointer.
    pub(crate) handles: HashMap<usize, Handle>,
    /// By address.
    pub(crate) reservations: BTreeMap<usize, Reservation>,
    /// Allocations of `hipMalloc`, each as a reservation with one mapping.
    pub(crate) plain: BTreeMap<usize, Reservation>,
    /// Ranges that HIP has forgotten while something was mapped in them.
    pub(crate) forgotten: Vec<Reservation>,
    /// Freed ranges that a thread of HIP's still holds.
    pub(crate) held: Vec<(usize, usize)>,
    /// Page-locked memory of the host: its sizes by address.
    pub(crate) locked: BTreeMap<usize, usize>,
    /// By HIP's pointer.
    pub(crate) streams: BTreeMap<usize, Stream>,
    last_number: u64,
}

/// A stream that no null stream waits for.
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) queue: VecDeque<Work>,
}

pub(crate) struct Device {
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// The null stream.
    pub(crate) queue: VecDeque<Work>,
}

/// Memory, while something refers to it: HIP's object for a handle, and mappings.
pub(crate) struct Physical {
    pub(crate) memory: Arc<Memory>,
    /// Whose it is; none for the host's, and for another process's, which is counted there.
    pub(crate) device: Option<usize>,
    pub(crate) references: usize,
}

/// Where a handle's memory comes from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Physical(u64),
    /// An import whose descriptor is to be read when access is set.
    Descriptor(i32),
}

/// HIP's object for a handle.
pub(crate) struct Handle {
    pub(crate) source: Source,
    /// Whose HIP believes it to be.
    pub(crate) device: usize,
    pub(crate) shareable: bool,
    pub(crate) imported: bool,
    /// The caller's, and one for each mapping.
    pub(crate) references: usize,
}

pub(crate) struct Reservation {
    pub(crate) base: usize,
    pub(crate) size: usize,
    pub(crate) mappings: BTreeMap<usize, Mapping>,
    /// Mappings of which HIP knows nothing any more: each takes its number of bytes.
    pub(crate) lost_mappings: usize,
    /// Physical memory that stays as long as the addresses.
    pub(crate) stays: Vec<u64>,
    /// A thread of HIP's held its addresses when it was made.
    pub(crate) is_lost: bool,
    pub(crate) last_command: Option<Instant>,
}

pub(crate) struct Mapping {
    pub(crate) size: usize,
    /// Zero for a plain allocation.
    pub(crate) handle: usize,
    pub(crate) source: Source,
    /// Whose HIP believes it to be.
    pub(crate) device: usize,
    pub(crate) imported: bool,
    /// HIP's flags, by device.
    pub(crate) access: Vec<u32>,
    pub(crate) host_access: bool,
    pub(crate) is_corrupt: bool,
    /// By which HIP's objects for mappings are ordered.
    pub(crate) order: u64,
}

impl Reservation {
    pub(crate) fn new(base: usize, size: usize) -> Self {
        Self {
            base,
            size,
            mappings: BTreeMap::new(),
            lost_mappings: 0,
            stays: Vec::new(),
            is_lost: false,
            last_command: None,
        }
    }

    pub(crate) fn end(&self) -> usize {
        self.base + self.size
    }

    /// The mapping that holds an address, and where it begins.
    pub(crate) fn mapping(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (at, mapping) = self.mappings.range(..=address).next_back()?;
        (address < at + mapping.size).then_some((*at, mapping))
    }

    /// The mappings that fill a range from its start to its end without a hole.
    pub(crate) fn tiles(&self, at: usize, size: usize) -> Option<Vec<usize>> {
        let mut next = at;
        let mut found = Vec::new();
        while next < at + size {
            found.push(next);
            next += self.mappings.get(&next)?.size;
        }
        (next == at + size).then_some(found)
    }
}

/// The entry of a table that holds an address.
pub(crate) fn holding(table: &BTreeMap<usize, Reservation>, address: usize) -> Option<&Reservation> {
    table.range(..=address).next_back().map(|(_, found)| found).filter(|found| address < found.end())
}

impl State {
    fn new() -> Self {
        let Settings { version, bucket, devices, without_vmm, memory } = Settings::read();
        let devices = (0..devices).map(|_| Device { total: memory, used: 0, queue: VecDeque::new() });
        Self {
            version,
            bucket,
            devices: devices.collect(),
            without_vmm,
            physical: HashMap::new(),
            handles: HashMap::new(),
            reservations: BTreeMap::new(),
            plain: BTreeMap::new(),
            forgotten: Vec::new(),
            held: Vec::new(),
            locked: BTreeMap::new(),
            streams: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// A number that was not given out before.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The reservation that holds an address.
    pub(crate) fn reservation(&self, address: usize) -> Option<&Reservation> {
        holding(&self.reservations, address)
    }

    pub(crate) fn reservation_mut(&mut self, address: usize) -> Option<&mut Reservation> {
        let (_, found) = self.reservations.range_mut(..=address).next_back()?;
        (address < found.end()).then_some(found)
    }

    /// The reservation or plain allocation that holds an address.
    pub(crate) fn place(&self, address: usize) -> Option<&Reservation> {
        self.reservation(address).or_else(|| holding(&self.plain, address))
    }

    pub(crate) fn handle(&mut self, function: &str, raw: usize) -> &mut Handle {
        match self.handles.get_mut(&raw) {
            Some(handle) => handle,
            None => crash(format_args!("{function} follows {raw:#x}, which is no handle, or was released")),
        }
    }

    /// Drops a reference to HIP's object for a handle.
    pub(crate) fn let_go_of_handle(&mut self, function: &str, raw: usize) {
        let handle = self.handle(function, raw);
        handle.references -= 1;
        if handle.references > 0 {
            return;
        }
        let (source, imported) = (handle.source, handle.imported);
        self.handles.remove(&raw);
        let leaks = self.bucket.release_frees_nothing || (imported && self.bucket.import_leaks);
        if let Source::Physical(number) = source
            && !leaks
        {
            self.let_go_of_memory(number);
        }
    }

    /// Drops a reference to physical memory, which is free after the last.
    pub(crate) fn let_go_of_memory(&mut self, number: u64) {
        let Some(physical) = self.physical.get_mut(&number) else { return };
        physical.references -= 1;
        if physical.references > 0 {
            return;
        }
        let (device, size) = (physical.device, physical.memory.size);
        self.physical.remove(&number);
        if let Some(device) = device {
            self.devices[device].used -= size as u64;
        }
    }

    /// What becomes of a mapping's memory and handle when it is gone from the tables.
    pub(crate) fn end_mapping(&mut self, function: &str, at: usize, mapping: Mapping) {
        if mapping.host_access {
            // Nothing is put in the place of the host's pages (rocr-runtime of August 2025, RemoveAccess).
            memory::free(at, mapping.size);
        }
        self.let_go_of_handle(function, mapping.handle);
        let Source::Physical(number) = mapping.source else { return };
        if self.bucket.memory_stays_until_free
            && let Some(reservation) = self.reservation_mut(at)
        {
            reservation.stays.push(number);
        } else {
            self.let_go_of_memory(number);
        }
    }
}
