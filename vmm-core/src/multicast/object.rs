//! The object with all of its devices: memory is bound to it, and it is mapped.
#![allow(unsafe_code)]

use super::bindings::Bindings;
use super::{Binding, MulticastBackend, MulticastDriver, MulticastGranularity};
use crate::memory::PhysicalMemory;
use crate::region::{check_aligned, check_inside};
use crate::types::{Bytes, Detail, DeviceId, Error, ErrorKind, OffsetRange, Operation, Properties, Result};
use std::mem::forget;
use std::sync::{Arc, OnceLock};

/// What a team, its bindings and its mapping have in common. Dropping it releases the object.
#[derive(Debug)]
pub(super) struct Object<B: MulticastBackend> {
    pub(super) backend: B,
    driver: B::Driver,
    pub(super) handle: B::Handle,
    pub(super) size: Bytes,
    /// Whether shareable memory is needed.
    properties: Properties,
    pub(super) granularity: MulticastGranularity,
    /// Those of this process.
    pub(super) devices: Vec<DeviceId>,
    /// Why nobody can vouch for the object any more.
    given_up: OnceLock<String>,
}

impl<B: MulticastBackend> Object<B> {
    pub(super) fn new(
        backend: B,
        driver: B::Driver,
        handle: B::Handle,
        size: Bytes,
        properties: Properties,
        granularity: MulticastGranularity,
        devices: Vec<DeviceId>,
    ) -> Self {
        let given_up = OnceLock::new();
        Self { backend, driver, handle, size, properties, granularity, devices, given_up }
    }

    /// Leaves the object to the driver until the process ends: something of it could not be undone.
    pub(super) fn give_up(&self, cause: &Error) {
        let _ = self.given_up.set(cause.to_string());
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.get().is_some()
    }

    pub(super) fn check_in_use(&self, operation: Operation) -> Result<()> {
        match self.given_up.get() {
            None => Ok(()),
            Some(cause) => Err(Error::new(
                operation,
                Detail::Poisoned {
                    range: OffsetRange { offset: Bytes::ZERO, length: self.size },
                    cause: cause.clone(),
                },
            )),
        }
    }
}

/// A multicast object whose devices are all added. Memory of each device of this process is bound to it, and then it is
/// mapped.
///
/// What is bound stays in use as ordinary memory: each device maps its own piece in a [`Region`](crate::Region) as well, to
/// read what arrived.
///
/// Dropping it unbinds everything and releases the object. Other processes of the team must have stopped storing to it.
#[derive(Debug)]
pub struct Multicast<B: MulticastBackend> {
    pub(super) object: Arc<Object<B>>,
    pub(super) bindings: Bindings<B>,
}

impl<B: MulticastBackend> Multicast<B> {
    pub(super) fn new(object: Object<B>) -> Self {
        Self { object: Arc::new(object), bindings: Bindings::new() }
    }

    /// How many bytes of each device can be bound.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.object.size
    }

    /// What offsets and lengths must be a multiple of, and what they should be.
    #[must_use]
    pub fn granularity(&self) -> MulticastGranularity {
        self.object.granularity
    }

    /// The devices of this process.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.object.devices
    }

    /// What this process has bound, device by device.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding<B>> {
        self.bindings.iter()
    }

    /// Binds `length` bytes of a device's memory, from `memory_offset` on, to the object at `offset`. The memory is held
    /// until it is unbound. CUDA: `cuMulticastBindMem`.
    ///
    /// In a team with devices elsewhere this blocks until all of them are added.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`], [`Detail::NotInTeam`] for memory of a device that this process has not added,
    /// [`Detail::Unsupported`] for memory of the host, and for memory that is not shareable where the object is;
    /// [`Detail::Unaligned`] for what is no multiple of the [minimum granularity](MulticastGranularity::minimum),
    /// [`Detail::ZeroSize`], [`Detail::Overflow`], [`Detail::OutOfRange`] for a part that goes beyond the object or the memory,
    /// [`Detail::AlreadyBound`]; or what the driver answers. Then nothing has been bound.
    pub fn bind(
        &mut self,
        offset: Bytes,
        memory: &PhysicalMemory<B>,
        memory_offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        let operation = Operation::Bind;
        let object = &self.object;
        object.check_in_use(operation)?;
        memory.check_belongs_to(operation, &object.backend)?;
        self.check_memory(operation, &memory.properties())?;
        let unit = object.granularity.minimum;
        check_aligned(operation, "offset", offset.0, unit)?;
        check_aligned(operation, "offset in the memory", memory_offset.0, unit)?;
        check_aligned(operation, "length", length.0, unit)?;
        check_inside(operation, offset, length, object.size)?;
        check_inside(operation, memory_offset, length, memory.size())?;
        self.bindings.check_free(operation, memory.device(), offset, length)?;
        // SAFETY: all of it was checked just now.
        unsafe { object.driver.bind(&object.handle, offset, memory.handle(), memory_offset, length) }?;
        self.bindings.insert(Binding { offset, length, memory: memory.clone(), memory_offset });
        Ok(())
    }

    /// Takes out what was bound of a device's memory at `offset`, as a whole, and lets go of the memory. CUDA:
    /// `cuMulticastUnbind`.
    ///
    /// The object is mapped nowhere in this process. Where it is in another one, that one must not store to it any more.
    ///
    /// # Errors
    ///
    /// [`Detail::NotBound`] where no binding of the device begins there, or what the driver answers; then it is still bound.
    pub fn unbind(&mut self, device: DeviceId, offset: Bytes) -> Result<()> {
        let operation = Operation::Unbind;
        let object = &self.object;
        object.check_in_use(operation)?;
        let length = self.bindings.at(operation, device, offset)?.length;
        // SAFETY: it was bound as this, and the object is not mapped, since a range holds what it maps.
        unsafe { object.driver.unbind(&object.handle, device, offset, length) }?;
        self.bindings.remove(device, offset);
        Ok(())
    }

    /// Unbinds everything and releases the object; what dropping does, with the errors.
    ///
    /// # Errors
    ///
    /// What unbinding answers, or [`Detail::Poisoned`]. What could not be unbound is left to the driver until the process ends, and so is the object.
    pub fn close(mut self) -> Result<()> {
        self.object.check_in_use(Operation::ReleaseMulticast)?;
        self.unbind_all()
    }

    /// The first error is returned, the rest is gone on with.
    fn unbind_all(&mut self) -> Result<()> {
        let bound: Vec<_> = self.bindings.iter().map(|bound| (bound.memory.device(), bound.offset)).collect();
        let mut first = Ok(());
        for (device, offset) in bound {
            let answer = self.unbind(device, offset);
            first = first.and(answer);
        }
        if let Err(error) = &first {
            self.object.give_up(error);
        }
        first
    }

    fn check_memory(&self, operation: Operation, memory: &Properties) -> Result<()> {
        let unsupported =
            |reason: &str| Err(Error::new(operation, Detail::Unsupported { reason: reason.to_owned() }));
        let devices = &self.object.devices;
        if !devices.contains(&memory.device) {
            let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
            return Err(Error::new(
                operation,
                Detail::NotInTeam { device: memory.device, team: names.join(", ") },
            ));
        }
        if memory.location.is_host() {
            return unsupported("a multicast object takes memory of its devices, and this is the host's");
        }
        if self.object.properties.is_shareable() && !memory.is_shareable() {
            return unsupported(
                "a multicast object that can be exported takes shareable memory alone; create it as shareable",
            );
        }
        Ok(())
    }
}

impl<B: MulticastBackend> Drop for Multicast<B> {
    fn drop(&mut self) {
        if !self.object.is_given_up() {
            match self.unbind_all() {
                // In a forked child all of it is the parent's.
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Forked => {}
                Err(error) => self.object.backend.drop_log().record(error),
            }
        }
        if self.object.is_given_up() {
            self.bindings.iter().for_each(|bound| forget(bound.memory.clone()));
            forget(Arc::clone(&self.object));
        }
    }
}
