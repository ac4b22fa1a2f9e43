//! Regions that begin with the same memory, and part from it where they write.
#![allow(unsafe_code)] // promises that only a copy has used an address

use super::map::check_addresses;
use super::sharing::holder;
use super::suspension::Replacement;
use super::table::{Mapping, PlacedMapping};
use super::{Region, RegionBuilder};
use crate::driver::{Backend, WaitFor, check_same};
use crate::memory::PhysicalMemory;
use crate::types::{Access, AccessMap, Bytes, DeviceId, Error, OffsetRange, Operation, Result};
use std::slice;

impl<B: Backend> Region<B> {
    /// Maps the memory of the first `length` bytes in another region as well, at the same offsets. Both regions may only read it then.
    ///
    /// Each device that has access here has read access in both regions. Other mappings of the memory keep their access. No byte is
    /// copied: a sequence that continues another one shares its beginning, until it makes a part
    /// [private](Region::make_private). The part must consist of whole mappings without a
    /// hole, and nothing may be mapped there in the other region.
    ///
    /// Waits for the devices that may write here, whose access changes.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, Region, Result, WaitFor};
    /// # fn example<B: Backend>(backend: &B, prompt: &mut Region<B>) -> Result<()> {
    /// let page = Bytes::mib(2);
    /// let mut answer = Region::builder(backend).reserve(Bytes::mib(64)).build()?;
    /// prompt.fork(page * 3, &mut answer)?;
    /// // The last page is not full: the answer continues in a copy of its own.
    /// answer.make_private(page * 2, page, &mut Vec::new(), WaitFor::all_devices())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`](crate::Detail::ForeignHandle) for a region of another backend; the errors of [`Region::map`] for the
    /// other region, and those of [`Region::set_access`]. Both regions are then as before.
    pub fn fork(&mut self, length: Bytes, into: &mut Self) -> Result<()> {
        let operation = Operation::Map;
        check_same(operation, &into.backend, &self.backend)?;
        self.check_part(operation, Bytes::ZERO, length)?;
        self.layout.table.check_whole(operation, Bytes::ZERO, length)?;
        into.check_part(operation, Bytes::ZERO, length)?;
        into.layout.table.check_free(operation, Bytes::ZERO, length)?;
        let mut pieces = Vec::new();
        let mut writable = Vec::new();
        for (offset, mapping) in self.layout.table.touching(Bytes::ZERO, length) {
            let part = OffsetRange { offset, length: mapping.length() };
            into.check_part(operation, offset, part.length)?;
            into.check_crosses_reservation(operation, offset, part.length)?;
            let mut access = AccessMap::NONE;
            for grant in mapping.access.grants() {
                access = access.with(grant.device, Access::Read);
                if grant.access == Access::ReadWrite {
                    add(&mut writable, part, grant.device);
                }
            }
            pieces.push(PlacedMapping { offset, mapping: Mapping::new(mapping.memory.clone(), access) });
        }
        check_addresses(operation, into.address(), &pieces)?;
        into.layout.place(&pieces)?;
        let Err((error, lowered)) = self.change_access(&writable, Access::Read) else { return Ok(()) };
        // No device knows the addresses in the other region yet.
        let undone = into.layout.remove(&[OffsetRange { offset: Bytes::ZERO, length }]);
        let raised = self.change_access(&writable[..lowered], Access::ReadWrite).map_err(|(undo, _)| undo);
        Err(match undone.and(raised) {
            Ok(()) => error,
            Err(undo) => error.rollback_failed(undo),
        })
    }

    /// Gives a part memory of its own, with the same contents: devices that could read the part may write it afterwards.
    ///
    /// Pieces with another holder (a mapping, a clone, another process) are copied by their device into pieces of `list`, of the same
    /// size and properties, or into new ones, which are mapped in their place. Other pieces stay. Returns the size of the copies. The part must
    /// consist of whole mappings without a hole. Waits as `done` says before it copies, and for the devices whose access changes.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::create`], [`Region::copy_from`] and [`Region::swap`]. The region is then as before, but for pieces
    /// before the one that failed, and a piece that was taken out of the list for that one is there again. Those of
    /// [`Region::close`]: that piece has been replaced too. Those of [`Region::set_access`]: the part is private then. A second call
    /// does the rest.
    pub fn make_private(
        &mut self,
        offset: Bytes,
        length: Bytes,
        list: &mut Vec<PhysicalMemory<B>>,
        done: WaitFor<'_>,
    ) -> Result<Bytes> {
        let operation = Operation::Map;
        self.check_part(operation, offset, length)?;
        self.layout.table.check_whole(operation, offset, length)?;
        let mut shared = Vec::new();
        let mut readable = Vec::new();
        for (offset, mapping) in self.layout.table.touching(offset, length) {
            let part = OffsetRange { offset, length: mapping.length() };
            if holder(operation, &mapping.memory, 1).is_some() {
                shared.push((offset, mapping.memory.clone()));
            }
            for grant in mapping.access.grants().filter(|grant| grant.access == Access::Read) {
                add(&mut readable, part, grant.device);
            }
        }
        let mut copied = Bytes::ZERO;
        for (offset, memory) in shared {
            self.replace_by_copy(offset, &memory, list, done)?;
            copied += memory.size();
        }
        self.change_access(&readable, Access::ReadWrite).map_err(|(error, _)| error)?;
        Ok(copied)
    }

    /// Copies a piece, and maps the copy in its place.
    fn replace_by_copy(
        &mut self,
        offset: Bytes,
        memory: &PhysicalMemory<B>,
        list: &mut Vec<PhysicalMemory<B>>,
        done: WaitFor<'_>,
    ) -> Result<()> {
        let (size, properties) = (memory.size(), memory.properties());
        let copy = Replacement::obtain(list, &self.backend, size, properties)?;
        match self.exchange_for(offset, &copy.memory, done) {
            // SAFETY: the work on this part was waited for, and only the copy has used the other addresses.
            Ok(other) => other.close(unsafe { WaitFor::nothing() }),
            Err(error) => {
                list.extend(copy.taken());
                Err(error)
            }
        }
    }

    /// Copies a piece into another one and exchanges them. Returns the region that has the old one.
    fn exchange_for(&mut self, offset: Bytes, copy: &PhysicalMemory<B>, done: WaitFor<'_>) -> Result<Self> {
        let (size, properties) = (copy.size(), copy.properties());
        let mut other = RegionBuilder::new(&self.backend).memory(properties).reserve(size).build()?;
        other.map_with_access(Bytes::ZERO, slice::from_ref(copy), properties.device, Access::ReadWrite)?;
        self.wait(&self.layout, offset, size, done)?;
        other.copy_from(Bytes::ZERO, self, offset, size)?;
        // SAFETY: the work on this part was waited for, and only the copy has used the other addresses.
        self.swap(offset, &mut other, Bytes::ZERO, size, unsafe { WaitFor::nothing() })?;
        Ok(other)
    }

    /// Sets the access of devices to parts. After an error, returns how many parts have it.
    fn change_access(
        &mut self,
        parts: &[(OffsetRange, DeviceId)],
        access: Access,
    ) -> std::result::Result<(), (Error, usize)> {
        for (number, (part, device)) in parts.iter().enumerate() {
            self.set_access(part.offset, part.length, *device, access).map_err(|error| (error, number))?;
        }
        Ok(())
    }
}

/// Adds a part of a device, as one with the part before it: each change of access waits for the device.
fn add(parts: &mut Vec<(OffsetRange, DeviceId)>, part: OffsetRange, device: DeviceId) {
    match parts.iter_mut().rfind(|(last, of)| *of == device && last.end() == part.offset) {
        Some((last, _)) => last.length += part.length,
        None => parts.push((part, device)),
    }
}
