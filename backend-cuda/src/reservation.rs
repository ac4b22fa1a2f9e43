//! Addresses and what is mapped there: `cuMemAddressReserve`, `cuMemMap`, `cuMemSetAccess`, `cuMemUnmap`.
//!
//! A call goes straight to the driver, with no lock and no allocation before it.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::{ACCESS_NONE, ACCESS_READ, ACCESS_READ_WRITE, MemAccessDesc};
use crate::host::{self, HostMappings};
use crate::memory_types::{device_location, owner};
use crate::{CudaBackend, CudaHandle};
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Bytes, Detail, DeviceId, Error, Grant, Handle, Operation,
    Reservation, Result,
};

/// A range of addresses, which all devices and the host have in common.
///
/// Dropping it gives the addresses back. In a forked child dropping does nothing.
#[derive(Debug)]
pub struct CudaReservation {
    pub(crate) backend: CudaBackend,
    range: AddressRange,
    pub(crate) host: HostMappings,
}

/// How many grants one call passes, from the stack: all that a machine of eight devices has.
const FEW: usize = 8;

impl CudaReservation {
    /// Reserves addresses.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::reserve`](gpu_vmm_core::MemoryCalls::reserve).
    pub(crate) unsafe fn new(
        backend: &CudaBackend,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self> {
        const OPERATION: Operation = Operation::Reserve;
        backend.here(OPERATION)?;
        let hint = hint.unwrap_or(Address(0));
        let mut base = 0;
        // SAFETY: the pointer is good for one address; the numbers are right by the caller's promise.
        let result = unsafe {
            (backend.functions().mem_address_reserve)(
                &raw mut base,
                size.0 as usize,
                alignment.bytes().0 as usize,
                hint.0,
                0,
            )
        };
        backend.check(OPERATION, "cuMemAddressReserve", result, || {
            format!("{size} of addresses, aligned to {}, hint {hint}", alignment.bytes())
        })?;
        let range = AddressRange { base: Address(base), size };
        let reservation = Self { backend: backend.clone(), range, host: HostMappings::default() };
        if reservation.range.base.is_aligned_to(alignment.bytes()) {
            return Ok(reservation);
        }
        let what = format!(
            "it gave the address {base:#x} where an alignment of {} was asked for",
            alignment.bytes()
        );
        Err(Error::new(OPERATION, Detail::DriverContractViolated { what }))
    }

    pub(crate) fn part(&self, offset: Bytes, size: Bytes) -> AddressRange {
        AddressRange { base: self.range.base + offset, size }
    }
}

// SAFETY: the range is reserved, and freed by nothing but dropping; what fails is told and leaves what was.
unsafe impl Reservation for CudaReservation {
    type Handle = CudaHandle;

    fn range(&self) -> AddressRange {
        self.range
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &CudaHandle) -> Result<()> {
        const OPERATION: Operation = Operation::Map;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, handle.size());
        // SAFETY: the part lies in the reservation and is free, and the handle is the driver's, by the caller's
        // promise; the offset in the handle must be zero and is.
        let result = unsafe {
            (self.backend.functions().mem_map)(part.base.0, part.size.0 as usize, 0, handle.raw, 0)
        };
        let owner = owner(&handle.properties());
        self.backend.check_memory_at(OPERATION, "cuMemMap", result, owner, part)?;
        self.host.mapped(offset, handle);
        Ok(())
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::Unmap;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, length);
        // SAFETY: the part is whole mappings that nothing uses any more, by the caller's promise.
        let result = unsafe { (self.backend.functions().mem_unmap)(part.base.0, part.size.0 as usize) };
        self.backend.check(OPERATION, "cuMemUnmap", result, || part.to_string())?;
        self.host.unmapped(offset, length);
        Ok(())
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        const OPERATION: Operation = Operation::SetAccess;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, length);
        // The CPU is let at memory of the host alone.
        if let Some(place) = grants.iter().position(|grant| grant.device.is_host()) {
            // SAFETY: the promise is the same.
            return unsafe {
                self.set_access(offset, length, &grants[..place])
                    .and_then(|()| self.set_access(offset, length, &grants[place + 1..]))
                    .and_then(|()| self.set_host_access(offset, length, grants[place].access))
            };
        }
        for few in grants.chunks(FEW) {
            let mut descs = [describe(few[0]); FEW];
            for (desc, grant) in descs.iter_mut().zip(few) {
                *desc = describe(*grant);
            }
            // SAFETY: the part is whole mappings and the devices exist and can reach them, by the caller's promise; the
            // pointer is good for as many descriptors as there are grants, which are no more than the array has.
            let result = unsafe {
                (self.backend.functions().mem_set_access)(
                    part.base.0,
                    part.size.0 as usize,
                    descs.as_ptr(),
                    few.len(),
                )
            };
            self.backend.check_memory_at(OPERATION, "cuMemSetAccess", result, few[0].device, part)?;
        }
        Ok(())
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        const OPERATION: Operation = Operation::QueryAccess;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, Bytes::ZERO);
        let location = match device.is_host() {
            false => device_location(device),
            true if self.host.has(offset) => host::CPU,
            // A device's memory, at which the CPU is never let.
            true => return Ok(Access::None),
        };
        let mut flags = 0;
        // SAFETY: both pointers are good for their types; something is mapped there and the device exists, by the
        // caller's promise.
        let result = unsafe {
            (self.backend.functions().mem_get_access)(&raw mut flags, &raw const location, part.base.0)
        };
        self.backend.check(OPERATION, "cuMemGetAccess", result, || format!("{device} at {}", part.base))?;
        match u32::try_from(flags) {
            Ok(ACCESS_NONE) => Ok(Access::None),
            Ok(ACCESS_READ) => Ok(Access::Read),
            Ok(ACCESS_READ_WRITE) => Ok(Access::ReadWrite),
            _ => Err(Error::new(
                OPERATION,
                Detail::DriverContractViolated { what: format!("it gave the access {flags:#x}") },
            )),
        }
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        Ok(())
    }

    fn regain(&mut self) -> Result<()> {
        Ok(())
    }

    #[cfg(unix)]
    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<std::os::fd::OwnedFd> {
        self.export_dma_buf(owner, self.part(offset, length))
    }
}

/// `CUmemAccess_flags`.
pub(crate) const fn flags(access: Access) -> u32 {
    match access {
        Access::None => ACCESS_NONE,
        Access::Read => ACCESS_READ,
        Access::ReadWrite => ACCESS_READ_WRITE,
    }
}

/// What `cuMemSetAccess` is told of one grant.
fn describe(grant: Grant) -> MemAccessDesc {
    MemAccessDesc { location: device_location(grant.device), flags: flags(grant.access) }
}

impl Drop for CudaReservation {
    fn drop(&mut self) {
        if self.backend.here(Operation::FreeReservation).is_err() {
            return;
        }
        let AddressRange { base, size } = self.range;
        // SAFETY: base and size are those of the one call that reserved, and this is the one place that frees.
        let result = unsafe { (self.backend.functions().mem_address_free)(base.0, size.0 as usize) };
        self.backend.log(Operation::FreeReservation, "cuMemAddressFree", result, || self.range.to_string());
    }
}
