//! Where addresses are to be, and a reservation there.
#![allow(unsafe_code)]

use super::check_aligned;
use crate::driver::{Backend, Reservation};
use crate::types::{Address, AddressRange, Alignment, Bytes, Detail, Error, Granularity, Operation, Result};

/// The most addresses that a process can have on any platform that GPUs run on: 47 bits.
pub const ADDRESS_SPACE: Bytes = Bytes(1 << 47);

/// Where a region is to be. A hint is a wish to a driver: it may answer success with another address, so the answer
/// is always compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Wherever the driver likes.
    #[default]
    Anywhere,
    /// Here if it is free, else wherever the driver likes; [`Region::address`](crate::Region::address) tells.
    Prefer(Address),
    /// Here or nowhere.
    Exact(Address),
    /// At a random place of a part of the address space from which other processes can be given the same addresses, on
    /// this device, another one, or the other vendor's: from 0x3800_0000_0000 on, 24 TiB. A region that is made so is
    /// [portable](crate::RegionBuilder::portable), and moves to such a place again where it has to move.
    ///
    /// Each region takes what it reserves of those 24 TiB, in this process and in every one that is to have the same
    /// addresses beside its own: say how much to [reserve](crate::RegionBuilder::reserve).
    Restorable,
}

/// A number of addresses, rounded up, if a process can have that many.
pub(crate) fn rounded(operation: Operation, size: Bytes, granularity: Granularity) -> Result<Bytes> {
    if size.is_zero() {
        return Err(Error::new(operation, Detail::ZeroSize));
    }
    match granularity.round_up(size) {
        Some(rounded) if rounded <= ADDRESS_SPACE => Ok(rounded),
        _ => Err(Error::new(operation, Detail::AddressSpaceExhausted { size, limit: ADDRESS_SPACE })),
    }
}

/// Refuses a hint that is not aligned, or from which the size runs over the end of the address space.
pub(super) fn check_hint(
    operation: Operation,
    address: Address,
    size: Bytes,
    alignment: Alignment,
) -> Result<()> {
    check_aligned(operation, "address", address.0, as_granularity(alignment))?;
    match address.checked_add(size) {
        Some(_) => Ok(()),
        None => Err(Error::new(operation, Detail::Overflow { base: address.0, length: size.0 })),
    }
}

/// An alignment is a power of two as well.
pub(super) fn as_granularity(alignment: Alignment) -> Granularity {
    Granularity::new(alignment.bytes()).unwrap_or(Granularity::BYTE)
}

/// Reserves addresses wherever the driver likes, near a hint or there, and compares the driver's answer with what was asked.
/// Addresses that do not fit are given back.
pub(super) fn reserve_near<B: Backend>(
    backend: &B,
    operation: Operation,
    size: Bytes,
    alignment: Alignment,
    hint: Option<Address>,
) -> Result<B::Reservation> {
    // SAFETY: the size is a multiple of the reservation unit and not zero, the hint one of the granularity.
    let reservation = unsafe { backend.reserve(size, alignment, hint) }?;
    check_answer(operation, reservation.range(), size, alignment)?;
    Ok(reservation)
}

/// The same at one address and no other.
pub(super) fn reserve_at<B: Backend>(
    backend: &B,
    operation: Operation,
    size: Bytes,
    alignment: Alignment,
    wanted: Address,
) -> Result<B::Reservation> {
    // SAFETY: as above.
    let reservation = unsafe { backend.reserve(size, alignment, Some(wanted)) }?;
    let range = reservation.range();
    if range.base != wanted {
        return Err(Error::new(operation, Detail::AddressTaken { wanted, offered: range.base }));
    }
    check_answer(operation, range, size, alignment)?;
    Ok(reservation)
}

fn check_answer(operation: Operation, range: AddressRange, size: Bytes, alignment: Alignment) -> Result<()> {
    if range.size == size && range.base.is_aligned_to(alignment.bytes()) {
        return Ok(());
    }
    let what = format!("{size} with an alignment of {} were asked for, and {range} came", alignment.bytes());
    Err(Error::new(operation, Detail::DriverContractViolated { what }))
}
