//! Exporting and importing memory as a Windows handle: `cuMemExportToShareableHandle` and `cuMemImportFromShareableHandle` with
//! `CU_MEM_HANDLE_TYPE_WIN32`.
//!
//! It follows NVIDIA's documentation and has never run with NVIDIA's driver for Windows.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

pub(crate) mod security;

use crate::driver::Opened;
use crate::handle::{CudaHandle, ImportSource};
use gpu_vmm_core::extend::handles;
use gpu_vmm_core::{Bytes, Handle, HandleTypes, Operation, Properties, Result};
use std::os::windows::io::{AsRawHandle, BorrowedHandle, OwnedHandle, RawHandle};
use std::ptr::{from_mut, null_mut};
use std::sync::Arc;

/// The driver's number for this type of handle.
const WIN32: u32 = HandleTypes::WIN32.bits();

impl CudaHandle {
    pub(crate) fn export_handle(&self) -> Result<OwnedHandle> {
        const OPERATION: Operation = Operation::ExportMemory;
        self.check_exported_as(OPERATION, HandleTypes::WIN32)?;
        let mut made: RawHandle = null_mut();
        // SAFETY: the pointer is valid for one Windows handle, the type of this kind of handle; the memory handle is the driver's.
        let result =
            unsafe { (self.backend.functions().mem_export)(from_mut(&mut made).cast(), self.raw, WIN32, 0) };
        let context = || format!("{} of {}", self.size(), self.properties().device);
        self.backend.check(OPERATION, "cuMemExportToShareableHandle", result, context)?;
        // SAFETY: the driver makes a new handle in each call, which the caller owns.
        unsafe { handles::adopt(OPERATION, made) }
    }

    /// Imports memory.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::import_win32`](gpu_vmm_core::MemoryCalls::import_win32).
    pub(crate) unsafe fn import_handle(
        backend: &Arc<Opened>,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self> {
        // SAFETY: the Windows handle is open, of this type by the caller's promise, and passed by value as `cuda.h` says. The
        // driver keeps a reference of its own.
        unsafe {
            Self::import_as(backend, from.as_raw_handle(), WIN32, ImportSource::ThisMachine, size, properties)
        }
    }
}
