//! Multicast of a [`FaultInject`] backend: its calls fail by plan like the others.
#![allow(unsafe_code)]

use super::fault_held::FaultHandle;
use super::fault_inject::FaultInject;
use gpu_vmm_core::multicast::{MulticastBackend, MulticastDriver, MulticastGranularity};
use gpu_vmm_core::{Bytes, DeviceId, FabricHandle, Operation, Properties, Result};
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// The multicast calls of a [`FaultInject`] backend.
#[derive(Debug)]
pub struct FaultMulticast<B: MulticastBackend> {
    inner: B::Driver,
    backend: FaultInject<B>,
}

// SAFETY: every call is forwarded to the inner backend, or fails before it.
unsafe impl<B: MulticastBackend> MulticastBackend for FaultInject<B> {
    type Driver = FaultMulticast<B>;

    fn multicast(&self, operation: Operation) -> Result<FaultMulticast<B>> {
        Ok(FaultMulticast { inner: self.inner.multicast(operation)?, backend: self.clone() })
    }
}

// SAFETY: every call is forwarded to the inner backend, or fails before it.
unsafe impl<B: MulticastBackend> MulticastDriver for FaultMulticast<B> {
    type Handle = FaultHandle<B::Handle>;

    fn check_device(&self, operation: Operation, device: DeviceId) -> Result<()> {
        self.inner.check_device(operation, device)
    }

    fn granularity(
        &self,
        operation: Operation,
        devices: u32,
        size: Bytes,
        properties: &Properties,
    ) -> Result<MulticastGranularity> {
        let _call = self.backend.plan.call(Operation::QueryMulticast)?;
        self.inner.granularity(operation, devices, size, properties)
    }

    unsafe fn create(&self, devices: u32, size: Bytes, properties: &Properties) -> Result<Self::Handle> {
        let _call = self.backend.plan.call(Operation::CreateMulticast)?;
        // SAFETY: the caller's promises are passed on; so in every function below.
        let inner = unsafe { self.inner.create(devices, size, properties) }?;
        Ok(FaultHandle::new(inner, &self.backend.plan, &self.backend.registry))
    }

    #[cfg(unix)]
    unsafe fn import(
        &self,
        fd: BorrowedFd<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle> {
        let _call = self.backend.plan.call(Operation::ImportMemory)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.import(fd, size, properties) }?;
        Ok(FaultHandle::new(inner, &self.backend.plan, &self.backend.registry))
    }

    unsafe fn import_fabric(
        &self,
        from: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle> {
        let _call = self.backend.plan.call(Operation::ImportMemory)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.import_fabric(from, size, properties) }?;
        Ok(FaultHandle::new(inner, &self.backend.plan, &self.backend.registry))
    }

    unsafe fn add(&self, object: &Self::Handle, device: DeviceId) -> Result<()> {
        let _call = self.backend.plan.call(Operation::AddDevice)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.add(&object.inner, device) }
    }

    unsafe fn bind(
        &self,
        object: &Self::Handle,
        offset: Bytes,
        memory: &Self::Handle,
        memory_offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        let _call = self.backend.plan.call(Operation::Bind)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.bind(&object.inner, offset, &memory.inner, memory_offset, length) }?;
        self.backend.registry.bindings.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn unbind(
        &self,
        object: &Self::Handle,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        let _call = self.backend.plan.call(Operation::Unbind)?;
        // SAFETY: as in `create`.
        unsafe { self.inner.unbind(&object.inner, device, offset, length) }?;
        self.backend.registry.bindings.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}
