//! Plain allocations: private memory of the process that counts as a device's.
#![allow(unsafe_code)]

use crate::device::page_size;
use crate::host::Host;
use crate::mappings::{Backing, Mapping};
use crate::memory::{charge, or_out_of_memory};
use crate::pages;
use gpu_vmm_core::extend::system::refusal;
use gpu_vmm_core::{
    Access, AccessMap, Address, AddressRange, Bytes, Detail, DeviceId, Error, Operation, Result,
};
use rustix::io::Errno;

impl Host {
    /// Allocates an anonymous mapping, which counts in whole pages against the device's memory. Only `device` has access, as after
    /// `cuMemAlloc`.
    pub(crate) fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        let operation = Operation::Allocate;
        let device_memory = self.device_memory(operation, device)?;
        if size.is_zero() {
            return Err(Error::new(operation, Detail::ZeroSize));
        }
        let size = in_pages(operation, size)?;
        let charge = charge(operation, device_memory, device, size)?;
        let range =
            pages::allocate(size).map_err(|error| or_out_of_memory(error, device_memory, device, size))?;
        let access = AccessMap::NONE.with(device, Access::ReadWrite);
        self.mappings.insert(range.base, Mapping { size: range.size, access, kept: Backing::Plain(charge) });
        Ok(range.base)
    }

    /// # Safety
    ///
    /// No work uses the memory.
    pub(crate) unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        let operation = Operation::Free;
        self.device_memory(operation, device)?;
        let range = AddressRange { base: at, size: in_pages(operation, size)? };
        let _untouched = self.mappings.untouched();
        let Some(plain) = self.mappings.remove_plain(range) else {
            let why = "no plain allocation of this size begins there";
            return Err(Error::driver(operation, refusal("the host backend", Errno::INVAL, why), range));
        };
        // SAFETY: the range is a plain allocation of this backend, which the caller no longer uses.
        let released = unsafe { pages::release(operation, range) };
        if released.is_err() {
            self.mappings.insert(at, plain);
        }
        released
    }
}

/// Rounds up to whole pages, the kernel's unit.
fn in_pages(operation: Operation, size: Bytes) -> Result<Bytes> {
    let page = page_size().0;
    size.0
        .checked_next_multiple_of(page)
        .map(Bytes)
        .ok_or_else(|| Error::new(operation, Detail::Overflow { base: size.0, length: page }))
}
