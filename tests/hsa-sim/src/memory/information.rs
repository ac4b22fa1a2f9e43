//! Queries of addresses: `hsa_amd_pointer_info`, by which HIP distinguishes its memory from a program's own.
#![allow(unsafe_code)] // exported to C

use super::allocation::Origin;
use super::{State, holding, state};
use crate::abi::{Agent, PointerInfo, Status, pointer_type};
use crate::agent;
use crate::pool::{self, Kind};
use std::mem::MaybeUninit;

impl State {
    /// Returns the information, and a bit for each agent that may reach the memory.
    fn information(&self, at: usize) -> (PointerInfo, u32) {
        if let Some((base, found)) = holding(&self.allocations, at, |allocation| allocation.size) {
            let kind =
                if let Origin::Locked = found.origin { pointer_type::LOCKED } else { pointer_type::HSA };
            let information = PointerInfo {
                kind,
                agent_base: base,
                host_base: base,
                bytes: found.size,
                owner: agent::handle(found.owner),
                global_flags: pool::flags(found.kind),
                registered: true,
                ..PointerInfo::default()
            };
            return (information, found.agents);
        }
        let Some(place) = self.vmem.place(at) else { return (PointerInfo::default(), 0) };
        let information = PointerInfo {
            kind: if place.owner.is_some() { pointer_type::VMEM } else { pointer_type::RESERVED },
            agent_base: place.base,
            host_base: place.base,
            bytes: place.size,
            owner: place.owner.map(agent::handle).unwrap_or_default(),
            global_flags: pool::flags(Kind::Coarse),
            registered: true,
            ..PointerInfo::default()
        };
        (information, place.agents)
    }
}

hsa! {
    /// Fills the structure up to the caller's size, and lists the agents with access if the caller wants them.
    pub unsafe fn hsa_amd_pointer_info(
        at: usize,
        out: *mut PointerInfo,
        allocate: Option<extern "C" fn(usize) -> *mut Agent>,
        count: Option<&mut MaybeUninit<u32>>,
        agents: Option<&mut MaybeUninit<*mut Agent>>,
    ) {
        if at == 0 || out.is_null() {
            return Status::INVALID_ARGUMENT;
        }
        let (mut information, bits) = state().information(at);
        // SAFETY: not null, so the first field is there, which the caller has set.
        information.size = unsafe { (*out).size }.min(size_of::<PointerInfo>() as u32);
        // SAFETY: the structure has the size in its first field.
        unsafe {
            let from = (&raw const information).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, out.cast(), information.size as usize);
        }
        let (Some(allocate), Some(count), Some(agents)) = (allocate, count, agents) else {
            return Status::SUCCESS;
        };
        let with_access: Vec<Agent> =
            agent::all().filter(|agent| bits & agent::bit(*agent) != 0).map(agent::handle).collect();
        let room = allocate(size_of_val(with_access.as_slice()));
        if room.is_null() {
            return Status::OUT_OF_RESOURCES;
        }
        // SAFETY: the caller's function returned memory of this size.
        unsafe { std::ptr::copy_nonoverlapping(with_access.as_ptr(), room, with_access.len()) };
        count.write(with_access.len() as u32);
        agents.write(room);
        Status::SUCCESS
    }
}
