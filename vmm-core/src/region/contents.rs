//! Reading and writing physical memory outside of any region of the caller.
#![allow(unsafe_code)] // no device knows the addresses that are used here

use super::Region;
use super::map::check_inside;
use crate::driver::{Backend, WaitFor};
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
        self.mapped_alone(Operation::Write, offset, bytes.len(), |region| region.write(offset, bytes))
    }

    /// Copies bytes from the memory to the host, whether or not it is mapped, and waits until they are there.
    ///
    /// It costs as much as [`PhysicalMemory::write`]. Does not wait for work that is queued on streams.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::write`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        self.mapped_alone(Operation::Read, offset, bytes.len(), |region| region.read(offset, bytes))
    }

    /// Maps the memory at addresses of its own while `work` runs.
    fn mapped_alone(
        &self,
        operation: Operation,
        offset: Bytes,
        length: usize,
        work: impl FnOnce(&mut Region<B>) -> Result<()>,
    ) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        check_inside(operation, offset, Bytes(length as u64), self.size())?;
        let builder = Region::builder(self.backend()).memory(self.properties());
        let mut region = builder.reserve(self.size()).build()?;
        region.map_with_access(Bytes::ZERO, std::slice::from_ref(self), self.device(), Access::ReadWrite)?;
        let done = work(&mut region);
        let wait = match done {
            // SAFETY: no device knows the addresses, and the copy has completed.
            Ok(()) => unsafe { WaitFor::nothing() },
            Err(_) => WaitFor::all_devices(),
        };
        done.and(region.close(wait))
    }
}
