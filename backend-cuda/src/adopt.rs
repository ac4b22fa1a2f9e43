//! Memory that other code has mapped: `cuMemRetainAllocationHandle`, and what the driver reports about it.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::error::answer;
use crate::ffi::CuResult;
use crate::handle::CudaHandle;
use crate::memory_types::properties_of;
use gpu_vmm_core::{Address, AddressRange, Bytes, Detail, DeviceId, Error, Operation, Properties, Result};
use std::sync::Arc;

impl CudaHandle {
    /// Takes a reference to the memory that is mapped at an address.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::adopt`](gpu_vmm_core::MemoryCalls::adopt).
    pub(crate) unsafe fn adopt(backend: &Arc<Opened>, at: Address) -> Result<Self> {
        const OPERATION: Operation = Operation::AdoptMemory;
        const CALL: &str = "cuMemRetainAllocationHandle";
        backend.here(OPERATION)?;
        let mut raw = 0;
        // SAFETY: the pointer is valid for one handle; the driver checks the address.
        let result = unsafe { (backend.functions().mem_retain_allocation_handle)(&raw mut raw, at.0) };
        if result == CuResult::INVALID_VALUE {
            let reason = format!(
                "{}; plain allocations (cuMemAlloc, cudaMalloc), pointers of the host and addresses without memory have none",
                answer(backend.functions(), CALL, result)
            );
            return Err(Error::new(OPERATION, Detail::NoMemoryAt { address: at, reason }));
        }
        backend.check(OPERATION, CALL, result, || at.to_string())?;
        // From here on the reference is released if a call fails.
        let mut handle = Self::own(backend, raw, Bytes::ZERO, &Properties::on(DeviceId(0)), false);
        let properties = properties_of(&handle.reported(OPERATION)?)
            .map_err(|reason| Error::new(OPERATION, Detail::Unsupported { reason }))?;
        backend.device(OPERATION, properties.device)?;
        let mapping = backend.mapping_at(OPERATION, properties.device, at)?;
        handle.describe(mapping.size, properties);
        Ok(handle)
    }
}

impl Opened {
    /// Returns the mapping that contains an address. A mapping is one whole handle.
    fn mapping_at(&self, operation: Operation, owner: DeviceId, at: Address) -> Result<AddressRange> {
        // Without a context the call returns CUDA_ERROR_INVALID_CONTEXT (H200, driver 580.159.04).
        let _entered = self.enter_device(operation, owner)?;
        let (mut base, mut size) = (0, 0usize);
        // SAFETY: both pointers are valid for their types.
        let result = unsafe { (self.functions().mem_get_address_range)(&raw mut base, &raw mut size, at.0) };
        self.check(operation, "cuMemGetAddressRange", result, || at.to_string())?;
        Ok(AddressRange { base: Address(base), size: Bytes(size as u64) })
    }
}
