//! One descriptor for a range of addresses, which drivers of network cards can be given: `cuMemGetHandleForAddressRange`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::CudaReservation;
use crate::error::answer;
use crate::ffi::{CuResult, RANGE_HANDLE_DMA_BUF};
use crate::share::owned;
use gpu_vmm_core::{AddressRange, Error, Result};
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::from_mut;

/// Why a driver cannot.
pub(crate) const NO_FUNCTION: &str =
    "the driver has no cuMemGetHandleForAddressRange, which came with CUDA 11.7";

impl CudaReservation {
    /// Exports what is mapped in a part. The driver checks the addresses itself.
    pub(crate) fn export_dma_buf(&self, part: AddressRange) -> Result<OwnedFd> {
        const OPERATION: &str = "export a dma-buf";
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let unsupported = |reason| Err(Error::Unsupported { operation: OPERATION, reason });
        self.backend.here(OPERATION)?;
        let Some(export) = self.backend.inner.driver.loaded.mem_get_handle_for_address_range else {
            return unsupported(NO_FUNCTION.to_owned());
        };
        let mut fd: RawFd = -1;
        // SAFETY: the pointer is good for one int, which is what this kind of handle is.
        let result = unsafe {
            export(from_mut(&mut fd).cast(), part.base.0, part.size.0 as usize, RANGE_HANDLE_DMA_BUF, 0)
        };
        if result == CuResult::NOT_SUPPORTED {
            return unsupported(format!("{} ({part})", answer(self.backend.functions(), CALL, result)));
        }
        self.backend.check(OPERATION, CALL, result, || part.to_string())?;
        // SAFETY: the driver makes a new descriptor in each call and leaves it to the caller.
        unsafe { owned(OPERATION, fd) }
    }
}
