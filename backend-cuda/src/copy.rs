//! Copies and fills by `cuMemcpy…` and `cuMemsetD8`. Each call waits until it is complete.
//!
//! They use the default stream of the device's context. Only `cuMemcpyDtoH` returns when the copy is complete: from pageable memory
//! `cuMemcpyHtoD` returns once the bytes are staged, and the other two do not wait at all. So this module waits for the default
//! stream, and not for the context, which has other streams. While a blocking stream of the context captures, its default stream
//! cannot be used: the call returns an error, and the capture goes on.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use gpu_vmm_core::{Address, AddressRange, Bytes, DeviceId, Operation, Result};

impl Opened {
    /// Copies from the host to the device.
    ///
    /// # Safety
    ///
    /// As [`CopyCalls::copy_from_host`](gpu_vmm_core::CopyCalls::copy_from_host).
    pub(crate) unsafe fn memcpy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        const OPERATION: Operation = Operation::CopyFromHost;
        let _entered = self.enter_device(OPERATION, device)?;
        if from.is_empty() {
            return Ok(());
        }
        self.check_default(OPERATION)?;
        // SAFETY: the slice can be read, and the bytes at `to` are mapped for writing by the caller's promise. A copy still in
        // progress when this returns reads the driver's own staging memory.
        let result = unsafe { (self.functions().memcpy_to_device)(to.0, from.as_ptr().cast(), from.len()) };
        self.check(OPERATION, "cuMemcpyHtoD_v2", result, || part(to, from.len()))?;
        self.finish_default(OPERATION)
    }

    /// Copies from the device to the host.
    ///
    /// # Safety
    ///
    /// As [`CopyCalls::copy_to_host`](gpu_vmm_core::CopyCalls::copy_to_host).
    pub(crate) unsafe fn memcpy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        const OPERATION: Operation = Operation::CopyToHost;
        let _entered = self.enter_device(OPERATION, device)?;
        if to.is_empty() {
            return Ok(());
        }
        self.check_default(OPERATION)?;
        // SAFETY: the slice can be written and is not read before this returns, when the copy is complete; the bytes at `from` are
        // mapped for reading by the caller's promise.
        let result = unsafe { (self.functions().memcpy_to_host)(to.as_mut_ptr().cast(), from.0, to.len()) };
        self.check(OPERATION, "cuMemcpyDtoH_v2", result, || part(from, to.len()))
    }

    /// Copies on the device, or from or to a peer.
    ///
    /// # Safety
    ///
    /// As [`CopyCalls::copy`](gpu_vmm_core::CopyCalls::copy).
    pub(crate) unsafe fn memcpy(
        &self,
        device: DeviceId,
        to: Address,
        from: Address,
        length: Bytes,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::Copy;
        let _entered = self.enter_device(OPERATION, device)?;
        if length.is_zero() {
            return Ok(());
        }
        self.check_default(OPERATION)?;
        // SAFETY: both sides are mapped with the needed access and do not overlap, by the caller's promise.
        let result = unsafe { (self.functions().memcpy_on_device)(to.0, from.0, length.0 as usize) };
        self.check(OPERATION, "cuMemcpyDtoD_v2", result, || format!("{length} from {from} to {to}"))?;
        self.finish_default(OPERATION)
    }

    /// Sets every byte to `value`.
    ///
    /// # Safety
    ///
    /// As [`CopyCalls::fill`](gpu_vmm_core::CopyCalls::fill).
    pub(crate) unsafe fn memset(
        &self,
        device: DeviceId,
        at: Address,
        length: Bytes,
        value: u8,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::Fill;
        let _entered = self.enter_device(OPERATION, device)?;
        if length.is_zero() {
            return Ok(());
        }
        self.check_default(OPERATION)?;
        // SAFETY: the bytes are mapped for writing by the caller's promise.
        let result = unsafe { (self.functions().memset)(at.0, value, length.0 as usize) };
        self.check(OPERATION, "cuMemsetD8_v2", result, || part(at, length.0 as usize))?;
        self.finish_default(OPERATION)
    }
}

/// Formats the bytes at an address, for an error.
pub(crate) fn part(base: Address, length: usize) -> String {
    AddressRange { base, size: Bytes(length as u64) }.to_string()
}
