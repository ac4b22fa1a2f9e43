//! Memory as a descriptor for other APIs: on hardware a dma-buf, here a memfd, like the descriptors of [`share`](crate::vmem::share).
//!
//! Rules: `hsa_amd_portable_export_dmabuf` in `hsa_ext_amd.h`: the whole range must be in one allocation of a GPU; a failure
//! writes nothing. `hipMemGetHandleForAddressRange` calls it for memory of `hipMalloc`. This ROCr function does not know
//! mappings of the virtual memory API; HIP exports their handles instead.
#![allow(unsafe_code)] // exported to C

use super::allocation::{Allocation, Origin};
use super::pages::Pages;
use super::{State, holding, state};
use crate::abi::Status;
use crate::vmem::{descriptor, physical};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};

impl State {
    /// Returns a descriptor of the allocation at an address, and the address's offset in it.
    fn export(&mut self, at: usize, size: usize) -> Result<(OwnedFd, usize), Status> {
        let base = holding(&self.allocations, at, |allocation| allocation.size).map(|(base, _)| base);
        let found = base.and_then(|base| Some((base, self.allocations.get_mut(&base)?)));
        let Some((base, allocation)) = found else { return Err(Status::INVALID_ALLOCATION) };
        if size > base + allocation.size - at {
            return Err(Status::INVALID_ALLOCATION);
        }
        if allocation.owner == 0 {
            return Err(Status::INVALID_AGENT);
        }
        Ok((allocation.descriptor()?, at - base))
    }
}

impl Allocation {
    /// Returns a new descriptor of a GPU's memory. The first one moves the memory into a file, at the same address.
    fn descriptor(&mut self) -> Result<OwnedFd, Status> {
        let Origin::Pool { pages, file } = &mut self.origin else { return Err(Status::INVALID_ALLOCATION) };
        if file.is_none() {
            let new =
                physical::file(self.owner, self.kind, pages.size()).map_err(|_| Status::OUT_OF_RESOURCES)?;
            let copy = Pages::of_file(new.as_fd(), pages.size()).map_err(|_| Status::OUT_OF_RESOURCES)?;
            // SAFETY: both are owned here and have the same size; the caller's lock excludes simulated GPUs.
            unsafe { std::ptr::copy_nonoverlapping(pages.pointer(), copy.pointer(), pages.size()) };
            pages.become_file(new.as_fd()).map_err(|_| Status::OUT_OF_RESOURCES)?;
            *file = Some(new);
        }
        let file = file.as_ref().ok_or(Status::ERROR)?;
        descriptor::duplicate(file.as_fd())
    }
}

fn export(
    at: usize,
    size: usize,
    out: Option<&mut MaybeUninit<i32>>,
    offset: Option<&mut MaybeUninit<u64>>,
) -> Status {
    let (Some(out), Some(offset)) = (out, offset) else { return Status::INVALID_ARGUMENT };
    if at == 0 || size == 0 {
        return Status::INVALID_ARGUMENT;
    }
    match state().export(at, size) {
        Ok((file, within)) => {
            let file = file.into_raw_fd();
            trace!("portable_export_dmabuf({at:#x}, {size:#x}) = fd {file}, offset {within:#x}");
            out.write(file);
            offset.write(within as u64);
            Status::SUCCESS
        }
        Err(status) => {
            trace!("portable_export_dmabuf({at:#x}, {size:#x}): {:#x}", status.0);
            status
        }
    }
}

hsa! {
    /// Returns a new descriptor of the memory that contains a range.
    pub unsafe fn hsa_amd_portable_export_dmabuf(
        at: usize,
        size: usize,
        out: Option<&mut MaybeUninit<i32>>,
        offset: Option<&mut MaybeUninit<u64>>,
    ) {
        export(at, size, out, offset)
    }

    /// Does the same; the way in which a device reaches the memory (flag 1: over PCIe) makes no difference here.
    pub unsafe fn hsa_amd_portable_export_dmabuf_v2(
        at: usize,
        size: usize,
        out: Option<&mut MaybeUninit<i32>>,
        offset: Option<&mut MaybeUninit<u64>>,
        flags: u64,
    ) {
        if flags > 1 { Status::INVALID_ARGUMENT } else { export(at, size, out, offset) }
    }

    /// Closes such a descriptor.
    pub unsafe fn hsa_amd_portable_close_dmabuf(file: i32) {
        // SAFETY: the call takes no pointer.
        if unsafe { libc::fcntl(file, libc::F_GETFD) } < 0 {
            return Status::RESOURCE_FREE;
        }
        // SAFETY: open, and the caller passes its ownership.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
        Status::SUCCESS
    }
}
