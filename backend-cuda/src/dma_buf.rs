//! Exporting a range of addresses as one DMA-BUF descriptor, for drivers of network cards: `cuMemGetHandleForAddressRange`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::error::answer;
use crate::ffi::{CuResult, RANGE_HANDLE_DMA_BUF};
use crate::reservation::CudaReservation;
use crate::share::owned;
use gpu_vmm_core::{AddressRange, Bytes, Detail, DeviceId, Error, Operation, Reservation, Result};
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::from_mut;

/// The error text for a driver without the function.
pub(crate) const NO_FUNCTION: &str =
    "the driver has no cuMemGetHandleForAddressRange, which came with CUDA 11.7";

/// Why host memory has none. Measured: cuMemGetHandleForAddressRange returns CUDA_ERROR_INVALID_VALUE.
const NO_HOST_MEMORY: &str =
    "CUDA exports DMA-BUFs of device memory only; network cards access host memory by its address";

impl CudaReservation {
    /// Exports the memory mapped in a part. The driver checks the addresses itself.
    pub(crate) fn export_dma_buf(&self, owner: DeviceId, part: AddressRange) -> Result<OwnedFd> {
        const OPERATION: Operation = Operation::ExportDmaBuf;
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let unsupported = |reason| Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        self.backend.here(OPERATION)?;
        if self.host.has(Bytes(part.base.0 - self.range().base.0)) {
            return unsupported(NO_HOST_MEMORY.to_owned());
        }
        let Some(export) = self.backend.driver.loaded.mem_get_handle_for_address_range else {
            return unsupported(NO_FUNCTION.to_owned());
        };
        // Quirk `dma-buf-wants-a-context`.
        let _entered = self.backend.enter_device(OPERATION, owner)?;
        let mut fd: RawFd = -1;
        // SAFETY: the pointer is valid for one int, the type of this kind of handle.
        let result = unsafe {
            export(from_mut(&mut fd).cast(), part.base.0, part.size.0 as usize, RANGE_HANDLE_DMA_BUF, 0)
        };
        // Quirk `compressible-has-no-dma-buf`.
        let known = match result {
            CuResult::NOT_SUPPORTED => Some(""),
            CuResult::UNKNOWN => Some("; the driver returns this for compressible memory"),
            _ => None,
        };
        if let Some(known) = known {
            return unsupported(format!(
                "{}{known} ({part})",
                answer(self.backend.functions(), CALL, result)
            ));
        }
        self.backend.check(OPERATION, CALL, result, || part.to_string())?;
        // SAFETY: the driver makes a new descriptor in each call, which the caller owns.
        unsafe { owned(OPERATION, fd) }
    }
}
