//! Memory that was in a guarded region is overwritten before it is freed, so that whoever still reads it by some other way
//! finds what is nothing's contents: a mapping that was made beside this library, or memory that a driver hands out
//! again as it is.
//!
//! At the addresses where it was nobody finds it, since nothing is mapped there any more. So it is mapped once more,
//! elsewhere and for nobody else. By then it has been taken out of the region, so that a failure here does no harm to the
//! operation that took it: memory is freed as it is, and the failure is logged.
#![allow(unsafe_code)]

use crate::driver::{Backend, Handle, Reservation};
use crate::types::{Access, Alignment, Bytes, Detail, Grant, Granularity, Operation, Result};

/// What every byte of freed memory is, where it was in a [guarded](crate::RegionBuilder::guarded) region. As an address it
/// is nobody's, as a number of two, four or eight bytes it is a negative one.
pub const POISON: u8 = 0xdf;

/// Overwrites memory that is about to be freed, which is mapped nowhere.
pub(crate) fn poison<B: Backend>(backend: &B, handle: &B::Handle, granularity: Granularity) {
    // It is the device's work, which can spoil a capture.
    let overwrite = || overwrite(backend, handle, granularity);
    match backend.deferred().unless_capturing(Operation::PoisonMemory, overwrite) {
        // What was on a device that died is gone with it; in a forked child all of it is the parent's.
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
    // SAFETY: the reservation is new, and large and aligned enough for the memory, which is of this backend.
    unsafe { scratch.map(Bytes::ZERO, handle) }?;
    let filled = fill(backend, &mut scratch, handle);
    // SAFETY: it is one whole mapping, whose address was told to no one, and the fill has been waited for.
    match unsafe { scratch.unmap(Bytes::ZERO, size) } {
        Ok(()) => filled,
        Err(error) => {
            // Freeing addresses with something mapped in them would corrupt a driver's books.
            std::mem::forget(scratch);
            filled.and(Err(error))
        }
    }
}

fn fill<B: Backend>(backend: &B, scratch: &mut B::Reservation, handle: &B::Handle) -> Result<()> {
    let (size, device) = (handle.size(), handle.properties().device);
    // SAFETY: the part is one whole mapping, and a device reaches its own memory.
    unsafe { scratch.set_access(Bytes::ZERO, size, &[Grant { device, access: Access::ReadWrite }]) }?;
    // SAFETY: all of it is mapped in one reservation, and the device may write it.
    unsafe { backend.fill(device, scratch.range().base, size, POISON) }
}
