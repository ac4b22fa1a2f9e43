//! Overwriting of memory from guarded regions before it is freed.
//!
//! Code that still reads such memory then finds a recognizable pattern: through a mapping made without this library, or
//! because the driver reuses memory without clearing it.
//!
//! At that time, the memory is unmapped and no longer part of a region. It is mapped once more, at private scratch addresses.
//! A failure does not affect the operation that freed the memory: it is logged, and the memory is freed without overwriting.
#![allow(unsafe_code)]

use crate::driver::{Backend, Handle, Reservation};
use crate::types::{Access, Alignment, Bytes, Detail, Grant, Granularity, Operation, Result};

/// The value of every byte of memory freed from a [guarded](crate::RegionBuilder::guarded) region. An address of such bytes is
/// never valid. A signed integer of two, four or eight such bytes is negative.
pub const POISON: u8 = 0xdf;

/// Overwrites memory that is about to be freed and is not mapped anywhere.
pub(crate) fn poison<B: Backend>(backend: &B, handle: &B::Handle, granularity: Granularity) {
    // The device overwrites the memory, which can invalidate a capture.
    let overwrite = || overwrite(backend, handle, granularity);
    match backend.deferred().unless_known(backend, Operation::PoisonMemory, overwrite) {
        // The contents of a lost device are gone. In a forked child, the memory belongs to the parent.
        Ok(()) => {}
        Err(error) => match error.detail() {
            Detail::Capturing { source: None } | Detail::DeviceLost { .. } | Detail::Forked => {}
            _ => backend.drop_log().record(error),
        },
    }
}

fn overwrite<B: Backend>(backend: &B, handle: &B::Handle, granularity: Granularity) -> Result<()> {
    let size = handle.size();
    let unit = backend.reservation_unit().max(backend.granularity()).max(granularity);
    let alignment: Alignment = unit.into();
    let addresses = unit.round_up(size).unwrap_or(size);
    // SAFETY: the size is a multiple of the reservation unit.
    let mut scratch = unsafe { backend.reserve(addresses, alignment, None) }?;
    // SAFETY: the reservation is new, large enough and aligned for the memory, which belongs to this backend.
    unsafe { scratch.map(Bytes::ZERO, handle) }?;
    let filled = fill(backend, &mut scratch, handle);
    // SAFETY: it is one whole mapping at an address that no other code knows, and the fill has completed.
    match unsafe { scratch.unmap(Bytes::ZERO, size) } {
        Ok(()) => filled,
        Err(error) => {
            // Freeing addresses with mapped memory would corrupt the driver's state, so the reservation is leaked.
            std::mem::forget(scratch);
            filled.and(Err(error))
        }
    }
}

fn fill<B: Backend>(backend: &B, scratch: &mut B::Reservation, handle: &B::Handle) -> Result<()> {
    let (size, device) = (handle.size(), handle.properties().device);
    // SAFETY: the range is one whole mapping, and a device can access its own memory.
    unsafe { scratch.set_access(Bytes::ZERO, size, &[Grant { device, access: Access::ReadWrite }]) }?;
    // SAFETY: the range is mapped in one reservation, and the device has write access.
    unsafe { backend.fill(device, scratch.range().base, size, POISON) }
}
