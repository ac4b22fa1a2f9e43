//! A backend over host memory with the streams of a simulated device.
#![allow(unsafe_code)] // implements unsafe traits

use crate::chance::Chance;
use crate::event::SimulatedEvent;
use crate::machine::Machine;
use crate::reservation::{SimulatedHandle, SimulatedReservation};
use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, CopyCalls, DeviceId, Event, FabricHandle, MemoryCalls, Operation,
    Properties, Result, Stream, SyncCalls,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A backend with the inner one's memory, the machine's streams, events and captures, and calls that fail at random.
#[derive(Clone, Debug)]
pub(crate) struct Simulated<B> {
    inner: B,
    machine: Arc<Machine>,
    chance: Chance,
}

impl<B: Backend> Simulated<B> {
    pub(crate) fn new(inner: B, machine: &Arc<Machine>, chance: Chance) -> Self {
        Self { inner, machine: Arc::clone(machine), chance }
    }

    fn handle(&self, inner: B::Handle) -> SimulatedHandle<B::Handle> {
        SimulatedHandle { inner, number: self.machine.new_handle() }
    }
}

// SAFETY: the inner backend provides memory; the machine provides streams, events and captures, and works in order.
unsafe impl<B: Backend> Backend for Simulated<B> {
    forward!(inner: Backend);
}

// SAFETY: as above.
unsafe impl<B: Backend> MemoryCalls for Simulated<B> {
    type Handle = SimulatedHandle<B::Handle>;

    type Reservation = SimulatedReservation<B::Reservation>;

    forward!(inner: allocate_plain, free_plain);

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<Self::Handle> {
        self.machine.switch();
        self.chance.memory_call(Operation::CreateMemory)?;
        // SAFETY: the caller fulfills the inner call's requirements; the same holds for every function below.
        unsafe { self.inner.create(size, properties) }.map(|inner| self.handle(inner))
    }

    unsafe fn import(
        &self,
        fd: BorrowedFd<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle> {
        // SAFETY: as in `create`.
        unsafe { self.inner.import(fd, size, properties) }.map(|inner| self.handle(inner))
    }

    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle> {
        // SAFETY: as in `create`.
        unsafe { self.inner.import_fabric(handle, size, properties) }.map(|inner| self.handle(inner))
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self::Reservation> {
        self.chance.memory_call(Operation::Reserve)?;
        // SAFETY: as in `create`.
        let inner = unsafe { self.inner.reserve(size, alignment, hint) }?;
        Ok(SimulatedReservation { inner, machine: Arc::clone(&self.machine), chance: self.chance })
    }
}

// SAFETY: as above.
unsafe impl<B: Backend> CopyCalls for Simulated<B> {
    forward!(inner: CopyCalls);
}

// SAFETY: as above.
unsafe impl<B: Backend> SyncCalls for Simulated<B> {
    fn synchronize(&self, _: DeviceId) -> Result<()> {
        self.machine.synchronize(None)
    }

    fn synchronize_stream(&self, _: DeviceId, stream: Stream<'_>) -> Result<()> {
        self.machine.synchronize(Some(stream))
    }

    fn event(&self, _: DeviceId) -> Result<Box<dyn Event>> {
        self.chance.stream_call(Operation::CreateEvent)?;
        Ok(Box::new(SimulatedEvent::new(&self.machine, self.chance)))
    }

    /// Other threads do not run meanwhile: `Deferred::knows_capture` has locked the streams by a mutex that shuttle does not know.
    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        self.chance.stream_call(Operation::QueryCapture)?;
        Ok(self.machine.asked_whether_it_captures(stream))
    }

    fn queries_spoil_captures(&self) -> bool {
        true
    }
}
