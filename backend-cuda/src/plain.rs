//! Memory from `cuMemAlloc`, without virtual memory management.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use gpu_vmm_core::{Address, AddressRange, Bytes, Detail, DeviceId, Error, Operation, Result};

impl Opened {
    /// Allocates memory by `cuMemAlloc`.
    pub(crate) fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        const OPERATION: Operation = Operation::Allocate;
        let _entered = self.enter_device(OPERATION, device)?;
        let _relaxed = self.relax(OPERATION)?;
        if size.is_zero() {
            return Err(Error::new(OPERATION, Detail::ZeroSize));
        }
        let mut address = 0;
        // SAFETY: the pointer is valid for one address; the driver returns an error for a size it cannot allocate.
        let result = unsafe { (self.functions().mem_alloc)(&raw mut address, size.0 as usize) };
        self.check_memory(OPERATION, "cuMemAlloc_v2", result, device, size)?;
        Ok(Address(address))
    }

    /// Frees a plain allocation.
    ///
    /// # Safety
    ///
    /// As for [`MemoryCalls::free_plain`](gpu_vmm_core::MemoryCalls::free_plain).
    pub(crate) unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::Free;
        let _entered = self.enter_device(OPERATION, device)?;
        let _relaxed = self.relax(OPERATION)?;
        // SAFETY: the address is a plain allocation that is no longer used, by the caller's promise.
        let result = unsafe { (self.functions().mem_free)(at.0) };
        self.check(OPERATION, "cuMemFree_v2", result, || AddressRange { base: at, size }.to_string())
    }
}
