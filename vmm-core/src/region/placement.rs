//! The place of a range of addresses, and the checks of what the driver returns for it.
#![allow(unsafe_code)]

use super::check_aligned;
use crate::driver::{Backend, Reservation};
use crate::types::{Address, AddressRange, Alignment, Bytes, Detail, Error, Granularity, Operation, Result};

/// The size of the address space of a process on every platform that GPUs run on: 47 bits.
pub const ADDRESS_SPACE: Bytes = Bytes(1 << 47);

/// The place of a new region. Address hints are advisory: a driver may return success with another address, so the returned
/// address is always compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Any address that the driver chooses.
    #[default]
    Anywhere,
    /// This address if it is free, else any address; [`Region::address`](crate::Region::address) returns it.
    Prefer(Address),
    /// This address, or an error.
    Exact(Address),
    /// A random address in a part of the address space in which other processes can reserve the same addresses, on this device,
    /// on another, or on the other vendor's: the 24 TiB from 0x3800_0000_0000 on. The region is
    /// [portable](crate::RegionBuilder::portable). If it has to move, it moves to such an address again.
    ///
    /// Each region uses some of these 24 TiB in this process, and in every process that reserves the same addresses besides its
    /// own. Set the size with [`reserve`](crate::RegionBuilder::reserve).
    ///
    /// On Windows these are the 448 GiB from 0x10_0000_0000 on: CUDA's driver honours no others there. A process on Linux may
    /// not get the same addresses.
    ///
    /// On HIP 6 a region may get the addresses of an earlier one that has ended. The snapshots of both cannot be restored into one
    /// process.
    Restorable,
    /// Any addresses that are all below this one: `Address(1 << 40)` for hardware that reaches 40 bits, `Address(1 << 32)` for 32.
    /// Guards lie below it too, and a region that grows, moves or is restored from a snapshot stays below it.
    ///
    /// Uses the driver's choice if that is below the limit, and passes random hints below it otherwise. CUDA's driver for Linux
    /// chooses addresses below 2^40 itself, and follows hints of 2 GiB to 4 GiB (H200, driver 580.159.04).
    Below(Address),
}

/// Rounds a number of addresses up, and refuses more than a process can have.
pub(crate) fn rounded(operation: Operation, size: Bytes, granularity: Granularity) -> Result<Bytes> {
    if size.is_zero() {
        return Err(Error::new(operation, Detail::ZeroSize));
    }
    match granularity.round_up(size) {
        Some(rounded) if rounded <= ADDRESS_SPACE => Ok(rounded),
        _ => Err(Error::new(operation, Detail::ExceedsAddressSpace { size, limit: ADDRESS_SPACE })),
    }
}

/// Refuses a hint that is not aligned, or from which the size exceeds the largest address.
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

/// The same power of two as a granularity.
pub(super) fn as_granularity(alignment: Alignment) -> Granularity {
    Granularity::new(alignment.bytes()).unwrap_or(Granularity::BYTE)
}

/// Reserves addresses at or near a hint, or anywhere without one, and checks the range that the driver returns. A range that
/// fails the check is released.
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

/// Reserves exactly the addresses from `wanted` on.
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

/// Reserves addresses within a range that the backend has kept; `None` if it keeps none that fit.
pub(super) fn reserve_kept<B: Backend>(
    backend: &B,
    size: Bytes,
    alignment: Alignment,
    within: AddressRange,
    random: u64,
) -> Option<B::Reservation> {
    // SAFETY: as above.
    let reservation = unsafe { backend.reserve_kept(size, alignment, within, random) }?;
    let range = reservation.range();
    let fits = range.size == size && within.base <= range.base && range.end() <= within.end();
    (fits && range.base.is_aligned_to(alignment.bytes())).then_some(reservation)
}

fn check_answer(operation: Operation, range: AddressRange, size: Bytes, alignment: Alignment) -> Result<()> {
    if range.size == size && range.base.is_aligned_to(alignment.bytes()) {
        return Ok(());
    }
    let what = format!("the driver returned {range} for {size} with an alignment of {}", alignment.bytes());
    Err(Error::new(operation, Detail::DriverContractViolated { what }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_range_breaks_the_drivers_contract() {
        let (size, unit) = (Bytes::mib(4), Alignment::from(Granularity::BYTE));
        let alignment = unit.max(Alignment::new(Bytes::mib(2)).unwrap_or(unit));
        let check = |base, size_of_answer| {
            let range = AddressRange { base: Address(base), size: size_of_answer };
            check_answer(Operation::Reserve, range, size, alignment).map_err(Error::into_detail)
        };
        assert!(check(6 << 20, size).is_ok());
        for answer in [check(6 << 20, Bytes::mib(2)), check(6 << 20, Bytes::mib(6)), check(5 << 20, size)] {
            assert!(matches!(answer, Err(Detail::DriverContractViolated { .. })), "{answer:?}");
        }
    }

    #[test]
    fn the_largest_size_is_the_address_space() {
        let size = |size| rounded(Operation::Reserve, size, Granularity::BYTE);
        assert_eq!(size(ADDRESS_SPACE).ok(), Some(ADDRESS_SPACE));
        assert!(size(ADDRESS_SPACE + Bytes(1)).is_err());
    }
}
