//! The driver's state about memory: the memory of each device, the mappings, and the objects behind handles.
//!
//! Handles, mappings and access are records under a lock. Work on memory does not hold it.

use crate::c::access;
use crate::code::{Answer, Code};
use crate::memory::{Identity, Memory};
use crate::objects::Ticket;
use crate::pages::Pages;
use crate::settings::{MAX_DEVICES, settings};
use crate::space::Space;
use crate::team::Team;
use crate::violation::refuse;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The lock's content.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) space: Space,
    /// Keyed by their first addresses.
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    /// Keyed by their first addresses.
    pub(crate) plain: BTreeMap<u64, Plain>,
    /// Keyed by their first addresses.
    pub(crate) pinned: BTreeMap<u64, Pinned>,
    pub(crate) handles: BTreeMap<u64, Handle>,
    pub(crate) memories: BTreeMap<Identity, Held>,
    pub(crate) teams: BTreeMap<Identity, Team>,
    last_handle: u64,
    used: [u64; MAX_DEVICES],
}

/// Memory that is in use by handles of this process, or by descriptors exported from it.
pub(crate) struct Held {
    pub(crate) memory: Arc<Memory>,
    pub(crate) handles: usize,
    pub(crate) exported: bool,
    /// Whether it was created here, so that it counts against the device's memory; imports count in their own process.
    pub(crate) charged: bool,
}

/// The object behind a `CUmemGenericAllocationHandle`.
pub(crate) struct Handle {
    pub(crate) object: Object,
    /// The number of references from creating, importing and retaining; each must be released once.
    pub(crate) references: usize,
    pub(crate) mappings: usize,
}

#[derive(Clone)]
pub(crate) enum Object {
    Memory { memory: Arc<Memory>, imported: bool },
    Multicast { team: Identity, imported: bool },
}

/// A mapping; its first address is its key.
pub(crate) struct Mapping {
    pub(crate) size: u64,
    pub(crate) handle: u64,
    /// The access of each device.
    pub(crate) access: [u32; MAX_DEVICES],
    /// The access of the CPU.
    pub(crate) host: u32,
}

/// An allocation of `cuMemAlloc` or `cuMemAllocManaged`; its first address is its key.
pub(crate) struct Plain {
    pub(crate) size: u64,
    /// Whether the CPU reaches it, too.
    pub(crate) managed: bool,
    pub(crate) device: usize,
    pub(crate) context: usize,
    pub(crate) memory: Arc<Memory>,
    pub(crate) _addresses: Pages,
}

/// Page-locked memory; its first address is its key.
pub(crate) struct Pinned {
    /// None if it is the program's and only registered.
    pub(crate) pages: Option<Pages>,
    pub(crate) size: u64,
    pub(crate) context: usize,
    pub(crate) portable: bool,
    /// Copies that may still use it.
    pub(crate) used_by: Vec<Ticket>,
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Returns the free memory of a device.
    pub(crate) fn free(&mut self, device: usize) -> u64 {
        self.forget_unused();
        settings().memory.saturating_sub(self.used[device])
    }

    /// Takes memory of a device if there is enough.
    pub(crate) fn charge(&mut self, device: usize, size: u64) -> Answer {
        if size > self.free(device) {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.used[device] += size;
        Ok(())
    }

    pub(crate) fn discharge(&mut self, device: usize, size: u64) {
        self.used[device] = self.used[device].saturating_sub(size);
    }

    /// Creates a handle with one reference.
    pub(crate) fn new_handle(&mut self, object: Object) -> u64 {
        // Handles are far apart and never reused, so that neither arithmetic nor an old handle yields another one.
        self.last_handle += 0x1_0000;
        let handle = Handle { object, references: 1, mappings: 0 };
        self.handles.insert(self.last_handle, handle);
        self.last_handle
    }

    /// Returns a handle that the program holds.
    pub(crate) fn handle(&mut self, raw: u64) -> Answer<&mut Handle> {
        let found = self.handles.get_mut(&raw).filter(|handle| handle.references > 0);
        found.ok_or_else(|| refuse(Code::INVALID_VALUE, format_args!("handle {raw:#x} is not known")))
    }

    /// Returns the memory behind a handle that the program holds.
    pub(crate) fn memory_of(&mut self, raw: u64) -> Answer<(Arc<Memory>, bool)> {
        match &self.handle(raw)?.object {
            Object::Memory { memory, imported } => Ok((Arc::clone(memory), *imported)),
            Object::Multicast { .. } => {
                Err(refuse(Code::INVALID_VALUE, format_args!("handle {raw:#x} is a multicast object's")))
            }
        }
    }

    /// Drops a handle that neither the program nor a mapping uses any more.
    pub(crate) fn drop_if_unused(&mut self, raw: u64) {
        let is_unused = |handle: &Handle| handle.references == 0 && handle.mappings == 0;
        if !self.handles.get(&raw).is_some_and(is_unused) {
            return;
        }
        match self.handles.remove(&raw).map(|handle| handle.object) {
            Some(Object::Memory { memory, .. }) => {
                let Some(held) = self.memories.get_mut(&memory.identity) else { return };
                held.handles -= 1;
                if held.handles == 0 {
                    self.check_unbound(memory.identity);
                }
                self.forget_unused();
            }
            Some(Object::Multicast { team, .. }) => self.drop_team_if_unused(team),
            None => {}
        }
    }

    /// Frees memory that is not used any more. A descriptor keeps memory alive too; this process cannot see descriptors of other
    /// processes.
    pub(crate) fn forget_unused(&mut self) {
        let is_unused = |held: &Held| held.handles == 0 && !(held.exported && held.memory.has_descriptor());
        let unused: Vec<Identity> =
            self.memories.iter().filter(|(_, held)| is_unused(held)).map(|(identity, _)| *identity).collect();
        for identity in unused {
            if let Some(held) = self.memories.remove(&identity)
                && held.charged
                && let Some(device) = held.memory.kind.home.device()
            {
                self.discharge(device, held.memory.size);
            }
        }
    }

    /// Returns the mapping that contains an address.
    pub(crate) fn mapping(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (base, mapping) = self.mappings.range(..=at).next_back()?;
        (at - base < mapping.size).then_some((*base, mapping))
    }

    /// Returns the plain allocation that contains an address.
    pub(crate) fn plain(&self, at: u64) -> Option<(u64, &Plain)> {
        let (base, plain) = self.plain.range(..=at).next_back()?;
        (at - base < plain.size).then_some((*base, plain))
    }

    /// Returns the first addresses of the mappings that overlap a range.
    pub(crate) fn mappings_in(&self, start: u64, end: u64) -> Vec<u64> {
        let first = self.mapping(start).map_or(start, |(base, _)| base);
        self.mappings.range(first..end).map(|(base, _)| *base).collect()
    }
}

impl Mapping {
    pub(crate) fn new(size: u64, handle: u64) -> Self {
        Self { size, handle, access: [access::NONE; MAX_DEVICES], host: access::NONE }
    }
}
