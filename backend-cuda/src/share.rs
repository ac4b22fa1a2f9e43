//! Exporting and importing memory as a file descriptor: `cuMemExportToShareableHandle` and `cuMemImportFromShareableHandle`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::HANDLE_FILE_DESCRIPTOR;
use crate::handle::{CudaHandle, ImportSource};
use gpu_vmm_core::{Bytes, Detail, DriverError, Error, Handle, HandleTypes, Operation, Properties, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{from_mut, without_provenance_mut};
use std::sync::Arc;

impl CudaHandle {
    pub(crate) fn export_descriptor(&self) -> Result<OwnedFd> {
        const OPERATION: Operation = Operation::ExportMemory;
        self.check_exported_as(OPERATION, HandleTypes::FILE_DESCRIPTOR)?;
        let mut fd: RawFd = -1;
        // SAFETY: the pointer is valid for one int, the type of this kind of handle; the memory handle is the driver's.
        let result = unsafe {
            (self.backend.functions().mem_export)(
                from_mut(&mut fd).cast(),
                self.raw,
                HANDLE_FILE_DESCRIPTOR,
                0,
            )
        };
        let context = || format!("{} of {}", self.size(), self.properties());
        self.backend.check(OPERATION, "cuMemExportToShareableHandle", result, context)?;
        // SAFETY: the driver makes a new descriptor in each call, which the caller owns.
        unsafe { owned(OPERATION, fd) }
    }

    /// Imports memory or a multicast object.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::import`](gpu_vmm_core::MemoryCalls::import).
    pub(crate) unsafe fn import(
        backend: &Arc<Opened>,
        fd: BorrowedFd<'_>,
        source: ImportSource,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self> {
        // The driver takes the descriptor by value in a pointer, and treats descriptor 0 as a null pointer.
        let above_zero = match fd.as_raw_fd() {
            0 => Some(duplicate(Operation::ImportMemory, fd.try_clone_to_owned())?),
            _ => None,
        };
        let number = above_zero.as_ref().map_or(fd.as_raw_fd(), AsRawFd::as_raw_fd);
        let descriptor = without_provenance_mut(number as usize);
        // SAFETY: the descriptor is open, of this kind of handle by the caller's promise, and passed as `cuda.h` says. The driver
        // keeps a reference of its own.
        unsafe { Self::import_as(backend, descriptor, HANDLE_FILE_DESCRIPTOR, source, size, properties) }
    }
}

/// Takes ownership of a descriptor that the driver has just made. The result is never below 3, so that it can be imported, and is
/// closed by exec, as the standard library's descriptors are.
///
/// # Safety
///
/// The descriptor is negative, or open and owned by no other code.
pub(crate) unsafe fn owned(operation: Operation, fd: RawFd) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::new(
            operation,
            Detail::DriverContractViolated { what: format!("it returned the descriptor {fd}") },
        ));
    }
    // SAFETY: the caller upholds the contract.
    let made = unsafe { OwnedFd::from_raw_fd(fd) };
    duplicate(operation, made.try_clone())
}

fn duplicate(operation: Operation, made: std::io::Result<OwnedFd>) -> Result<OwnedFd> {
    made.map_err(|error| {
        let source = DriverError::system("fcntl(F_DUPFD_CLOEXEC)", &error);
        Error::driver(operation, source, "a file descriptor of exported memory")
    })
}
