//! Ranges of mapped memory for the types of other libraries, while the owner of the memory is borrowed.
#![allow(unsafe_code)] // implementors promise that the memory stays mapped

use super::Region;
use super::data::By;
use crate::driver::{Backend, Stream};
use crate::types::{Address, Detail, Error, Grant, OffsetRange, Operation, Result};

/// An owner of mapped memory that can be borrowed: a [`Region`] or a block of a pool. For authors of extensions, such as the
/// views for cudarc in [gpu-vmm-cuda](https://docs.rs/gpu-vmm-cuda).
///
/// # Safety
///
/// While the owner stays borrowed as it was for [`lend`](LendMemory::lend), the addresses of the range belong to it alone. When
/// the owner is dropped or changed, it waits for the devices or for the stream before other data can use the memory.
pub unsafe trait LendMemory {
    /// The backend's type.
    type Backend: Backend;

    /// Returns the backend that owns the memory.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    fn lender(&self, operation: Operation) -> Result<Self::Backend>;

    /// Checks that work on `stream` of the device in `grant` can use a range with the access in `grant`, and returns the range's
    /// first address. Offsets count from the owner's first byte. An empty range needs no mapped memory.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::NoAccess`], [`Detail::Poisoned`], the error of a suspended owner,
    /// and [`Detail::Unsupported`] for a stream for which the owner does not wait.
    fn lend(
        &self,
        operation: Operation,
        range: OffsetRange,
        grant: Grant,
        stream: Stream<'_>,
    ) -> Result<Address>;
}

// SAFETY: the mappings of a region change by `&mut` alone, and each change waits as its `WaitFor` says: for all devices, or for
// what an unsafe call has promised.
unsafe impl<B: Backend> LendMemory for Region<B> {
    type Backend = B;

    fn lender(&self, _: Operation) -> Result<B> {
        Ok(self.backend.clone())
    }

    fn lend(&self, operation: Operation, range: OffsetRange, grant: Grant, _: Stream<'_>) -> Result<Address> {
        let limit = self.reserved();
        if range.offset > limit {
            return Err(Error::new(operation, Detail::OutOfRange { range, limit }));
        }
        self.segments(operation, range.offset, range.length, grant.access, By::Device(grant.device))?;
        Ok(self.address() + range.offset)
    }
}
