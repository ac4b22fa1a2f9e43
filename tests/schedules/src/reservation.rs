//! Addresses whose mappings the simulated device knows.
#![allow(unsafe_code)] // implements unsafe traits

use crate::chance::Chance;
use crate::machine::Machine;
use gpu_vmm_core::{
    Access, AddressRange, Bytes, DeviceId, FabricHandle, Grant, Handle, Operation, Properties, Reservation,
    Result,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Physical memory with a unique number.
#[derive(Debug)]
pub(crate) struct SimulatedHandle<H> {
    pub(crate) inner: H,
    pub(crate) number: u64,
}

// SAFETY: every call goes to the inner backend's.
unsafe impl<H: Handle> Handle for SimulatedHandle<H> {
    fn size(&self) -> Bytes {
        self.inner.size()
    }

    fn properties(&self) -> Properties {
        self.inner.properties()
    }

    fn export(&self) -> Result<OwnedFd> {
        self.inner.export()
    }

    fn export_fabric(&self) -> Result<FabricHandle> {
        self.inner.export_fabric()
    }
}

#[derive(Debug)]
pub(crate) struct SimulatedReservation<R> {
    pub(crate) inner: R,
    pub(crate) machine: Arc<Machine>,
    pub(crate) chance: Chance,
}

impl<R: Reservation> SimulatedReservation<R> {
    fn unmapped(&self, offset: Bytes, length: Bytes) {
        let start = self.inner.range().base.0 + offset.0;
        self.machine.unmap(start, start + length.0);
    }
}

// SAFETY: every call goes to the inner backend's, or fails without one.
unsafe impl<H: Handle, R: Reservation<Handle = H>> Reservation for SimulatedReservation<R> {
    type Handle = SimulatedHandle<H>;

    fn range(&self) -> AddressRange {
        self.inner.range()
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &Self::Handle) -> Result<()> {
        self.chance.memory_call(Operation::Map)?;
        // SAFETY: the caller fulfills the inner call's requirements; the same holds for every function below.
        unsafe { self.inner.map(offset, &handle.inner) }?;
        self.machine.map(self.inner.range().base.0 + offset.0, handle.size().0, handle.number);
        Ok(())
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        self.unmapped(offset, length);
        // SAFETY: as in `map`.
        unsafe { self.inner.unmap(offset, length) }
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        // SAFETY: as in `map`.
        unsafe { self.inner.set_access(offset, length, grants) }
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: as in `map`.
        unsafe { self.inner.access(offset, device) }
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        self.unmapped(Bytes::ZERO, self.inner.range().size);
        // SAFETY: as in `map`.
        unsafe { self.inner.return_memory() }
    }

    fn regain(&mut self) -> Result<()> {
        self.inner.regain()
    }

    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<OwnedFd> {
        // SAFETY: as in `map`.
        unsafe { self.inner.dma_buf(owner, offset, length) }
    }
}
