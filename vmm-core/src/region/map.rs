//! The single operations map, unmap and set access, and their checks.

use super::table::{Mapping, PlacedMapping};
use super::{BackingEffect, Region, check_aligned};
use crate::driver::{Backend, WaitFor, check_virtual_memory, wait_for_devices};
use crate::memory::PhysicalMemory;
use crate::trace::span;
use crate::types::{
    Access, AccessMap, Address, Bytes, Detail, DeviceId, Error, Grant, OffsetRange, Operation, Properties,
    Result,
};

impl<B: Backend> Region<B> {
    /// Maps a piece of physical memory as a whole at an offset. No device has access yet. CUDA: `cuMemMap`; HIP: `hipMemMap`.
    ///
    /// The same memory can be mapped at several offsets and in several regions.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`], [`Detail::Unaligned`], [`Detail::OutOfRange`], [`Detail::AlreadyMapped`],
    /// [`Detail::CrossesReservation`] if the piece would lie in two of the region's reservations.
    pub fn map(&mut self, offset: Bytes, memory: &PhysicalMemory<B>) -> Result<()> {
        self.map_as(offset, std::slice::from_ref(memory), None)
    }

    /// Maps pieces of physical memory one behind the other, each as [`Region::map`] does, and sets the access of `device` to them.
    ///
    /// After an error all pieces are unmapped again. CUDA: `cuMemMap` for each piece and `cuMemSetAccess` once; HIP: `hipMemMap` and
    /// `hipMemSetAccess`.
    ///
    /// # Errors
    ///
    /// The errors of [`Region::map`], and of [`Region::set_access`] for the device.
    pub fn map_with_access(
        &mut self,
        offset: Bytes,
        memory: &[PhysicalMemory<B>],
        device: DeviceId,
        access: Access,
    ) -> Result<()> {
        self.map_as(offset, memory, Some(Grant { device, access }))
    }

    fn map_as(&mut self, offset: Bytes, memory: &[PhysicalMemory<B>], grant: Option<Grant>) -> Result<()> {
        let operation = Operation::Map;
        self.check_active(operation)?;
        let mut pieces = Vec::with_capacity(memory.len());
        let mut end = offset;
        for piece in memory {
            piece.check_belongs_to(operation, &self.backend)?;
            let length = piece.size();
            self.check_part(operation, end, length)?;
            let mut access = AccessMap::NONE;
            if let Some(grant) = grant {
                check_reach(&self.backend, operation, grant.device, &piece.properties())?;
                access = access.with(grant.device, grant.access);
            }
            pieces.push(PlacedMapping { offset: end, mapping: Mapping::new(piece.clone(), access) });
            end += length;
        }
        check_addresses(operation, self.address(), &pieces)?;
        for piece in &pieces {
            self.layout.table.check_free(operation, piece.offset, piece.mapping.length())?;
            self.check_crosses_reservation(operation, piece.offset, piece.mapping.length())?;
        }
        span!(Map, address = %(self.address() + offset), bytes = (end - offset).0);
        self.layout.place(&pieces)
    }

    /// Unmaps a part, which must consist of whole mappings without a hole.
    ///
    /// The addresses stay reserved. The memory returns to its device unless a clone or another mapping holds it. HIP 7.1 and 7.2
    /// keep the memory until other memory is mapped there, or until the region is closed or suspended. CUDA: `cuMemUnmap`; HIP:
    /// `hipMemUnmap`.
    ///
    /// Waits as `done` says before it unmaps anything.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], [`Detail::Unaligned`], [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::PartialMapping`], or
    /// the error of waiting or of the driver. Everything is then still mapped.
    pub fn unmap(&mut self, offset: Bytes, length: Bytes, done: WaitFor<'_>) -> Result<()> {
        let operation = Operation::Unmap;
        self.check_part(operation, offset, length)?;
        self.layout.table.check_whole(operation, offset, length)?;
        span!(Unmap, address = %(self.address() + offset), bytes = length.0);
        let part = OffsetRange { offset, length };
        let announced = self.announce(operation, BackingEffect::Removed, || vec![part])?;
        if let Err(error) = self.wait(&self.layout, offset, length, done) {
            return announced.end(&self.layout, Err(error));
        }
        let removed = self.layout.remove(&[part]);
        announced.end(&self.layout, removed)
    }

    /// Sets the access of a device to the mappings of a part, which must consist of whole mappings without a hole. Other devices
    /// keep their access. CUDA: `cuMemSetAccess`; HIP: `hipMemSetAccess`.
    ///
    /// If the device has another access already, the call first waits for the device, because on HIP the change removes the
    /// access for a moment. [`DeviceId::HOST`] is the CPU, for whose work the call does not wait.
    ///
    /// # Errors
    ///
    /// Those of [`Region::unmap`], [`Detail::NoSuchDevice`], [`Detail::PeerUnreachable`], [`Detail::Unsupported`] for the host if
    /// the driver gives it no access to such memory, or the driver's error. Every device then has the access that it had.
    pub fn set_access(
        &mut self,
        offset: Bytes,
        length: Bytes,
        device: DeviceId,
        access: Access,
    ) -> Result<()> {
        let operation = Operation::SetAccess;
        self.check_part(operation, offset, length)?;
        self.layout.table.check_whole(operation, offset, length)?;
        let mut owner = None;
        let mut changes = false;
        for (_, mapping) in self.layout.table.touching(offset, length) {
            let properties = mapping.memory.properties();
            if owner.replace(properties) != Some(properties) {
                check_reach(&self.backend, operation, device, &properties)?;
            }
            let now = mapping.access.get(device);
            changes |= now != Access::None && now != access;
        }
        span!(SetAccess, address = %(self.address() + offset), bytes = length.0, device = device.0);
        if changes && !device.is_host() {
            wait_for_devices(&self.backend, operation, std::iter::once(device))?;
        }
        self.layout.set_access(OffsetRange { offset, length }, device, access)
    }

    /// Refuses a part that crosses the border of two reservations.
    pub(super) fn check_crosses_reservation(
        &self,
        operation: Operation,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        match self.layout.spans.first_cut(offset, length) {
            Some(cut) if cut.range.length < length => Err(Error::new(
                operation,
                Detail::CrossesReservation {
                    range: OffsetRange { offset, length },
                    border: offset + cut.range.length,
                },
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a part that is empty, unaligned, or not wholly in the region, and every part of a suspended region.
    pub(super) fn check_part(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<()> {
        self.check_virtual(operation)?;
        self.check_inside(operation, offset, length)?;
        check_aligned(operation, "offset", offset.0, self.granularity)?;
        check_aligned(operation, "length", length.0, self.granularity)
    }

    /// Refuses a part that is empty or not wholly in the region, and every part of a suspended region.
    pub(crate) fn check_inside(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<()> {
        self.check_active(operation)?;
        check_inside(operation, offset, length, self.reserved())
    }
}

/// Refuses a part that is empty or ends behind `limit`.
pub(crate) fn check_inside(operation: Operation, offset: Bytes, length: Bytes, limit: Bytes) -> Result<()> {
    if length.is_zero() {
        return Err(Error::new(operation, Detail::ZeroSize));
    }
    let overflow = || Error::new(operation, Detail::Overflow { base: offset.0, length: length.0 });
    let end = offset.checked_add(length).ok_or_else(overflow)?;
    if end > limit {
        Err(Error::new(operation, Detail::OutOfRange { range: OffsetRange { offset, length }, limit }))
    } else {
        Ok(())
    }
}

/// Refuses memory that would not lie at a multiple of its own granularity, which may be larger than the region's.
pub(super) fn check_addresses<B: Backend>(
    operation: Operation,
    base: Address,
    pieces: &[PlacedMapping<B>],
) -> Result<()> {
    pieces.iter().try_for_each(|PlacedMapping { offset, mapping }| {
        let address = base.0.saturating_add(offset.0);
        check_aligned(operation, "address", address, mapping.memory.granularity())
    })
}

/// Checks that a device exists and can reach memory with these properties.
///
/// # Errors
///
/// [`Detail::NoSuchDevice`], [`Detail::PeerUnreachable`], [`Detail::Unsupported`] for the host if the driver gives it no access
/// to such memory.
pub fn check_reach<B: Backend>(
    backend: &B,
    operation: Operation,
    device: DeviceId,
    memory: &Properties,
) -> Result<()> {
    if device.is_host() {
        return backend.check_host_access(operation, memory);
    }
    backend.device(operation, device)?;
    let owner = memory.device;
    if device == owner {
        return Ok(());
    }
    check_virtual_memory(operation, backend, device)?;
    if memory.location.is_host() || backend.can_access(device, owner)? {
        return Ok(());
    }
    Err(Error::new(operation, Detail::PeerUnreachable { device, owner }))
}
