//! The allocations of all streams of one pool, and those whose last handle is gone.
//!
//! cubecl reports no dropped handle: an allocation is free when the table has its last reference. So the table looks at all
//! allocations, but only when the pool has no free memory that is mapped. The cost is spread over the reservations in between.

use super::cubecl_server::memory_management::{
    ErrorGraph, ManagedMemoryDescriptor, ManagedMemoryHandle, MemoryAllocationMode, MemoryLocation, Taint,
};
use super::cubecl_server::server::IoError;
use super::errors::not_found;
use gpu_vmm::pool::Block;
use gpu_vmm::{Backend, Stream};

/// An allocation.
#[derive(Debug)]
pub(super) struct Slot<B: Backend> {
    /// None for an allocation of zero bytes.
    pub(super) block: Option<Block<B>>,
    pub(super) size: u64,
    pub(super) stream: Stream<'static>,
    pub(super) mode: MemoryAllocationMode,
    /// The point of the stream's work from which on other streams may use the allocation.
    pub(super) cursor: u64,
    pub(super) taint: Taint,
}

/// The table. An allocation's location has its index.
#[derive(Debug)]
pub(super) struct Slots<B: Backend> {
    /// Apart from the slots, so that a sweep reads little memory.
    handles: Vec<Option<ManagedMemoryHandle>>,
    slots: Vec<Option<Slot<B>>>,
    vacant: Vec<u32>,
}

impl<B: Backend> Slots<B> {
    pub(super) const fn new() -> Self {
        Self { handles: Vec::new(), slots: Vec::new(), vacant: Vec::new() }
    }

    /// Adds an allocation, and returns its handle.
    pub(super) fn insert(&mut self, slot: Slot<B>, pool: u8) -> ManagedMemoryHandle {
        let handle = ManagedMemoryHandle::new();
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.handles.push(None);
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        handle.descriptor().update_location(MemoryLocation::new(pool, 0, index));
        self.handles[index as usize] = Some(handle.clone());
        self.slots[index as usize] = Some(slot);
        handle
    }

    /// Frees the allocations whose last handle is gone. Returns true if there were any.
    pub(super) fn sweep(&mut self, failures: &mut ErrorGraph) -> bool {
        let before = self.vacant.len();
        for index in 0..self.handles.len() {
            if self.handles[index].as_ref().is_some_and(ManagedMemoryHandle::is_free) {
                self.remove(index, failures);
            }
        }
        self.vacant.len() > before
    }

    /// Returns the allocation that a descriptor names.
    pub(super) fn get(&self, descriptor: &ManagedMemoryDescriptor) -> Result<&Slot<B>, IoError> {
        let index = self.index_of(descriptor)?;
        self.slots[index].as_ref().ok_or_else(|| stale(descriptor))
    }

    /// Returns the allocation that a descriptor names, to change it.
    pub(super) fn get_mut(&mut self, descriptor: &ManagedMemoryDescriptor) -> Result<&mut Slot<B>, IoError> {
        let index = self.index_of(descriptor)?;
        self.slots[index].as_mut().ok_or_else(|| stale(descriptor))
    }

    /// Returns the handle at a location.
    pub(super) fn handle_at(&self, location: MemoryLocation) -> Option<&ManagedMemoryHandle> {
        self.handles.get(location.slice as usize)?.as_ref()
    }

    /// Lets `assigned` name the allocation that `reserved` names.
    pub(super) fn bind(
        &mut self,
        reserved: &ManagedMemoryHandle,
        assigned: ManagedMemoryHandle,
        cursor: u64,
        failures: &mut ErrorGraph,
    ) -> Result<(), IoError> {
        let index = self.index_of(reserved.descriptor())?;
        let slot = self.get_mut(reserved.descriptor())?;
        slot.taint.clear(failures);
        slot.cursor = cursor;
        assigned.descriptor().update_location(reserved.descriptor().location());
        self.handles[index] = Some(assigned);
        Ok(())
    }

    /// Removes all allocations of a stream.
    pub(super) fn remove_stream(&mut self, stream: Stream<'static>) {
        for (handle, slot) in self.handles.iter_mut().zip(&mut self.slots) {
            if slot.take_if(|slot| slot.stream == stream).is_some() {
                *handle = None;
            }
        }
    }

    /// Returns the allocations that a handle or a binding refers to.
    pub(super) fn live(&self) -> impl Iterator<Item = &Slot<B>> {
        let used = self.handles.iter().map(|handle| handle.as_ref().is_some_and(|handle| !handle.is_free()));
        used.zip(&self.slots).filter(|(used, _)| *used).filter_map(|(_, slot)| slot.as_ref())
    }

    fn remove(&mut self, index: usize, failures: &mut ErrorGraph) {
        self.handles[index] = None;
        if let Some(mut slot) = self.slots[index].take() {
            slot.taint.clear(failures);
            self.vacant.push(index as u32);
        }
    }

    /// Returns the index of the allocation that a descriptor names. Its location may be that of a freed allocation, at which
    /// there is another one by now.
    fn index_of(&self, descriptor: &ManagedMemoryDescriptor) -> Result<usize, IoError> {
        if !descriptor.is_allocated() {
            return Err(not_found(format!("{:?} was never given memory", descriptor.id)));
        }
        let owner = self.handle_at(descriptor.location());
        match owner.is_some_and(|owner| owner.descriptor() == descriptor) {
            true => Ok(descriptor.slice()),
            false => Err(stale(descriptor)),
        }
    }
}

fn stale(descriptor: &ManagedMemoryDescriptor) -> IoError {
    not_found(format!("{:?} names memory that was freed", descriptor.id))
}
