//! Memory that leaves and enters the process as a handle of Windows: `cuMemExportToShareableHandle` and
//! `cuMemImportFromShareableHandle` with `CU_MEM_HANDLE_TYPE_WIN32`.
//!
//! It is written after NVIDIA's documentation, and has never run with NVIDIA's driver for Windows.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

pub(crate) mod security;

use crate::handle::Whence;
use crate::{CudaBackend, CudaHandle};
use gpu_vmm_core::extend::handles;
use gpu_vmm_core::{Bytes, Handle, HandleTypes, Operation, Properties, Result};
use std::os::windows::io::{AsRawHandle, BorrowedHandle, OwnedHandle, RawHandle};
use std::ptr::{from_mut, null_mut};

/// The type of handle, as the driver numbers it.
const WIN32: u32 = HandleTypes::WIN32.bits();

impl CudaHandle {
    pub(crate) fn export_handle(&self) -> Result<OwnedHandle> {
        const OPERATION: Operation = Operation::ExportMemory;
        self.check_exported_as(OPERATION, HandleTypes::WIN32)?;
        let mut made: RawHandle = null_mut();
        // SAFETY: the pointer is good for one handle of Windows, which is what this type is; the memory is the driver's.
        let result =
            unsafe { (self.backend.functions().mem_export)(from_mut(&mut made).cast(), self.raw, WIN32, 0) };
        let context = || format!("{} of {}", self.size(), self.properties().device);
        self.backend.check(OPERATION, "cuMemExportToShareableHandle", result, context)?;
        // SAFETY: the driver makes a new handle in each call and leaves it to the caller.
        unsafe { handles::adopt(OPERATION, made) }
    }

    /// Takes in memory.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::import_win32`](gpu_vmm_core::MemoryCalls::import_win32).
    pub(crate) unsafe fn import_handle(
        backend: &CudaBackend,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self> {
        // SAFETY: the handle of Windows is open, of this type by the caller's promise, and passed by value as `cuda.h` says.
        // The driver keeps a reference of its own.
        unsafe {
            Self::import_as(backend, from.as_raw_handle(), WIN32, Whence::ThisMachine, size, properties)
        }
    }
}
