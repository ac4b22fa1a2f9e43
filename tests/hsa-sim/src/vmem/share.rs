//! Memory as file descriptors, for this process and others. On hardware they are dma-bufs, here memfds whose names identify
//! the agent; only this simulator can import them.
//!
//! Rules: `hsa_amd_vmem_export_shareable_handle` and `hsa_amd_vmem_import_shareable_handle` in `hsa_ext_amd.h`. The importer
//! keeps its descriptor; a descriptor of anything but a GPU's memory is refused as incompatible. With the setting
//! `KEEPS_DESCRIPTORS` an export is as in ROCr 7.14 (`descriptor`).
#![allow(unsafe_code)] // exported to C

use super::descriptor::duplicate;
use super::physical::{FILE_NAME, Physical};
use crate::abi::{Status, VmemHandle};
use crate::agent;
use crate::memory::pages::Pages;
use crate::memory::state;
use crate::pool::Kind;
use crate::settings::settings;
use rustix::fs::fstat;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};

/// Returns the agent whose memory a descriptor is.
fn owner(file: i32) -> Option<(usize, Kind)> {
    let name = std::fs::read_link(format!("/proc/self/fd/{file}")).ok()?;
    // "/memfd:hsa-sim-1-2 (deleted)"
    let name = name.to_str()?.strip_prefix("/memfd:")?.strip_prefix(FILE_NAME)?.strip_prefix('-')?;
    let (agent, kind) = name.split(' ').next()?.split_once('-')?;
    let kind = [Kind::Fine, Kind::Kernarg, Kind::Coarse]
        .into_iter()
        .find(|known| kind.parse().is_ok_and(|number: u8| number == *known as u8))?;
    Some((agent.parse().ok()?, kind))
}

fn import(file: BorrowedFd<'_>, agent: usize, kind: Kind) -> Result<Physical, Status> {
    let size = fstat(file).map_err(|_| Status::INVALID_ALLOCATION)?.st_size as usize;
    let file = duplicate(file)?;
    let pages = Pages::of_file(file.as_fd(), size).map_err(|_| Status::OUT_OF_RESOURCES)?;
    let (pinned, charged) = (true, false);
    Ok(Physical { file, kept: None, pages, agent, kind, pinned, charged, references: 1, mappings: 0 })
}

impl Physical {
    /// Returns whether the memory can be imported for another GPU, which ROCr of 7.14 does from the descriptor that it keeps.
    pub(super) fn reaches_peers(&self) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.is_of(self.file.as_fd()))
    }

    /// Returns the number of a descriptor for a caller.
    fn export(&self) -> Result<RawFd, Status> {
        match &self.kept {
            Some(kept) => Ok(kept.number()),
            None if settings().keeps_descriptors => Err(Status::INVALID_ARGUMENT),
            None => duplicate(self.file.as_fd()).map(IntoRawFd::into_raw_fd),
        }
    }
}

hsa! {
    /// Returns a descriptor of the memory behind a handle.
    pub unsafe fn hsa_amd_vmem_export_shareable_handle(
        out: Option<&mut MaybeUninit<i32>>,
        handle: VmemHandle,
        _flags: u64,
    ) {
        let Some(out) = out else { return Status::INVALID_ARGUMENT };
        out.write(-1);
        let state = state();
        let Some(memory) = state.vmem.physical.get(&handle) else { return Status::INVALID_ALLOCATION };
        match memory.export() {
            Ok(file) => {
                trace!("vmem_export_shareable_handle({:#x}) = fd {file}", handle.0);
                out.write(file);
                Status::SUCCESS
            }
            Err(status) => status,
        }
    }

    /// Returns a new handle of the memory behind a descriptor.
    pub unsafe fn hsa_amd_vmem_import_shareable_handle(file: i32, out: Option<&mut MaybeUninit<VmemHandle>>) {
        let Some(out) = out else { return Status::INVALID_ARGUMENT };
        let Some((agent, kind)) = owner(file) else {
            trace!("vmem_import_shareable_handle(fd {file}): not memory of this simulator");
            return Status::INCOMPATIBLE_ARGUMENTS;
        };
        if !agent::all().contains(&agent) {
            return Status::INVALID_ALLOCATION;
        }
        // SAFETY: the descriptor is open, since its name was read, and the caller keeps it so during the call.
        let memory = match import(unsafe { BorrowedFd::borrow_raw(file) }, agent, kind) {
            Ok(memory) => memory,
            Err(status) => return status,
        };
        let mut state = state();
        let size = memory.pages.size();
        let handle = state.vmem.new_handle(size);
        state.vmem.physical.insert(handle, memory);
        trace!("vmem_import_shareable_handle: {size:#x} bytes of agent {agent} = {:#x}", handle.0);
        out.write(handle);
        Status::SUCCESS
    }
}
