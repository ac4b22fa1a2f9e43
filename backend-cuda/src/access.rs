//! Access rights of devices and the CPU: `cuMemSetAccess`, `cuMemGetAccess`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::{ACCESS_NONE, ACCESS_READ, ACCESS_READ_WRITE, MemAccessDesc};
use crate::host;
use crate::memory_types::device_location;
use crate::reservation::CudaReservation;
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, Error, Grant, Operation, Result};

/// The number of grants that one call passes from the stack, enough for a machine with eight devices.
const FEW: usize = 8;

impl CudaReservation {
    /// Sets the access of devices and the CPU to whole mappings.
    ///
    /// # Safety
    ///
    /// As [`Reservation::set_access`](gpu_vmm_core::Reservation::set_access).
    pub(crate) unsafe fn grant(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        const OPERATION: Operation = Operation::SetAccess;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, length);
        // The CPU can be granted access to host memory only.
        if let Some(place) = grants.iter().position(|grant| grant.device.is_host()) {
            // SAFETY: the caller upholds the same contract.
            return unsafe {
                self.grant(offset, length, &grants[..place])
                    .and_then(|()| self.grant(offset, length, &grants[place + 1..]))
                    .and_then(|()| self.grant_to_host(offset, length, grants[place].access))
            };
        }
        for few in grants.chunks(FEW) {
            let mut descs = [describe(few[0]); FEW];
            for (desc, grant) in descs.iter_mut().zip(few) {
                *desc = describe(*grant);
            }
            // SAFETY: the part is whole mappings and the devices exist and can reach them, by the caller's promise; the pointer is
            // valid for one descriptor per grant, and a chunk has at most `FEW` grants.
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

    /// Sets the CPU's access to whole mappings.
    ///
    /// # Safety
    ///
    /// As [`Reservation::set_access`](gpu_vmm_core::Reservation::set_access).
    #[cold]
    unsafe fn grant_to_host(&mut self, offset: Bytes, length: Bytes, access: Access) -> Result<()> {
        const OPERATION: Operation = Operation::SetAccess;
        if !self.host.cover(offset, length) {
            return Err(host::no_access(OPERATION));
        }
        let part = self.part(offset, length);
        let desc = MemAccessDesc { location: host::CPU, flags: flags(access) };
        // SAFETY: the part is whole mappings of host memory, by the caller's promise and by the offsets recorded when they were
        // mapped; the pointer is valid for one descriptor.
        let result = unsafe {
            (self.backend.functions().mem_set_access)(part.base.0, part.size.0 as usize, &raw const desc, 1)
        };
        self.backend.check_memory_at(OPERATION, "cuMemSetAccess", result, DeviceId::HOST, part)
    }

    /// Returns the access of a device or the CPU to the mapping at an offset.
    ///
    /// # Safety
    ///
    /// As [`Reservation::access`](gpu_vmm_core::Reservation::access).
    pub(crate) unsafe fn granted(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        const OPERATION: Operation = Operation::QueryAccess;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, Bytes::ZERO);
        let location = match device.is_host() {
            false => device_location(device),
            true if self.host.has(offset) => host::CPU,
            // Device memory, to which the CPU never has access.
            true => return Ok(Access::None),
        };
        let mut flags = 0;
        // SAFETY: both pointers are valid for their types; memory is mapped there and the device exists, by the caller's promise.
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
                Detail::DriverContractViolated { what: format!("it returned the access {flags:#x}") },
            )),
        }
    }
}

/// `CUmemAccess_flags`.
const fn flags(access: Access) -> u32 {
    match access {
        Access::None => ACCESS_NONE,
        Access::Read => ACCESS_READ,
        Access::ReadWrite => ACCESS_READ_WRITE,
    }
}

/// Returns the descriptor of one grant for `cuMemSetAccess`.
fn describe(grant: Grant) -> MemAccessDesc {
    MemAccessDesc { location: device_location(grant.device), flags: flags(grant.access) }
}
