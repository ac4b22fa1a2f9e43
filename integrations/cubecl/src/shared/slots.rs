//! The allocations of all streams of one pool, and those whose last handle is gone.
//!
//! cubecl reports no dropped handle: an allocation is free when the table has its last reference. A look at all allocations in each
//! reservation would take longer than all else. So each reservation looks at a few, and at all only when the pool has no free
//! memory that is mapped, and not again until enough bytes have been reserved since.

use super::cubecl_server::memory_management::{
    ErrorGraph, ManagedMemoryDescriptor, ManagedMemoryHandle, MemoryAllocationMode, MemoryLocation, Taint,
};
use super::cubecl_server::server::IoError;
use super::errors::not_found;
use gpu_vmm::pool::Block;
use gpu_vmm::{Backend, Stream};

/// The number of newest allocations that each reservation looks at: most of those that are freed soon.
const NEWEST: usize = 4;

/// The number of other allocations that each reservation looks at, in turn.
const OTHERS: usize = 8;

/// A reservation looks at all allocations if this part of their bytes has been reserved since the last look. At most this part of
/// the memory is held in vain.
const SHARE: u64 = 128;

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
    /// The newest allocations, and the number of all that were ever made.
    newest: [u32; NEWEST],
    made: usize,
    /// The next of the others.
    next: usize,
    /// The bytes of all allocations in the table, and of those that were made since all were looked at.
    bytes: u64,
    since: u64,
}

impl<B: Backend> Slots<B> {
    pub(super) fn new() -> Self {
        let (handles, slots, vacant) = (Vec::new(), Vec::new(), Vec::new());
        Self { handles, slots, vacant, newest: [0; NEWEST], made: 0, next: 0, bytes: 0, since: 0 }
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
        self.bytes += slot.size;
        self.since += slot.size;
        self.handles[index as usize] = Some(handle.clone());
        self.slots[index as usize] = Some(slot);
        self.newest[self.made % NEWEST] = index;
        self.made = self.made.wrapping_add(1);
        handle
    }

    /// Returns whether enough bytes have been reserved since all allocations were looked at.
    pub(super) fn is_sweep_due(&self) -> bool {
        self.since.saturating_mul(SHARE) >= self.bytes
    }

    /// Frees the allocations whose last handle is gone.
    pub(super) fn sweep(&mut self, failures: &mut ErrorGraph) {
        self.since = 0;
        for index in 0..self.handles.len() {
            self.free_unused(index, failures);
        }
    }

    /// Frees a few allocations whose last handle is gone.
    pub(super) fn sweep_some(&mut self, failures: &mut ErrorGraph) {
        for index in self.newest {
            self.free_unused(index as usize, failures);
        }
        for _ in 0..OTHERS.min(self.handles.len()) {
            self.next = if self.next < self.handles.len() { self.next } else { 0 };
            self.free_unused(self.next, failures);
            self.next += 1;
        }
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
            if let Some(slot) = slot.take_if(|slot| slot.stream == stream) {
                self.bytes -= slot.size;
                *handle = None;
            }
        }
    }

    /// Returns the allocations that a handle or a binding refers to.
    pub(super) fn live(&self) -> impl Iterator<Item = &Slot<B>> {
        let used = self.handles.iter().map(|handle| handle.as_ref().is_some_and(|handle| !handle.is_free()));
        used.zip(&self.slots).filter(|(used, _)| *used).filter_map(|(_, slot)| slot.as_ref())
    }

    fn free_unused(&mut self, index: usize, failures: &mut ErrorGraph) {
        let unused = |handle: &mut ManagedMemoryHandle| handle.is_free();
        if self.handles.get_mut(index).is_none_or(|handle| handle.take_if(unused).is_none()) {
            return;
        }
        if let Some(mut slot) = self.slots[index].take() {
            self.bytes -= slot.size;
            slot.taint.clear(failures);
            self.vacant.push(index as u32);
        }
    }

    /// Returns the index of the allocation that a descriptor names. Its location may name a freed allocation, at which
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
