//! The virtual memory API: reserved addresses, physical memory, mappings, and access.
//!
//! Rules: the documentation of `hsa_amd_vmem_*` in `hsa_ext_amd.h`, and ROCr's public source for open questions: mappings are
//! created and removed whole; access is given to whole mappings; memory lives until its handle is released and its last
//! mapping is gone; addresses with mappings cannot be freed.
//!
//! A program's address is only reserved: as with a real GPU, the CPU has no mapping there, unless it was given access. The
//! memory is a file without a name (memfd), which the simulator maps elsewhere for itself.

pub mod access;
pub(crate) mod descriptor;
pub mod mapping;
pub mod physical;
pub mod reservation;
pub mod share;
mod stays;

use crate::abi::{VmemHandle, permission};
use crate::agent;
use crate::memory::pages::Pages;
use crate::memory::walk::Part;
use crate::memory::{Fault, Need, PAGE, holding};
use crate::settings::AGENTS;
use mapping::Mapping;
use physical::Physical;
use reservation::Reservation;
use std::collections::BTreeMap;

/// All live objects.
#[derive(Default)]
pub(crate) struct Vmem {
    reservations: BTreeMap<usize, Reservation>,
    physical: BTreeMap<VmemHandle, Physical>,
    mappings: BTreeMap<usize, Mapping>,
    /// The simulated user that takes freed addresses.
    thief: Thief,
    /// The address space that handles have used up: see [`Vmem::new_handle`].
    handles: u64,
}

/// A simulated other user in the process, which takes addresses as soon as they are freed.
#[derive(Default)]
enum Thief {
    #[default]
    None,
    Waits,
    /// The first page of the freed range.
    Has(#[allow(dead_code)] Pages), // unmapped when dropped
}

/// A reserved address and its mapping.
pub(crate) struct ReservedRange {
    pub(crate) base: usize,
    pub(crate) size: usize,
    /// The agent whose memory is mapped there, if any.
    pub(crate) owner: Option<usize>,
    /// A bit for each agent that may reach it.
    pub(crate) agents: u32,
}

impl Vmem {
    /// Returns the numbers of reservations, physical memory objects and mappings.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [self.reservations.len(), self.physical.len(), self.mappings.len()]
    }

    /// Makes the simulated user take the first page of the next freed range, or free the page that it took.
    pub(crate) fn take_freed(&mut self, take: bool) {
        self.thief = if take { Thief::Waits } else { Thief::None };
    }

    /// Lets the simulated user take addresses that were just freed.
    fn freed(&mut self, at: usize) {
        if let Thief::Waits = self.thief
            && let Some(page) = Pages::reserve_at(at, PAGE)
        {
            trace!("a simulated other user takes {at:#x}");
            self.thief = Thief::Has(page);
        }
    }

    /// Returns the memory or fault of an agent at an address; `None` if the address is not reserved.
    pub(crate) fn step(&self, agent: usize, at: usize, need: Need) -> Option<Result<Part, Fault>> {
        holding(&self.reservations, at, Reservation::size)?;
        let mapped = holding(&self.mappings, at, |mapping| mapping.size);
        let Some((base, mapping)) = mapped else {
            return Some(Err(Fault { at, why: "Page not present: reserved, and not mapped" }));
        };
        let have = mapping.access[agent];
        let needed = if need == Need::Write { permission::WRITE } else { permission::READ };
        if have & needed == 0 {
            let why = match have {
                permission::NONE => "Page not present: mapped, and this agent has no access",
                permission::READ => "Write access to a read-only page",
                _ => "Read access to a write-only page",
            };
            return Some(Err(Fault { at, why }));
        }
        let memory = self.physical.get(&mapping.handle)?;
        let offset = at - base;
        let found = memory.pages.pointer().wrapping_add(offset);
        Some(Ok(Part { at: found, size: mapping.size - offset }))
    }

    /// Describes an address, if it is reserved.
    pub(crate) fn place(&self, at: usize) -> Option<ReservedRange> {
        if let Some((base, mapping)) = holding(&self.mappings, at, |mapping| mapping.size) {
            let owner = self.physical.get(&mapping.handle)?.agent;
            let with_access = (0..AGENTS).filter(|agent| mapping.access[*agent] != permission::NONE);
            let agents = with_access.fold(0, |bits, agent| bits | agent::bit(agent));
            return Some(ReservedRange { base, size: mapping.size, owner: Some(owner), agents });
        }
        let (base, reservation) = holding(&self.reservations, at, Reservation::size)?;
        Some(ReservedRange { base, size: reservation.size(), owner: None, agents: 0 })
    }

    /// Returns the first address of the reservation that contains a whole range.
    fn reserved_around(&self, at: usize, size: usize) -> Option<usize> {
        let (base, reservation) = holding(&self.reservations, at, Reservation::size)?;
        (at.checked_add(size)? <= base + reservation.size()).then_some(base)
    }

    /// Returns the first addresses of the consecutive mappings from `at` on that cover `size` bytes, and the end of the last
    /// one.
    fn run(&self, at: usize, size: usize) -> Option<(Vec<usize>, usize)> {
        let end = at.checked_add(size)?;
        let (mut next, mut starts) = (at, Vec::new());
        while next < end {
            starts.push(next);
            next += self.mappings.get(&next)?.size;
        }
        Some((starts, next))
    }
}
