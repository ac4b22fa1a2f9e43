//! Regions of devices without virtual memory management: one plain allocation, which is copied to grow and to shrink.
//!
//! Such a region has one mapping, of all its memory, in a span without a reservation. Every operation that reads these records works
//! as in other regions. Operations that change mappings are refused.
#![allow(unsafe_code)]

use super::grow::{Growth, GrowthKind, Shrunk};
use super::layout::Layout;
use super::table::{Mapping, PlacedMapping};
use super::{BackingEffect, Placement, Region, rounded};
use crate::driver::{Backend, WaitFor, check_virtual_memory};
use crate::memory::{PhysicalMemory, rounded_size};
use crate::trace::span;
use crate::types::{AddressRange, Bytes, Detail, DeviceId, Error, Operation, Properties, Result};

impl<B: Backend> Region<B> {
    /// Reports whether the region is one plain allocation (`cuMemAlloc`, `hipMalloc`), because its device has no virtual memory
    /// management: see [`Device::no_virtual_memory`](crate::Device::no_virtual_memory).
    ///
    /// Such a region **has another address after each step of growth and after each shrinking**: it allocates memory, copies the
    /// contents there and frees the old memory. Before that it waits for the devices, also in [`grow_to`](Region::grow_to), which
    /// never waits otherwise. While it grows, the device needs memory for the old and the new size. It has no address while it is
    /// empty, and no limit but the device's memory.
    ///
    /// Reading, writing, filling and copying work as in other regions. An operation that keeps addresses while memory changes, maps
    /// memory, sets access, or shares memory with other processes returns [`Detail::Unsupported`] with the reason: map, unmap, swap,
    /// banks, suspend, moving to another device, guards, exact and restorable places, dma-bufs, snapshots.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.growing.plain
    }

    /// Refuses an operation that needs virtual memory management if the region has none.
    pub(super) fn check_virtual(&self, operation: Operation) -> Result<()> {
        if !self.growing.plain {
            return Ok(());
        }
        check_virtual_memory(operation, &self.backend, self.growing.memory.device)
    }

    /// Grows to at least `size` bytes at another address.
    pub(super) fn grow_plain(&mut self, device: DeviceId, size: Bytes, done: WaitFor<'_>) -> Result<Growth> {
        let operation = Operation::Grow;
        if device != self.growing.memory.device {
            self.check_virtual(operation)?;
        }
        let (target, before) = (rounded(operation, size, self.granularity)?, self.end());
        if target > before {
            span!(Grow, address = %self.address(), to = target.0);
            self.replace(operation, target, before, done)?;
        }
        let (how, end) = (if target > before { GrowthKind::Copied } else { GrowthKind::Within }, self.end());
        Ok(Growth { how, address: self.address(), end, added: end - before })
    }

    /// Shrinks to `size` bytes, at another address unless the region has that size already.
    pub(super) fn shrink_plain(&mut self, size: Bytes, done: WaitFor<'_>) -> Result<Shrunk> {
        let operation = Operation::Shrink;
        let before = self.end();
        // The size is not above the end, a multiple of the granularity.
        let target = self.granularity.round_up(size).unwrap_or(before);
        if target.is_zero() && !before.is_zero() {
            self.release(operation, done)?;
        } else if target < before {
            self.replace(operation, target, target, done)?;
        }
        Ok(Shrunk { end: self.end(), removed: before - self.end() })
    }

    /// Waits until no device uses the memory.
    fn wait_for_all(&self, done: WaitFor<'_>) -> Result<()> {
        self.wait(&self.layout, Bytes::ZERO, self.end(), done)
    }

    /// Frees all memory.
    fn release(&mut self, operation: Operation, done: WaitFor<'_>) -> Result<()> {
        let announced = self.announce(operation, BackingEffect::Removed, || self.layout.parts())?;
        let waited = self.wait_for_all(done);
        if waited.is_ok() {
            let layout = Layout::plain(&self.backend, self.granularity, None);
            layout.record().continue_from(self.layout.record());
            self.layout = layout;
        }
        announced.end(&self.layout, waited)
    }

    /// Allocates `target` bytes, copies the first `kept` bytes there, and frees the old memory. The region is as before after an
    /// error.
    fn replace(&mut self, operation: Operation, target: Bytes, kept: Bytes, done: WaitFor<'_>) -> Result<()> {
        let properties = self.growing.memory;
        let size = rounded_size(&self.backend, operation, target, &properties)?;
        let (memory, base) = PhysicalMemory::allocate(&self.backend, size, properties, self.alignment)?;
        let mut layout =
            Layout::plain(&self.backend, self.granularity, Some(AddressRange { base, size: memory.size() }));
        let access = self.growing.access_to(properties.device);
        layout.place(&[PlacedMapping { offset: Bytes::ZERO, mapping: Mapping::new(memory, access) }])?;
        let announced =
            self.announce(operation, BackingEffect::Moved { to: base }, || self.layout.parts())?;
        // Work that is queued on the old memory may still write it.
        let waited = self.wait_for_all(done);
        let copied = waited.and_then(|()| {
            if kept.is_zero() {
                return Ok(());
            }
            // SAFETY: both are plain allocations of the device with at least this size, and they do not overlap.
            unsafe { self.backend.copy(properties.device, base, self.address(), kept) }
        });
        if copied.is_ok() {
            layout.record().continue_from(self.layout.record());
            self.layout = layout;
        }
        announced.end(&self.layout, copied)
    }
}

/// Refuses settings of a new region that a plain allocation cannot have.
pub(super) fn check_settings(
    operation: Operation,
    memory: &Properties,
    others: bool,
    placement: Placement,
    is_kept: bool,
) -> Result<()> {
    let what = match placement {
        _ if *memory != Properties::on(memory.device) => "memory with further properties",
        _ if others => "access of other devices",
        Placement::Exact(_) => "an exact address",
        Placement::Restorable => "a restorable address",
        Placement::Below(_) => "addresses below a limit",
        _ if is_kept => "portable or guarded addresses",
        Placement::Anywhere | Placement::Prefer(_) => return Ok(()),
    };
    let reason = format!(
        "{} has no virtual memory management, and a region on it, which is a plain allocation, cannot have {what}",
        memory.device
    );
    Err(Error::new(operation, Detail::Unsupported { reason }))
}
