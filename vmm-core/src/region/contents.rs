//! The bytes of physical memory that is mapped nowhere, or anywhere.
#![allow(unsafe_code)] // no device is told of the addresses that are used here

use super::Region;
use super::map::check_inside;
use crate::driver::{Backend, WaitFor};
use crate::memory::PhysicalMemory;
#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Access, Bytes, Operation, Result};

impl<B: Backend> PhysicalMemory<B> {
    /// Copies bytes from the host into the memory, wherever it is mapped, and waits until they are there.
    ///
    /// The memory is mapped at addresses of its own for the copy, which costs a reservation, a mapping, an access call and
    /// their removal: for many writes, map it in a [`Region`].
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`] for no bytes, [`Detail::OutOfRange`] for bytes that the memory does not have, or the driver's error;
    /// then some of the bytes may have been written.
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        self.mapped_alone(Operation::Write, offset, bytes.len(), |region| region.write(offset, bytes))
    }

    /// Copies bytes from the memory to the host, wherever it is mapped, and waits until they are there. It costs what
    /// [`PhysicalMemory::write`] does. Work that is queued on streams is not waited for.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::write`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        self.mapped_alone(Operation::Read, offset, bytes.len(), |region| region.read(offset, bytes))
    }

    /// Maps the memory at addresses of its own for as long as `work` runs.
    fn mapped_alone(
        &self,
        operation: Operation,
        offset: Bytes,
        length: usize,
        work: impl FnOnce(&mut Region<B>) -> Result<()>,
    ) -> Result<()> {
        check_inside(operation, offset, Bytes(length as u64), self.size())?;
        let builder = Region::builder(self.backend()).memory(self.properties());
        let mut region = builder.reserve(self.size()).build()?;
        region.map_with_access(Bytes::ZERO, self, self.device(), Access::ReadWrite)?;
        let done = work(&mut region);
        // SAFETY: no device knows the addresses, and the copies have been waited for.
        let closed = region.close(unsafe { WaitFor::nothing() });
        done.and(closed)
    }
}
