//! The record of an object's bindings.

use crate::driver::Backend;
use crate::memory::PhysicalMemory;
use crate::types::{Bytes, Detail, DeviceId, Error, OffsetRange, Operation, Result};
use std::collections::BTreeMap;

/// Memory that is bound to a part of a multicast object.
#[derive(Debug)]
pub struct Binding<B: Backend> {
    /// The offset of the part in the object.
    pub offset: Bytes,
    /// The length of the part.
    pub length: Bytes,
    /// The memory. The binding keeps it alive.
    pub memory: PhysicalMemory<B>,
    /// The offset of the bound part in the memory.
    pub memory_offset: Bytes,
}

/// All bindings, by device and offset. Bindings of one device do not overlap.
#[derive(Debug)]
pub(super) struct Bindings<B: Backend>(BTreeMap<(DeviceId, Bytes), Binding<B>>);

impl<B: Backend> Bindings<B> {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Binding<B>> {
        self.0.values()
    }

    pub(super) fn insert(&mut self, binding: Binding<B>) {
        self.0.insert((binding.memory.device(), binding.offset), binding);
    }

    pub(super) fn remove(&mut self, device: DeviceId, offset: Bytes) {
        self.0.remove(&(device, offset));
    }

    /// Returns the binding of a device's memory that begins at an offset.
    pub(super) fn at(&self, operation: Operation, device: DeviceId, offset: Bytes) -> Result<&Binding<B>> {
        let place = || format!("from offset {offset} on");
        self.0
            .get(&(device, offset))
            .ok_or_else(|| Error::new(operation, Detail::NotBound { device, place: place() }))
    }

    /// Refuses a part in which memory of the device is bound.
    pub(super) fn check_free(
        &self,
        operation: Operation,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        let before = self.0.range((device, Bytes::ZERO)..(device, offset + length)).next_back();
        match before {
            Some((_, bound)) if bound.offset + bound.length > offset => Err(Error::new(
                operation,
                Detail::AlreadyBound {
                    device,
                    range: OffsetRange { offset, length },
                    binding: OffsetRange { offset: bound.offset, length: bound.length },
                },
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a device that has no binding.
    pub(super) fn check_any(&self, operation: Operation, device: DeviceId) -> Result<()> {
        if self.iter().any(|bound| bound.memory.device() == device) {
            return Ok(());
        }
        Err(Error::new(
            operation,
            Detail::NotBound { device, place: "anywhere, and every device needs a binding".to_owned() },
        ))
    }
}
