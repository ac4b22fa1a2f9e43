//! Memory as 64 bytes, for processes of any machine of a fabric: `CUmemFabricHandle`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::HANDLE_FABRIC;
use crate::handle::Whence;
use crate::{CudaBackend, CudaHandle};
use gpu_vmm_core::{Bytes, FabricHandle, Handle, HandleTypes, Operation, Properties, Result};
use std::ptr::from_mut;

impl CudaHandle {
    pub(crate) fn export_for_fabric(&self) -> Result<FabricHandle> {
        const OPERATION: Operation = Operation::ExportMemory;
        self.check_exported_as(OPERATION, HandleTypes::FABRIC)?;
        let mut handle = FabricHandle([0; FabricHandle::LENGTH]);
        // SAFETY: the pointer is good for 64 bytes, which is what this kind of handle is; the handle is the driver's.
        let result = unsafe {
            (self.backend.functions().mem_export)(from_mut(&mut handle.0).cast(), self.raw, HANDLE_FABRIC, 0)
        };
        let context = || format!("{} of {}", self.size(), self.properties());
        self.backend.check(OPERATION, "cuMemExportToShareableHandle", result, context)?;
        Ok(handle)
    }

    /// Takes in memory, or a multicast object.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::import_fabric`](gpu_vmm_core::MemoryCalls::import_fabric).
    pub(crate) unsafe fn import_fabric(
        backend: &CudaBackend,
        handle: &FabricHandle,
        whence: Whence,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self> {
        // The driver takes them by a pointer that is not const.
        let mut bytes = handle.0;
        // SAFETY: the pointer is good for the 64 bytes of this kind of handle while the call lasts; what they stand for,
        // the caller promises.
        unsafe {
            Self::import_as(backend, from_mut(&mut bytes).cast(), HANDLE_FABRIC, whence, size, properties)
        }
    }
}
