//! Ranges of mapped memory for the types of other libraries, while the owner of the memory is borrowed.
#![allow(unsafe_code)] // implementors promise that the memory stays mapped

use super::Region;
use super::data::Accessor;
use crate::driver::{Backend, Stream};
use crate::types::{Address, Bytes, Detail, Error, Grant, OffsetRange, Operation, Result};
use bytemuck::Pod;
use std::any::type_name;

/// An owner of mapped memory that can be borrowed: a [`Region`] or a block of a pool. For authors of extensions, such as the
/// views for cudarc in [gpu-vmm-cuda](https://docs.rs/gpu-vmm-cuda) and for HIP's streams in
/// [gpu-vmm-hip](https://docs.rs/gpu-vmm-hip).
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

/// Lends `count` elements from `offset` on, as [`LendMemory::lend`] does for bytes, and returns the first one's address.
///
/// # Errors
///
/// Those of [`LendMemory::lend`]; [`Detail::TooManyElements`] if the length overflows; [`Detail::Unsupported`] if the first element
/// is not aligned or the type has size zero.
pub fn lend_elements<T: Pod>(
    memory: &impl LendMemory,
    operation: Operation,
    offset: Bytes,
    count: usize,
    grant: Grant,
    stream: Stream<'_>,
) -> Result<Address> {
    let element = size_of::<T>();
    let length = Bytes::of::<T>(count)
        .ok_or_else(|| Error::new(operation, Detail::TooManyElements { count, element }))?;
    let address = memory.lend(operation, OffsetRange { offset, length }, grant, stream)?;
    let alignment = Bytes(align_of::<T>() as u64);
    if element == 0 || !address.is_aligned_to(alignment) {
        let reason = format!(
            "{count} elements of type {} ({element} bytes each, alignment {alignment}) cannot begin at offset {offset}, \
             address {address}; pass a type with a size, and an offset that is aligned",
            type_name::<T>()
        );
        return Err(Error::new(operation, Detail::Unsupported { reason }));
    }
    Ok(address)
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
        self.segments(operation, range.offset, range.length, grant.access, Accessor::Device(grant.device))?;
        Ok(self.address() + range.offset)
    }
}
