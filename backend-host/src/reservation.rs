//! Address ranges of the process and their mappings.
#![allow(unsafe_code)]

use crate::handle::HostHandle;
use crate::host::Host;
use crate::mappings::{Backing, Mapping};
use crate::memory::Memory;
use crate::{pages, share};
use gpu_vmm_core::extend::system::refusal;
use gpu_vmm_core::{
    Access, AccessMap, AddressRange, Alignment, Bytes, Detail, Error, Grant, Operation, Reservation, Result,
};
use gpu_vmm_core::{Address, DeviceId};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A range of addresses: `mmap` without access and without memory, until handles are mapped in it.
///
/// Every mapping is a whole handle. Wrong ranges are refused with the kernel's `EINVAL`, as a driver does, even though the core has
/// checked them: otherwise a call could replace other mappings of the process.
#[derive(Debug)]
pub struct HostReservation {
    host: Arc<Host>,
    range: AddressRange,
}

impl HostReservation {
    pub(crate) fn new(
        host: &Arc<Host>,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self> {
        Ok(Self { host: Arc::clone(host), range: pages::reserve(size, alignment, hint)? })
    }

    /// Returns the addresses of a part of this reservation; an error if it exceeds the reservation, is empty, or the process was
    /// forked.
    fn part(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<AddressRange> {
        self.host.process.check(operation)?;
        let part = AddressRange { base: self.range.base + offset, size: length };
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.range.size);
        if fits && !length.is_zero() {
            return Ok(part);
        }
        Err(invalid(operation, part, format!("the part is not in the reservation {}", self.range)))
    }

    /// Returns the mappings that fill a part exactly.
    fn mapped(&self, operation: Operation, part: AddressRange) -> Result<Vec<(AddressRange, AccessMap)>> {
        self.host.mappings.whole(part).ok_or_else(|| {
            invalid(operation, part, "the part is not one or several whole mappings".to_owned())
        })
    }
}

/// Returns the error that a driver calls an invalid value.
fn invalid(operation: Operation, part: AddressRange, why: String) -> Error {
    Error::driver(operation, refusal("the host backend", Errno::INVAL, why), part)
}

/// Returns the access that the MMU must allow, the widest of any device.
fn joint(access: AccessMap) -> Access {
    access.grants().map(|grant| grant.access).max().unwrap_or_default()
}

// SAFETY: the range is reserved and freed only by dropping; a failed call returns an error and leaves the mappings as they were.
unsafe impl Reservation for HostReservation {
    type Handle = HostHandle;

    fn range(&self) -> AddressRange {
        self.range
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &HostHandle) -> Result<()> {
        let part = self.part(Operation::Map, offset, handle.memory.size())?;
        if let Some(other) = self.host.mappings.first_in(part) {
            return Err(invalid(Operation::Map, part, format!("something is mapped at {other}")));
        }
        let (file, start) = handle.memory.pages();
        // SAFETY: the part lies in this reservation, nothing is mapped there, and `&mut self` keeps it so.
        unsafe { pages::map(part, file, start) }?;
        let memory: Arc<Memory> = Arc::clone(&handle.memory);
        let kept = Backing::Handle(memory, handle.properties);
        self.host.mappings.insert(part.base, Mapping { size: part.size, access: AccessMap::NONE, kept });
        Ok(())
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        let part = self.part(Operation::Unmap, offset, length)?;
        self.mapped(Operation::Unmap, part)?;
        let _untouched = self.host.mappings.untouched();
        // SAFETY: the part lies in this reservation, and nothing uses it any more by the caller's promise.
        self.host.reserve_mappings.help(|| unsafe { pages::vacate(part) })?;
        drop(self.host.mappings.remove(part));
        Ok(())
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        let part = self.part(Operation::SetAccess, offset, length)?;
        let mut mapped = self.mapped(Operation::SetAccess, part)?;
        for (_, access) in &mut mapped {
            *access = grants.iter().fold(*access, |map, grant| map.with(grant.device, grant.access));
        }
        let _untouched = self.host.mappings.untouched();
        for run in mapped.chunk_by(|(_, one), (_, next)| joint(*one) == joint(*next)) {
            let [(first, access), ..] = run else { continue };
            let range =
                AddressRange { base: first.base, size: run.iter().map(|(range, _)| range.size).sum() };
            // SAFETY: the run is mapped memory of this reservation, and by the caller's promise no device still uses an access that
            // this removes.
            unsafe { pages::protect(range, joint(*access)) }?;
            self.host.mappings.set_access(run);
        }
        Ok(())
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        let part = self.part(Operation::QueryAccess, offset, Bytes(1))?;
        self.host
            .mappings
            .access(part.base, device)
            .ok_or_else(|| invalid(Operation::QueryAccess, part, "nothing is mapped there".to_owned()))
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        Ok(())
    }

    fn regain(&mut self) -> Result<()> {
        Ok(())
    }

    unsafe fn dma_buf(&self, _owner: DeviceId, _offset: Bytes, _length: Bytes) -> Result<OwnedFd> {
        Err(Error::new(Operation::ExportDmaBuf, Detail::Unsupported { reason: share::NO_DMA_BUF.to_owned() }))
    }
}

impl Drop for HostReservation {
    fn drop(&mut self) {
        if !self.host.process.is_this() {
            return;
        }
        let operation = Operation::FreeReservation;
        let result = match self.host.mappings.first_in(self.range) {
            // The memory may still be in use: leaking the addresses is the smaller harm.
            Some(left) => Err(invalid(operation, self.range, format!("{left} is still mapped"))),
            // SAFETY: the range is this reservation's, and no mapping is left in it.
            None => self.host.reserve_mappings.help(|| unsafe { pages::release(operation, self.range) }),
        };
        if let Err(error) = result {
            self.host.log.record(error);
        }
    }
}
