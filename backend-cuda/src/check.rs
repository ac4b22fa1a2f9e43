//! Checks the results of the driver's calls: an error with the numbers of the call, or an entry in the log of destructors.

use crate::driver::Opened;
use crate::error::{answer, failed};
use crate::ffi::CuResult;
use crate::memory_info;
use gpu_vmm_core::{AddressRange, Bytes, Detail, DeviceId, Error, ErrorKind, MemoryInfo, Operation, Result};

impl Opened {
    /// Checks the result of a call in `operation`; `context` describes the call's arguments.
    #[inline]
    pub(crate) fn check(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        context: impl FnOnce() -> String,
    ) -> Result<()> {
        if result == CuResult::SUCCESS {
            Ok(())
        } else {
            Err(failed(operation, answer(self.functions(), call, result), context()))
        }
    }

    /// Checks the result of a call that takes `size` of memory of `device` or of the host. If memory is short, the error has the
    /// numbers.
    #[inline]
    pub(crate) fn check_memory(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        device: DeviceId,
        size: Bytes,
    ) -> Result<()> {
        if result == CuResult::SUCCESS {
            return Ok(());
        }
        Err(self.memory_error(operation, call, result, (device, size), format!("{size} of {device}")))
    }

    /// Checks the result of a call on addresses that needs memory of `device`. If memory is short, the error has the numbers.
    #[inline]
    pub(crate) fn check_memory_at(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        device: DeviceId,
        part: AddressRange,
    ) -> Result<()> {
        if result == CuResult::SUCCESS {
            return Ok(());
        }
        Err(self.memory_error(operation, call, result, (device, part.size), format!("{part}, {device}")))
    }

    #[cold]
    fn memory_error(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        (device, requested): (DeviceId, Bytes),
        context: String,
    ) -> Error {
        let source = answer(self.functions(), call, result);
        if result != CuResult::OUT_OF_MEMORY {
            return failed(operation, source, context);
        }
        if device.is_host() {
            return match memory_info::of_host() {
                Some(MemoryInfo { free, total }) => {
                    Error::new(operation, Detail::OutOfMemory { device, requested, free, total, source })
                }
                None => failed(operation, source, context),
            };
        }
        // Querying free memory needs a context. If the device is too full for one, no memory is free on it.
        let MemoryInfo { free, total } = self.context_memory_info(device).unwrap_or_else(|_| MemoryInfo {
            free: Bytes::ZERO,
            total: self.devices().get(device.0 as usize).map_or(Bytes::ZERO, |device| device.total_memory),
        });
        Error::new(operation, Detail::OutOfMemory { device, requested, free, total, source })
    }

    /// Records the failure of a call in a destructor. The log ignores errors of a driver that has shut down.
    #[inline]
    pub(crate) fn log(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        context: impl FnOnce() -> String,
    ) {
        if let Err(error) = self.check(operation, call, result, context) {
            self.drop_log.record(error);
        }
    }

    /// Records the failure of a destructor that enters a context. In a forked child the object is the parent's; if the device is
    /// lost, the object is already gone.
    pub(crate) fn log_end(&self, ended: Result<()>) {
        let Err(error) = ended else { return };
        if !matches!(error.kind(), ErrorKind::Forked | ErrorKind::DeviceLost) {
            self.drop_log.record(error);
        }
    }
}
