//! Reading and writing physical memory outside of any region of the caller.
#![allow(unsafe_code)] // no device knows the addresses that are used here

use super::Region;
use super::map::check_inside;
use crate::driver::{Backend, WaitFor, check_same};
use crate::memory::PhysicalMemory;
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{Access, Bytes, Operation, Result};

impl<B: Backend> PhysicalMemory<B> {
    /// Copies bytes from the host into the memory, whether or not it is mapped, and waits until they are there. Does not wait for
    /// work that is queued on streams.
    ///
    /// The copy maps the memory at addresses of its own, which costs a reservation, a mapping, an access call and their removal.
    /// For many writes, map the memory in a [`Region`].
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] for a range beyond the end of the memory; the errors of building a region and of [`Region::map`]. After
    /// an error of the driver's copy, some of the bytes may have been written.
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        if !self.has(Operation::Write, offset, Bytes(bytes.len() as u64))? {
            return Ok(());
        }
        self.mapped_alone(Access::ReadWrite, |region| region.write(offset, bytes))
    }

    /// Copies bytes from the memory to the host, whether or not it is mapped, and waits until they are there.
    ///
    /// It costs as much as [`PhysicalMemory::write`]. Does not wait for work that is queued on streams.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::write`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        if !self.has(Operation::Read, offset, Bytes(bytes.len() as u64))? {
            return Ok(());
        }
        self.mapped_alone(Access::Read, |region| region.read(offset, bytes))
    }

    /// Copies a part of other memory into this one, whether or not they are mapped, and waits until it is there. The device that owns
    /// this memory makes the copy. Does not wait for work that is queued on streams.
    ///
    /// It maps both at addresses of their own, as [`PhysicalMemory::write`] does. Two parts of the same memory must not overlap: the
    /// bytes of the part are undefined then.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::write`] for either part, [`Detail::PeerUnreachable`] if this memory's device cannot reach the other
    /// memory, and those of [`Region::copy_from`].
    pub fn copy_from(&self, offset: Bytes, source: &Self, from: Bytes, length: Bytes) -> Result<()> {
        let operation = Operation::Copy;
        check_same(operation, source.backend(), self.backend())?;
        if !self.has(operation, offset, length)? || !source.has(operation, from, length)? {
            return Ok(());
        }
        source.mapped_alone(Access::Read, |there| {
            there.set_access(Bytes::ZERO, source.size(), self.device(), Access::Read)?;
            self.mapped_alone(Access::ReadWrite, |here| here.copy_from(offset, there, from, length))
        })
    }

    /// Returns false for a part without bytes.
    fn has(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<bool> {
        if length.is_zero() {
            return Ok(false);
        }
        check_inside(operation, offset, length, self.size()).map(|()| true)
    }

    /// Maps the memory at addresses of its own while `work` runs.
    fn mapped_alone(&self, access: Access, work: impl FnOnce(&mut Region<B>) -> Result<()>) -> Result<()> {
        let mut left = None;
        let done = self.mapped_under_lock(&mut left, access, work);
        end(left);
        done
    }

    /// Does the same for a caller that holds a lock. After an error, `left` receives the region, which the caller [ends](end)
    /// without the lock.
    pub(super) fn mapped_under_lock(
        &self,
        left: &mut Option<Region<B>>,
        access: Access,
        work: impl FnOnce(&mut Region<B>) -> Result<()>,
    ) -> Result<()> {
        let builder = Region::builder(self.backend()).memory(self.properties());
        let region = left.insert(builder.reserve(self.size()).build()?);
        region.map_with_access(Bytes::ZERO, std::slice::from_ref(self), self.device(), access)?;
        work(region)?;
        // SAFETY: no device knows the addresses, and the copy has completed.
        region.empty(unsafe { WaitFor::nothing() })?;
        *left = None;
        Ok(())
    }
}

/// Waits for the devices that a failed copy may still use, which calls observers of regions that were dropped, and removes its
/// mapping.
pub(super) fn end<B: Backend>(left: Option<Region<B>>) {
    if let Some(region) = left {
        // The error of the copy is returned.
        let _ = region.close(WaitFor::all_devices());
    }
}
