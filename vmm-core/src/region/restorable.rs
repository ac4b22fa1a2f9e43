//! Addresses that other processes can reserve as well, with the same driver or with another vendor's.
//!
//! Where a driver or a kernel places things by itself, no address can be reserved in every process. The window that is used here
//! is free in every process that does not deliberately use it:
//!
//! - The drivers' own arenas lie below: CUDA's begins at 0x4_0000_0000 and moves hints into it, up to 0x100_0000_0000 at least
//!   (H200, driver 13.0), and honours them at 0x2000_0000_0000 and 0x6000_0000_0000. HIP asks the kernel with
//!   `MAP_FIXED_NOREPLACE`, and every GPU reaches all addresses below 2^47.
//! - The kernel's own choices lie above, in the last 16 TiB below 2^47. If the stack is unlimited, they begin at 0x2aaa_aaaa_b000
//!   (x86-64) and reach the window only after more than 12 TiB. Programs and their heaps lie from 0x5555_5555_4000 on.
//! - ThreadSanitizer keeps its data at 0x1000_0000_0000 to 0x3800_0000_0000, AddressSanitizer its heap from
//!   0x5000_0000_0000 or 0x6000_0000_0000 on.
//!
//! A region's place in the window is random, so that the regions of several processes can be restored together in another
//! process.

use super::placement::{ADDRESS_SPACE, reserve_at, reserve_kept};
use crate::driver::Backend;
use crate::types::{Address, AddressRange, Alignment, Bytes, Detail, Error, Granularity, Operation, Result};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

const WINDOW: AddressRange = if cfg!(windows) { ON_WINDOWS } else { ON_LINUX };

const ON_LINUX: AddressRange = AddressRange { base: Address(0x3800_0000_0000), size: Bytes::gib(24 << 10) };

/// The addresses that CUDA's driver honours under WDDM (lupine #574, a T4). It moves lower ones, is out of memory at 1 TiB, and never
/// returns from 2 TiB on. Never run here.
const ON_WINDOWS: AddressRange = AddressRange { base: Address(64 << 30), size: Bytes::gib(512 - 64) };

/// The end of the addresses at which hints are useful, or safe.
pub(super) const MAX_HINT: Address =
    if cfg!(windows) { Address(512 << 30) } else { Address(ADDRESS_SPACE.0) };

/// The units in which every driver can map and reserve. Mapping: CUDA's granularity is 2 MiB on all GPUs; HIP's is 4 KiB, but
/// less than 2 MiB does not work everywhere; the host's is a page. Reserving: CUDA reserves addresses in units of 32 MiB.
pub(super) const UNITS: [Granularity; 2] = [power_of_two(Bytes::mib(2)), PORTABLE_UNIT];

/// The unit in which every driver reserves addresses, and of the addresses of [portable](crate::RegionBuilder::portable) regions.
pub const PORTABLE_UNIT: Granularity = power_of_two(UNIT);

const UNIT: Bytes = Bytes::mib(32);

/// The number of places that are tried. One of them is free unless the window is almost full: with three quarters of it taken,
/// none is free in 1 of 100 cases.
pub(super) const TRIES: u32 = 16;

/// Reserves at a random place that is free, so that it is probably free in another process as well.
pub(super) fn reserve<B: Backend>(
    backend: &B,
    operation: Operation,
    size: Bytes,
    alignment: Alignment,
    granularity: Granularity,
) -> Result<B::Reservation> {
    let step = alignment.max(granularity.into()).max(UNITS[1].into());
    // On HIP 6 addresses are never freed: without this, the window and the kernel's list of mappings would fill. Two regions of which one
    // ended before the other began may have one address, so that their snapshots cannot be restored into one process.
    if let Some(kept) = reserve_kept(backend, size, step, WINDOW, random(TRIES)) {
        return Ok(kept);
    }
    let step = step.bytes();
    let mut refused = None;
    for number in 0..TRIES {
        let place = chosen(WINDOW, operation, size, step, random(number))?;
        let answer = reserve_at(backend, operation, size, alignment, place);
        match answer.as_ref().map_err(Error::detail) {
            Err(Detail::AddressTaken { wanted, offered }) => refused = Some((*wanted, *offered)),
            _ => return answer,
        }
    }
    let (wanted, offered) = refused.unwrap_or((WINDOW.base, WINDOW.base));
    Err(Error::new(operation, Detail::NotRestorable { tries: TRIES, window: WINDOW, wanted, offered }))
}

/// A place in the window from which `size` bytes do not exceed the window.
pub(super) fn chosen(
    window: AddressRange,
    operation: Operation,
    size: Bytes,
    step: Bytes,
    random: u64,
) -> Result<Address> {
    let first = window.base.0.next_multiple_of(step.0);
    let room = Bytes(window.end().0.saturating_sub(first));
    let exhausted = || Error::new(operation, Detail::ExceedsAddressSpace { size, limit: room });
    let last = room.0.checked_sub(size.0).ok_or_else(exhausted)?;
    let places = last / step.0 + 1;
    Ok(Address(first + random % places * step.0))
}

/// A random number from the seed of the standard library's hashes, which comes from the system. A forked child inherits the seed;
/// the process ID distinguishes it from its parent.
pub(super) fn random(number: u32) -> u64 {
    RandomState::new().hash_one((std::process::id(), number))
}

const fn power_of_two(bytes: Bytes) -> Granularity {
    match Granularity::new(bytes) {
        Some(granularity) => granularity,
        None => Granularity::BYTE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(size: Bytes, step: Bytes, random: u64) -> Result<Address> {
        chosen(ON_LINUX, Operation::Allocate, size, step, random)
    }

    #[test]
    fn places_fill_and_keep_the_window() {
        let (base, end) = (ON_LINUX.base, ON_LINUX.end());
        assert_eq!(end, Address(0x5000_0000_0000));
        assert_eq!(place(UNIT, UNIT, 0).unwrap(), base);
        let count = ON_LINUX.size.0 / UNIT.0;
        assert_eq!(place(UNIT, UNIT, count - 1).unwrap() + UNIT, end);
        assert_eq!(place(UNIT, UNIT, count).unwrap(), base);
        assert_eq!(place(ON_LINUX.size, UNIT, u64::MAX).unwrap(), base);
        for random in 0..1000 {
            let place = place(Bytes::gib(5), Bytes::gib(4), random * 0x9e37_79b9).unwrap();
            assert!(place.is_aligned_to(Bytes::gib(4)) && base <= place && place + Bytes::gib(5) <= end);
        }
    }

    /// CUDA's driver for Windows never returns from a call with a higher address.
    #[test]
    fn windows_places_keep_their_limits() {
        let (low, high) = (Address(64 << 30), Address(512 << 30));
        for (size, random) in [(UNIT, 0), (UNIT, u64::MAX), (Bytes::gib(100), 7), (Bytes::gib(448), 3)] {
            let place = chosen(ON_WINDOWS, Operation::Allocate, size, UNIT, random).unwrap();
            assert!(low <= place && place + size <= high, "{place}");
        }
        chosen(ON_WINDOWS, Operation::Allocate, Bytes::gib(449), UNIT, 0).unwrap_err();
    }

    #[test]
    fn oversized_place_error_has_window_size() {
        let limit = |size, step| match place(size, step, 1).map_err(Error::into_detail) {
            Err(Detail::ExceedsAddressSpace { limit, .. }) => limit,
            other => panic!("{other:?}"),
        };
        assert_eq!(limit(ON_LINUX.size + UNIT, UNIT), ON_LINUX.size);
        // The only multiple of 64 TiB in the window has 16 TiB behind it.
        assert_eq!(place(Bytes::gib(16 << 10), Alignment::MAX, 5).unwrap(), Address(1 << 46));
        assert_eq!(limit(ON_LINUX.size, Alignment::MAX), Bytes::gib(16 << 10));
    }
}
