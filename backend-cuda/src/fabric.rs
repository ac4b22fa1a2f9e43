//! Exporting and importing memory as a 64-byte fabric handle, valid on all machines of a fabric: `CUmemFabricHandle`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::HANDLE_FABRIC;
use crate::handle::{CudaHandle, ImportSource};
use gpu_vmm_core::{Bytes, FabricHandle, Handle, HandleTypes, Operation, Properties, Result};
use std::ptr::from_mut;
use std::sync::Arc;

impl CudaHandle {
    pub(crate) fn export_for_fabric(&self) -> Result<FabricHandle> {
        const OPERATION: Operation = Operation::ExportMemory;
        self.check_exported_as(OPERATION, HandleTypes::FABRIC)?;
        let mut handle = FabricHandle([0; FabricHandle::LENGTH]);
        // SAFETY: the pointer is valid for 64 bytes, the size of this kind of handle; the memory handle is the driver's.
        let result = unsafe {
            (self.backend.functions().mem_export)(from_mut(&mut handle.0).cast(), self.raw, HANDLE_FABRIC, 0)
        };
        let context = || format!("{} of {}", self.size(), self.properties());
        self.backend.check(OPERATION, "cuMemExportToShareableHandle", result, context)?;
        Ok(handle)
    }

    /// Imports memory or a multicast object.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::import_fabric`](gpu_vmm_core::MemoryCalls::import_fabric).
    pub(crate) unsafe fn import_fabric(
        backend: &Arc<Opened>,
        handle: &FabricHandle,
        source: ImportSource,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self> {
        // The driver takes a pointer that is not const.
        let mut bytes = handle.0;
        // SAFETY: the pointer is valid for the 64 bytes of this kind of handle during the call; the object it names is as the
        // caller promises.
        unsafe {
            Self::import_as(backend, from_mut(&mut bytes).cast(), HANDLE_FABRIC, source, size, properties)
        }
    }
}
