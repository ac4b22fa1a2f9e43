//! Parts of mapped memory that another library's types point at while their owner is borrowed.
#![allow(unsafe_code)] // its implementors promise that the memory stays

use super::Region;
use super::data::By;
use crate::driver::{Backend, Stream};
use crate::types::{Address, Detail, Error, Grant, OffsetRange, Operation, Result};

/// An owner of mapped memory that can be borrowed: a [`Region`], or a block of a pool. For authors of extensions, such as the
/// views for cudarc in [gpu-vmm-cuda](https://docs.rs/gpu-vmm-cuda).
///
/// # Safety
///
/// While the owner stays borrowed as it was for [`lend`](LendMemory::lend), the addresses of the range belong to it alone. When
/// it is dropped or changed, it waits for the devices or for the stream before the memory serves anything else.
pub unsafe trait LendMemory {
    /// The backend's type.
    type Backend: Backend;

    /// Returns the backend whose memory it is.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    fn lender(&self, operation: Operation) -> Result<Self::Backend>;

    /// Checks that work on `stream` of the device in `grant` can use a range with the access in `grant`, and returns the range's
    /// first address. Offsets count from the owner's first byte. An empty range needs no memory behind it.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::NoAccess`], [`Detail::Poisoned`], the error of a suspended owner,
    /// and [`Detail::Unsupported`] for a stream that the owner does not wait for.
    fn lend(
        &self,
        operation: Operation,
        range: OffsetRange,
        grant: Grant,
        stream: Stream<'_>,
    ) -> Result<Address>;
}

// SAFETY: what a region has mapped changes by `&mut` alone, and each change waits as its `WaitFor` says: for all devices, or for
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
