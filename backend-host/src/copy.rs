//! Copies and fills by the CPU on behalf of a device.
//!
//! The table of mappings is checked first for that device's access. So a copy that no GPU driver would perform is an error and not
//! a fault: `EFAULT` if an address is not mapped, `EACCES` if the device lacks access.
#![allow(unsafe_code)]

use crate::host::Host;
use crate::mappings::Refusal;
use gpu_vmm_core::extend::system::refusal;
use gpu_vmm_core::{Access, Address, AddressRange, Bytes, Detail, DeviceId, Error, Operation, Result};
use rustix::io::Errno;
use std::ptr;

impl Host {
    /// Checks that `device` exists and has `need` access to the whole range. If so, the pages are mapped and allow it.
    pub(crate) fn check_access(
        &self,
        operation: Operation,
        device: DeviceId,
        at: Address,
        length: Bytes,
        need: Access,
    ) -> Result<()> {
        self.device_memory(operation, device)?;
        self.queues.check_alive(operation, device)?;
        let range = AddressRange { base: at, size: length };
        if at.checked_add(length).is_none() {
            return Err(Error::new(operation, Detail::Overflow { base: at.0, length: length.0 }));
        }
        let (errno, why) = match self.mappings.check(range, device, need) {
            Ok(()) => return Ok(()),
            Err(Refusal::NotMapped { at }) => (Errno::FAULT, format!("nothing is mapped at {at}")),
            Err(Refusal::Denied { at, have }) => {
                (Errno::ACCESS, format!("{device} has {have} at {at} and would need {need}"))
            }
        };
        Err(Error::driver(operation, refusal("the host backend", errno, why), range))
    }
}

/// # Safety
///
/// As for `CopyCalls::copy_from_host`.
pub(crate) unsafe fn from_host(host: &Host, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
    host.check_access(Operation::CopyFromHost, device, to, Bytes(from.len() as u64), Access::ReadWrite)?;
    // SAFETY: the pages are mapped for writing, as was checked, and stay so by the caller's contract. A slice of the caller's does
    // not overlap memory that the caller lets a device write at the same time.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    Ok(())
}

/// # Safety
///
/// As for `CopyCalls::copy_to_host`.
pub(crate) unsafe fn to_host(host: &Host, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
    host.check_access(Operation::CopyToHost, device, from, Bytes(to.len() as u64), Access::Read)?;
    // SAFETY: as above, for reading.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr::<u8>(), to.as_mut_ptr(), to.len()) };
    Ok(())
}

/// # Safety
///
/// As for `CopyCalls::copy`.
pub(crate) unsafe fn between(
    host: &Host,
    device: DeviceId,
    to: Address,
    from: Address,
    length: Bytes,
) -> Result<()> {
    host.check_access(Operation::Copy, device, to, length, Access::ReadWrite)?;
    host.check_access(Operation::Copy, device, from, length, Access::Read)?;
    // SAFETY: both sides are mapped with the needed access, as was checked, and stay so by the caller's contract. Two addresses can
    // be the same memory, so this copy allows overlap.
    unsafe { ptr::copy(from.as_ptr::<u8>(), to.as_ptr::<u8>(), length.0 as usize) };
    Ok(())
}

/// # Safety
///
/// As for `CopyCalls::fill`.
pub(crate) unsafe fn fill(
    host: &Host,
    device: DeviceId,
    at: Address,
    length: Bytes,
    value: u8,
) -> Result<()> {
    host.check_access(Operation::Fill, device, at, length, Access::ReadWrite)?;
    // SAFETY: the pages are mapped for writing, as was checked, and stay so by the caller's contract.
    unsafe { ptr::write_bytes(at.as_ptr::<u8>(), value, length.0 as usize) };
    Ok(())
}
