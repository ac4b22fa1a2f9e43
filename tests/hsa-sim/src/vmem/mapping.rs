//! Maps physical memory at reserved addresses.
//!
//! Rules: `hsa_amd_vmem_map` and `hsa_amd_vmem_unmap` in `hsa_ext_amd.h`. From ROCr: the offset into the memory is accepted
//! and ignored; less than the whole memory may be mapped; a mapping starts without any access. Unmapping requires whole
//! mappings, of which several may follow each other; `stays` has the memory that is kept then.
#![allow(unsafe_code)] // exported to C

use super::stays::Stay;
use crate::abi::{Status, VmemHandle, permission};
use crate::memory::{PAGE, State, holding, state};
use crate::settings::{AGENTS, settings};

/// A mapping; its first address is its key.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(super) size: usize,
    pub(super) handle: VmemHandle,
    /// The first address of its reservation.
    pub(super) reservation: usize,
    /// The access of each agent.
    pub(super) access: [u32; AGENTS],
    /// Whether the CPU's access was ever set, to any value.
    pub(super) shown: bool,
}

impl State {
    fn map(&mut self, at: usize, size: usize, handle: VmemHandle) -> Result<(), Status> {
        let vmem = &mut self.vmem;
        if size == 0 || !at.is_multiple_of(PAGE) || !size.is_multiple_of(PAGE) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let reservation = vmem.reserved_around(at, size).ok_or(Status::INVALID_ARGUMENT)?;
        let in_the_way = holding(&vmem.mappings, at, |mapping| mapping.size).is_some()
            || vmem.mappings.range(at..at + size).next().is_some();
        let memory =
            vmem.physical.get_mut(&handle).filter(|memory| !in_the_way && size <= memory.pages.size());
        let (Some(memory), Some(around)) = (memory, vmem.reservations.get_mut(&reservation)) else {
            return Err(Status::INVALID_ARGUMENT);
        };
        memory.mappings += 1;
        around.mappings += 1;
        let access = [permission::NONE; AGENTS];
        vmem.mappings.insert(at, Mapping { size, handle, reservation, access, shown: false });
        self.cover(reservation, at, size);
        Ok(())
    }

    fn unmap(&mut self, at: usize, size: usize) -> Result<(), Status> {
        if !self.vmem.mappings.contains_key(&at) {
            return Err(Status::INVALID_ALLOCATION);
        }
        let run = self.vmem.run(at, size).filter(|(_, end)| size > 0 && *end == at + size);
        let (starts, _) = run.ok_or(Status::INVALID_ARGUMENT)?;
        for start in starts {
            let Some(mapping) = self.vmem.mappings.remove(&start) else { continue };
            if let Some(around) = self.vmem.reservations.get_mut(&mapping.reservation) {
                around.mappings -= 1;
                let offset = start - mapping.reservation;
                // ROCr unmaps the CPU's pages and does not replace them.
                let hidden = if mapping.shown {
                    around.pages.leave(offset, mapping.size)
                } else {
                    around.pages.show(offset, mapping.size, None)
                };
                hidden.map_err(|_| Status::ERROR)?;
                if settings().keeps_memory && !mapping.shown {
                    around.stays.push(Stay { at: start, size: mapping.size, handle: mapping.handle });
                    continue;
                }
            }
            self.let_go(mapping.handle);
        }
        Ok(())
    }
}

hsa! {
    /// Maps the beginning of a memory object.
    pub unsafe fn hsa_amd_vmem_map(
        at: usize,
        size: usize,
        offset: usize,
        handle: VmemHandle,
        flags: u64,
    ) {
        let status = state().map(at, size, handle).err().unwrap_or(Status::SUCCESS);
        trace!(
            "vmem_map({at:#x}, {size:#x}, offset {offset:#x}, {:#x}, flags {flags:#x}): {:#x}",
            handle.0, status.0
        );
        status
    }

    /// Unmaps whole mappings.
    pub unsafe fn hsa_amd_vmem_unmap(at: usize, size: usize) {
        let status = state().unmap(at, size).err().unwrap_or(Status::SUCCESS);
        trace!("vmem_unmap({at:#x}, {size:#x}): {:#x}", status.0);
        status
    }
}
