//! Multicast objects: `cuMulticastCreate`, `cuMulticastAddDevice`, `cuMulticastBindMem`, `cuMulticastUnbind`. Objects are exported,
//! imported, mapped and released like memory, by [`CudaHandle`] and [`CudaReservation`](crate::CudaReservation).
//!
//! No test calls these functions of NVIDIA's own driver.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::{
    CuResult, MULTICAST_MINIMUM, MULTICAST_RECOMMENDED, MulticastFunctions, MulticastObjectProp,
};
use crate::handle::{CudaHandle, ImportSource};
use gpu_vmm_core::multicast::{MulticastDriver, MulticastGranularity};
use gpu_vmm_core::{
    Bytes, Detail, DeviceId, Error, FabricHandle, Granularity, Handle, Operation, Properties, Result,
};
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The driver's multicast calls.
#[derive(Debug)]
pub struct CudaMulticast {
    backend: Arc<Opened>,
    functions: &'static MulticastFunctions,
}

/// Returns advice for a status code, from what other users have found out.
fn advice(result: CuResult) -> &'static str {
    match result {
        CuResult::MULTICAST_RESOURCE_FULL => {
            "; the NVSwitches have no room for one more object: programs of all users share it, so release objects, or make \
             fewer and larger ones"
        }
        CuResult::ILLEGAL_STATE => {
            "; the fabric is not in the state for it: if another process has died or failed to add its devices, begin again \
             with a new object; else the fabric manager or an NVSwitch is in trouble, and its log says which"
        }
        CuResult::SYSTEM_NOT_READY => {
            "; nvidia-fabricmanager must run and be done with its work: if it runs, all processes of the team can try again \
             together"
        }
        CuResult::OUT_OF_MEMORY => {
            "; it is not memory alone that can be short, but what the driver needs to bind it"
        }
        _ => "",
    }
}

impl CudaMulticast {
    /// Returns the calls, if the driver has them.
    pub(crate) fn of(backend: &Arc<Opened>, operation: Operation) -> Result<Self> {
        backend.here(operation)?;
        match backend.multicast_functions() {
            Ok(functions) => Ok(Self { backend: Arc::clone(backend), functions }),
            Err(reason) => Err(Error::new(operation, Detail::Unsupported { reason })),
        }
    }

    fn check(
        &self,
        operation: Operation,
        call: &'static str,
        result: CuResult,
        context: impl FnOnce() -> String,
    ) -> Result<()> {
        self.backend.check(operation, call, result, || context() + advice(result))
    }

    fn raw(&self, operation: Operation, device: DeviceId) -> Result<i32> {
        self.backend.state(operation, device).map(|state| state.raw)
    }
}

fn describe(devices: u32, size: Bytes, properties: &Properties) -> MulticastObjectProp {
    MulticastObjectProp {
        num_devices: devices,
        size: size.0 as usize,
        handle_types: properties.handle_types.bits().into(),
        flags: 0,
    }
}

// SAFETY: handles of objects are the driver's, with the size that they were created with.
unsafe impl MulticastDriver for CudaMulticast {
    type Handle = CudaHandle;

    fn check_device(&self, operation: Operation, device: DeviceId) -> Result<()> {
        self.backend.here(operation)?;
        self.backend.says_multicast(device).map_err(|reason| {
            Error::new(operation, Detail::Unsupported { reason: format!("{device}: {reason}") })
        })
    }

    fn granularity(
        &self,
        operation: Operation,
        devices: u32,
        size: Bytes,
        properties: &Properties,
    ) -> Result<MulticastGranularity> {
        self.backend.here(operation)?;
        let prop = describe(devices, size, properties);
        let ask = |option| {
            let mut bytes = 0usize;
            // SAFETY: both pointers are valid for their types; the call only reads the properties.
            let result = unsafe { (self.functions.get_granularity)(&raw mut bytes, &raw const prop, option) };
            self.check(operation, "cuMulticastGetGranularity", result, || {
                format!("{size} on {devices} devices")
            })?;
            Granularity::new(Bytes(bytes as u64)).ok_or_else(|| {
                Error::new(
                    operation,
                    Detail::DriverContractViolated {
                        what: format!(
                            "it returned the multicast granularity {bytes}, which is not a power of two"
                        ),
                    },
                )
            })
        };
        Ok(MulticastGranularity {
            minimum: ask(MULTICAST_MINIMUM)?,
            recommended: ask(MULTICAST_RECOMMENDED)?,
        })
    }

    unsafe fn create(&self, devices: u32, size: Bytes, properties: &Properties) -> Result<CudaHandle> {
        const OPERATION: Operation = Operation::CreateMulticast;
        self.backend.here(OPERATION)?;
        let prop = describe(devices, size, properties);
        let mut raw = 0;
        // SAFETY: both pointers are valid for their types; the size is right by the caller's promise.
        let result = unsafe { (self.functions.create)(&raw mut raw, &raw const prop) };
        self.check(OPERATION, "cuMulticastCreate", result, || format!("{size} on {devices} devices"))?;
        Ok(CudaHandle::own(&self.backend, raw, size, properties, false))
    }

    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import(&self.backend, fd, ImportSource::Multicast, size, properties) }
    }

    unsafe fn import_fabric(
        &self,
        from: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<CudaHandle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { CudaHandle::import_fabric(&self.backend, from, ImportSource::Multicast, size, properties) }
    }

    unsafe fn add(&self, object: &CudaHandle, device: DeviceId) -> Result<()> {
        const OPERATION: Operation = Operation::AddDevice;
        self.backend.here(OPERATION)?;
        let raw = self.raw(OPERATION, device)?;
        // SAFETY: the handle is the driver's handle of an object, and the device was not added yet, by the caller's promise.
        let result = unsafe { (self.functions.add_device)(object.raw, raw) };
        self.check(OPERATION, "cuMulticastAddDevice", result, || device.to_string())
    }

    unsafe fn bind(
        &self,
        object: &CudaHandle,
        offset: Bytes,
        memory: &CudaHandle,
        memory_offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::Bind;
        self.backend.here(OPERATION)?;
        // SAFETY: both handles are the driver's, and the numbers are right, by the caller's promise; flags must be zero.
        let result = unsafe {
            let (to, from, size) = (offset.0 as usize, memory_offset.0 as usize, length.0 as usize);
            (self.functions.bind_mem)(object.raw, to, memory.raw, from, size, 0)
        };
        self.check(OPERATION, "cuMulticastBindMem", result, || {
            let device = memory.properties().device;
            format!(
                "{length} of {device}, from {memory_offset} of the memory, at {offset} of {}",
                object.size()
            )
        })
    }

    unsafe fn unbind(
        &self,
        object: &CudaHandle,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::Unbind;
        self.backend.here(OPERATION)?;
        let raw = self.raw(OPERATION, device)?;
        // SAFETY: the handle is the driver's handle of an object, and this range was bound in one call, by the caller's promise.
        let result =
            unsafe { (self.functions.unbind)(object.raw, raw, offset.0 as usize, length.0 as usize) };
        self.check(OPERATION, "cuMulticastUnbind", result, || format!("{length} of {device} at {offset}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fabric_answers_gets_advice() {
        for (result, part) in [
            (CuResult::MULTICAST_RESOURCE_FULL, "release objects"),
            (CuResult::ILLEGAL_STATE, "begin again"),
            (CuResult::SYSTEM_NOT_READY, "nvidia-fabricmanager must run"),
        ] {
            assert!(advice(result).contains(part), "{result:?}");
        }
        assert_eq!(advice(CuResult(1)), "");
    }
}
