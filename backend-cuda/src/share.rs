//! Memory that leaves and enters the process as a file descriptor: `cuMemExportToShareableHandle` and
//! `cuMemImportFromShareableHandle`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::HANDLE_FILE_DESCRIPTOR;
use crate::{CudaBackend, CudaHandle};
use gpu_vmm_core::{Bytes, Error, Handle, Properties, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{from_mut, without_provenance_mut};

impl CudaHandle {
    pub(crate) fn export_descriptor(&self) -> Result<OwnedFd> {
        const OPERATION: &str = "export";
        let unsupported =
            |reason: &str| Err(Error::Unsupported { operation: OPERATION, reason: reason.into() });
        self.backend.here(OPERATION)?;
        if self.imported {
            return unsupported(
                "CUDA does not export memory that was imported; pass on the descriptor that it came by",
            );
        }
        if !self.properties().is_shareable() {
            return unsupported(
                "the memory was not created as shareable, and CUDA must know that when it is created",
            );
        }
        let mut fd: RawFd = -1;
        // SAFETY: the pointer is good for one int, which is what this kind of handle is; the handle is the driver's.
        let result = unsafe {
            (self.backend.functions().mem_export)(
                from_mut(&mut fd).cast(),
                self.raw,
                HANDLE_FILE_DESCRIPTOR,
                0,
            )
        };
        let context = || format!("{} of {}", self.size(), self.properties().device);
        self.backend.check(OPERATION, "cuMemExportToShareableHandle", result, context)?;
        if fd < 0 {
            return Err(Error::DriverBroke {
                operation: OPERATION,
                what: format!("it gave the descriptor {fd}"),
            });
        }
        // SAFETY: the driver makes a new descriptor in each call and leaves it to the caller.
        let made = unsafe { OwnedFd::from_raw_fd(fd) };
        duplicate(OPERATION, made.try_clone())
    }

    /// Takes in memory.
    ///
    /// # Safety
    ///
    /// As [`Backend::import`](gpu_vmm_core::Backend::import).
    pub(crate) unsafe fn import(
        backend: &CudaBackend,
        fd: BorrowedFd<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self> {
        const OPERATION: &str = "import";
        backend.here(OPERATION)?;
        // The driver takes the descriptor by value in a pointer, and takes descriptor 0 for no pointer at all.
        let above_zero = match fd.as_raw_fd() {
            0 => Some(duplicate(OPERATION, fd.try_clone_to_owned())?),
            _ => None,
        };
        let number = above_zero.as_ref().map_or(fd.as_raw_fd(), AsRawFd::as_raw_fd);
        let mut raw = 0;
        // SAFETY: the pointer is good for one handle; the descriptor is open, of this kind of handle by the caller's
        // promise, and passed as `cuda.h` says. The driver keeps a reference of its own.
        let result = unsafe {
            let descriptor = without_provenance_mut(number as usize);
            (backend.functions().mem_import)(&raw mut raw, descriptor, HANDLE_FILE_DESCRIPTOR)
        };
        backend.check_memory(OPERATION, "cuMemImportFromShareableHandle", result, properties.device, size)?;
        Ok(Self::own(backend, raw, size, properties, true))
    }
}

/// A duplicate as the standard library makes them: never below 3, so that it can be imported, and closed by exec.
fn duplicate(operation: &'static str, made: std::io::Result<OwnedFd>) -> Result<OwnedFd> {
    made.map_err(|error| Error::Unsupported {
        operation,
        reason: format!("the descriptor cannot be duplicated: {error}"),
    })
}
