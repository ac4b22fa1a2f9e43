//! Memory from `hipMalloc`, without virtual memory management.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use gpu_vmm_core::{Address, Bytes, Detail, DeviceId, Error, Operation, Result};

impl Driver {
    pub(crate) fn allocate_plain(
        &self,
        operation: Operation,
        device: DeviceId,
        size: Bytes,
    ) -> Result<Address> {
        let _current = self.on(operation, device)?;
        let _relaxed = self.relax(operation)?;
        if size.is_zero() {
            return Err(Error::new(operation, Detail::ZeroSize));
        }
        let mut at = std::ptr::null_mut();
        // SAFETY: HIP writes one address.
        let code = unsafe { (self.hip.hipMalloc)(&raw mut at, size.0 as usize) };
        self.check_memory(operation, "hipMalloc", code, device, size)?;
        Ok(Address(at.expose_provenance() as u64))
    }

    /// # Safety
    ///
    /// [`allocate_plain`](Self::allocate_plain) allocated the memory, and no work uses it.
    pub(crate) unsafe fn free_plain(
        &self,
        operation: Operation,
        device: DeviceId,
        at: Address,
        size: Bytes,
    ) -> Result<()> {
        let _current = self.on(operation, device)?;
        let _relaxed = self.relax(operation)?;
        // SAFETY: a plain HIP allocation, freed once, as the caller promises.
        let code = unsafe { (self.hip.hipFree)(at.as_ptr()) };
        self.check(operation, "hipFree", code, || format!("{size} at {at}"))
    }
}
