//! Physical memory of an agent, identified by a handle.
//!
//! Rules: `hsa_amd_vmem_handle_create`, `_release`, `_retain_alloc_handle` and `_get_alloc_properties_from_handle` in
//! `hsa_ext_amd.h`: memory is taken at once, in granules of its pool, and freed when every reference is released and no
//! mapping is left.
#![allow(unsafe_code)] // exported to C

use super::Vmem;
use super::descriptor::KeptDescriptor;
use crate::abi::{Pool, Status, VmemHandle};
use crate::memory::pages::Pages;
use crate::memory::{State, state};
use crate::pool::{self, Kind};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// The beginning of the names of files for memory.
pub(super) const FILE_NAME: &str = "hsa-sim";

/// A physical memory object.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(super) file: OwnedFd,
    /// The descriptor of every export, with the setting `KEEPS_DESCRIPTORS`; imported memory has none.
    pub(super) kept: Option<KeptDescriptor>,
    /// The simulator's own mapping.
    pub(super) pages: Pages,
    pub(super) agent: usize,
    pub(super) kind: Kind,
    pub(super) pinned: bool,
    /// Whether it was created here, so that it counts against the agent's memory; imports count in their own process.
    pub(super) charged: bool,
    pub(super) references: usize,
    /// The number of mappings, including removed ones that still keep the memory.
    pub(super) mappings: usize,
}

/// Creates a file for memory of an agent.
pub(crate) fn file(agent: usize, kind: Kind, size: usize) -> Result<OwnedFd, Errno> {
    let file = memfd_create(format!("{FILE_NAME}-{agent}-{}", kind as u8), MemfdFlags::CLOEXEC)?;
    ftruncate(&file, size as u64)?;
    Ok(file)
}

impl Vmem {
    /// Returns a number for a handle. ROCr's handles are addresses that no memory can have, so these are far apart and never
    /// reused.
    pub(super) fn new_handle(&mut self, size: usize) -> VmemHandle {
        const FIRST: u64 = 1 << 47;
        const STEP: u64 = 2 << 20;
        let handle = VmemHandle(FIRST + self.handles);
        self.handles += (size as u64).next_multiple_of(STEP) + STEP;
        handle
    }
}

impl State {
    /// Frees memory that is not in use any more.
    pub(super) fn drop_unused(&mut self, handle: VmemHandle) {
        let unused = |memory: &Physical| memory.references == 0 && memory.mappings == 0;
        if !self.vmem.physical.get(&handle).is_some_and(unused) {
            return;
        }
        if let Some(memory) = self.vmem.physical.remove(&handle)
            && memory.charged
        {
            self.discharge(memory.agent, memory.pages.size());
        }
        trace!("vmem handle {:#x}: freed", handle.0);
    }

    fn create(&mut self, agent: usize, kind: Kind, size: usize, pinned: bool) -> Result<VmemHandle, Status> {
        if !self.charge(agent, size) {
            return Err(Status::OUT_OF_RESOURCES);
        }
        let made = file(agent, kind, size).and_then(|file| Ok((Pages::of_file(file.as_fd(), size)?, file)));
        let made = made.map_err(|_| Status::OUT_OF_RESOURCES);
        let made = made.and_then(|(pages, file)| Ok((KeptDescriptor::as_set(file.as_fd())?, pages, file)));
        let (kept, pages, file) = match made {
            Ok(made) => made,
            Err(status) => {
                self.discharge(agent, size);
                return Err(status);
            }
        };
        if agent > 0 {
            pages.fill_with_junk();
        }
        let handle = self.vmem.new_handle(size);
        let memory =
            Physical { file, kept, pages, agent, kind, pinned, charged: true, references: 1, mappings: 0 };
        self.vmem.physical.insert(handle, memory);
        Ok(handle)
    }
}

hsa! {
    /// Creates memory of a pool.
    pub unsafe fn hsa_amd_vmem_handle_create(
        pool: Pool,
        size: usize,
        memory_type: u32,
        flags: u64,
        out: Option<&mut MaybeUninit<VmemHandle>>,
    ) {
        let Some((agent, kind)) = pool::parts(pool) else { return Status::INVALID_MEMORY_POOL };
        if kind == Kind::Group {
            return Status::INVALID_ALLOCATION;
        }
        let Some(out) = out.filter(|_| size > 0 && size.is_multiple_of(pool::granule(agent))) else {
            trace!("vmem_handle_create({size:#x}): not a multiple of the granule, or nowhere to write");
            return Status::INVALID_ARGUMENT;
        };
        match state().create(agent, kind, size, memory_type == 1) {
            Ok(handle) => {
                trace!("vmem_handle_create(agent {agent} {kind:?}, {size:#x}, flags {flags:#x}) = {:#x}", handle.0);
                out.write(handle);
                Status::SUCCESS
            }
            Err(status) => {
                trace!("vmem_handle_create(agent {agent}, {size:#x}): {:#x}", status.0);
                status
            }
        }
    }

    /// Releases a reference.
    pub unsafe fn hsa_amd_vmem_handle_release(handle: VmemHandle) {
        let mut state = state();
        trace!("vmem_handle_release({:#x})", handle.0);
        match state.vmem.physical.get_mut(&handle) {
            Some(memory) if memory.references > 0 => memory.references -= 1,
            _ => return Status::INVALID_ALLOCATION,
        }
        state.drop_unused(handle);
        Status::SUCCESS
    }

    /// Returns the handle of the mapping that begins at an address, with a reference.
    pub unsafe fn hsa_amd_vmem_retain_alloc_handle(out: Option<&mut MaybeUninit<VmemHandle>>, at: usize) {
        let Some(out) = out else { return Status::INVALID_ARGUMENT };
        let mut state = state();
        let Some(handle) = state.vmem.mappings.get(&at).map(|mapping| mapping.handle) else {
            return Status::INVALID_ALLOCATION;
        };
        let Some(memory) = state.vmem.physical.get_mut(&handle) else { return Status::ERROR };
        memory.references += 1;
        out.write(handle);
        Status::SUCCESS
    }

    /// Returns the pool of the memory, and whether it is pinned.
    pub unsafe fn hsa_amd_vmem_get_alloc_properties_from_handle(
        handle: VmemHandle,
        pool: Option<&mut MaybeUninit<Pool>>,
        memory_type: Option<&mut MaybeUninit<u32>>,
    ) {
        let (Some(pool), Some(memory_type)) = (pool, memory_type) else { return Status::INVALID_ARGUMENT };
        let state = state();
        let Some(memory) = state.vmem.physical.get(&handle) else { return Status::INVALID_ALLOCATION };
        pool.write(pool::handle(memory.agent, memory.kind));
        memory_type.write(u32::from(memory.pinned));
        Status::SUCCESS
    }
}
