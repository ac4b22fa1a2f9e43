//! A multicast object with all of its devices: binding memory to it.
#![allow(unsafe_code)]

use super::bindings::Bindings;
use super::{Binding, MulticastBackend, MulticastDriver, MulticastGranularity};
use crate::memory::PhysicalMemory;
use crate::region::{check_aligned, check_inside};
use crate::types::{Bytes, Detail, DeviceId, Error, ErrorKind, OffsetRange, Operation, Properties, Result};
use std::mem::forget;
use std::sync::{Arc, OnceLock};

/// The driver's object, shared by a team, its bindings and its mapping. Dropping it releases the object.
#[derive(Debug)]
pub(super) struct Object<B: MulticastBackend> {
    pub(super) backend: B,
    driver: B::Driver,
    pub(super) handle: B::Handle,
    pub(super) size: Bytes,
    /// Says whether bound memory must be shareable.
    properties: Properties,
    pub(super) granularity: MulticastGranularity,
    /// The devices of this process.
    pub(super) devices: Vec<DeviceId>,
    /// The reason why the object's state is unknown.
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

    /// Keeps the object until the process ends, because a step could not be undone.
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

/// A multicast object whose devices are all added. Bind memory of each device of this process to it, then map it.
///
/// Bound memory can still be used as ordinary memory: each device maps its own piece in a [`Region`](crate::Region) as well, to
/// read the values that arrive.
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

    /// Returns the number of bytes that can be bound for each device.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.object.size
    }

    /// Returns the units of offsets and lengths.
    #[must_use]
    pub fn granularity(&self) -> MulticastGranularity {
        self.object.granularity
    }

    /// Returns the devices of this process.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.object.devices
    }

    /// Returns the bindings of this process, ordered by device.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding<B>> {
        self.bindings.iter()
    }

    /// Binds `length` bytes of a device's memory, from `memory_offset` on, to the object at `offset`. The binding keeps the memory
    /// alive. CUDA: `cuMulticastBindMem`.
    ///
    /// If other processes have devices in the team, the driver blocks until all of them are added.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`], [`Detail::NotInTeam`] for memory of a device that this process has not added,
    /// [`Detail::Unsupported`] for memory of the host, and for memory that is not shareable if the object is; [`Detail::Unaligned`]
    /// for an offset or length that is not a multiple of the [minimum granularity](MulticastGranularity::minimum),
    /// [`Detail::ZeroSize`], [`Detail::Overflow`], [`Detail::OutOfRange`] for a part that exceeds the object or the memory,
    /// [`Detail::AlreadyBound`], or the driver's error. Nothing is bound then.
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
        // SAFETY: the lines above check every argument.
        unsafe {
            object.driver.bind(&object.handle, offset, memory.handle(operation)?, memory_offset, length)
        }?;
        self.bindings.insert(Binding { offset, length, memory: memory.clone(), memory_offset });
        Ok(())
    }

    /// Removes the whole binding of a device's memory that begins at `offset`, and releases the memory. CUDA:
    /// `cuMulticastUnbind`.
    ///
    /// This process does not have the object mapped. A process that does must not store to it any more.
    ///
    /// # Errors
    ///
    /// [`Detail::NotBound`] if no binding of the device begins there, or the driver's error; the memory is still bound then.
    pub fn unbind(&mut self, device: DeviceId, offset: Bytes) -> Result<()> {
        let operation = Operation::Unbind;
        let object = &self.object;
        object.check_in_use(operation)?;
        let length = self.bindings.at(operation, device, offset)?.length;
        // SAFETY: the binding has this offset and length. The object is not mapped, because a range owns the object that it maps.
        unsafe { object.driver.unbind(&object.handle, device, offset, length) }?;
        self.bindings.remove(device, offset);
        Ok(())
    }

    /// Unbinds everything and releases the object, as dropping does, and returns the error.
    ///
    /// # Errors
    ///
    /// The error of [`unbind`](Self::unbind), or [`Detail::Poisoned`]. The object then stays until the process ends, with the
    /// bindings that could not be removed.
    pub fn close(mut self) -> Result<()> {
        self.object.check_in_use(Operation::ReleaseMulticast)?;
        self.unbind_all()
    }

    /// Removes all bindings, also after an error. Returns the first error.
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
            return unsupported("this is memory of the host; a multicast object takes memory of its devices");
        }
        if self.object.properties.is_shareable() && !memory.is_shareable() {
            return unsupported(
                "a multicast object that can be exported takes only shareable memory; create it as shareable",
            );
        }
        Ok(())
    }
}

impl<B: MulticastBackend> Drop for Multicast<B> {
    fn drop(&mut self) {
        if !self.object.is_given_up() {
            match self.unbind_all() {
                // In a forked child, everything belongs to the parent.
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
