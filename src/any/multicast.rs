//! Multicast of the backend that was chosen at run time.
#![allow(unsafe_code)]

use super::{AnyBackend, AnyHandle};
use gpu_vmm_core::multicast::{MulticastBackend, MulticastDriver, MulticastGranularity};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, FabricHandle, Operation, Properties, Result};
#[cfg(unix)]
use std::os::fd::BorrowedFd;

#[cfg(feature = "cuda")]
use gpu_vmm_cuda::CudaBackend;
#[cfg(feature = "hip")]
use gpu_vmm_hip::HipBackend;
#[cfg(feature = "host")]
use gpu_vmm_host::HostBackend;

/// The multicast calls of an [`AnyBackend`]. Only CUDA has them.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyMulticast {
    /// Of the CUDA backend.
    #[cfg(feature = "cuda")]
    Cuda(<CudaBackend as MulticastBackend>::Driver),
    /// Of the HIP backend.
    #[cfg(feature = "hip")]
    Hip(<HipBackend as MulticastBackend>::Driver),
    /// Of the host backend.
    #[cfg(feature = "host")]
    Host(<HostBackend as MulticastBackend>::Driver),
}

// SAFETY: every call goes to the vendor's implementation, which fulfils the contract of the trait.
unsafe impl MulticastBackend for AnyBackend {
    type Driver = AnyMulticast;

    fn multicast(&self, operation: Operation) -> Result<AnyMulticast> {
        dispatch!(*self, Self, ref backend, AnyMulticast as wrap => backend.multicast(operation).map(wrap))
    }
}

/// One branch for each vendor that is built in, if the driver and all of the handles are of that vendor.
macro_rules! of_one_vendor {
    ($operation:expr, $driver:expr, [$($handle:ident),+], $inner:ident => $body:expr) => {
        match ($driver, $($handle),+) {
            #[cfg(feature = "cuda")]
            (AnyMulticast::Cuda($inner), $(AnyHandle::Cuda($handle)),+) => $body,
            #[cfg(feature = "hip")]
            (AnyMulticast::Hip($inner), $(AnyHandle::Hip($handle)),+) => $body,
            #[cfg(feature = "host")]
            (AnyMulticast::Host($inner), $(AnyHandle::Host($handle)),+) => $body,
            #[allow(unreachable_patterns)] // with one vendor built in
            (driver, $($handle),+) => Err(Error::new($operation, Detail::ForeignHandle { theirs: format!("{:?}", ($($handle),+)), ours: format!("{driver:?}") })),
        }
    };
}

// SAFETY: every call goes to the vendor's implementation, which fulfils the contract of the trait.
unsafe impl MulticastDriver for AnyMulticast {
    type Handle = AnyHandle;

    fn check_device(&self, operation: Operation, device: DeviceId) -> Result<()> {
        dispatch!(*self, Self, ref driver => driver.check_device(operation, device))
    }

    fn granularity(
        &self,
        operation: Operation,
        devices: u32,
        size: Bytes,
        properties: &Properties,
    ) -> Result<MulticastGranularity> {
        dispatch!(*self, Self, ref driver => driver.granularity(operation, devices, size, properties))
    }

    unsafe fn create(&self, devices: u32, size: Bytes, properties: &Properties) -> Result<AnyHandle> {
        dispatch!(*self, Self, ref driver, AnyHandle as wrap => {
            // SAFETY: the caller's promises are the ones that the vendor's function asks for; so below.
            unsafe { driver.create(devices, size, properties) }.map(wrap)
        })
    }

    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<AnyHandle> {
        dispatch!(*self, Self, ref driver, AnyHandle as wrap => {
            // SAFETY: as in `create`.
            unsafe { driver.import(fd, size, properties) }.map(wrap)
        })
    }

    unsafe fn import_fabric(
        &self,
        from: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<AnyHandle> {
        dispatch!(*self, Self, ref driver, AnyHandle as wrap => {
            // SAFETY: as in `create`.
            unsafe { driver.import_fabric(from, size, properties) }.map(wrap)
        })
    }

    unsafe fn add(&self, object: &AnyHandle, device: DeviceId) -> Result<()> {
        // SAFETY: as in `create`.
        of_one_vendor!(Operation::AddDevice, self, [object], driver => unsafe { driver.add(object, device) })
    }

    unsafe fn bind(
        &self,
        object: &AnyHandle,
        offset: Bytes,
        memory: &AnyHandle,
        memory_offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        of_one_vendor!(Operation::Bind, self, [object, memory], driver => {
            // SAFETY: as in `create`.
            unsafe { driver.bind(object, offset, memory, memory_offset, length) }
        })
    }

    unsafe fn unbind(
        &self,
        object: &AnyHandle,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        of_one_vendor!(Operation::Unbind, self, [object], driver => {
            // SAFETY: as in `create`.
            unsafe { driver.unbind(object, device, offset, length) }
        })
    }
}
