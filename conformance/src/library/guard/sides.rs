//! The addresses before and behind a guarded region.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Address, Bytes, Detail, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "guard":
    /// A guard is at least one unit of addresses on either side, and is not part of the region's size.
    beside_the_region,
    /// No other reservation gets an address of a guard, neither in its first nor in its last unit, until the region is closed.
    guard_addresses_stay_reserved,
    /// A guarded region is at the requested exact address, with its guard before it.
    at_an_exact_address,
    /// If a reservation is in the way of the region or its guard, the error contains the region's address and the one offered.
    where_something_is_in_the_way,
    /// A region cannot be at an address with too few addresses before it for the guard.
    before_the_first_address,
    /// A guard has the requested size, rounded up to the unit of addresses; a size of 0 means no guard.
    as_large_as_was_asked_for,
    /// A guard larger than the address space is refused without a driver call.
    larger_than_the_address_space,
    /// The region itself has the requested alignment, whatever the guard's size.
    the_region_is_aligned,
    /// A device can use the first and the last byte of a guarded region, and accesses outside of it are refused.
    used_to_both_ends,
    /// Two guarded regions cannot share a guard: each has its own.
    side_by_side,
}

fn beside_the_region<B: TestKit>(subject: &Subject<B>) {
    assert_eq!(subject.region(2).build().unwrap().guard(), Bytes(0));
    let region = subject.region(2).guarded().build().unwrap();
    assert_eq!((region.guard(), region.reserved()), (subject.unit(), subject.units(2)));
    assert_eq!(region.reservations().collect::<Vec<_>>(), [region.range()]);
    assert_eq!((region.range().base, region.range().size), (region.address(), subject.units(2)));
}

/// Returns true if a unit of addresses can be reserved exactly there.
fn is_free<B: TestKit>(subject: &Subject<B>, address: Address) -> bool {
    match subject.region(1).at(Placement::Exact(address)).build() {
        Ok(_) => true,
        Err(error) if matches!(error.detail(), Detail::AddressTaken { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

fn guard_addresses_stay_reserved<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    let at = Placement::Exact(base + subject.units(3));
    let region = subject.region(1).guard(subject.units(2)).at(at).build().unwrap();
    let free = |expected: [bool; 7]| {
        for (unit, expected) in (0..).zip(expected) {
            assert_eq!(is_free(subject, base + subject.units(unit)), expected, "unit {unit}");
        }
    };
    free([true, false, false, false, false, false, true]);
    region.close(idle()).unwrap();
    free([true; 7]);
}

fn at_an_exact_address<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(6) + subject.units(2);
    for at in [Placement::Exact(base), Placement::Prefer(base)] {
        let region = subject.region(2).guarded().at(at).build().unwrap();
        assert_eq!((region.address(), region.reserved()), (base, subject.units(2)));
    }
}

fn where_something_is_in_the_way<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    let _wall = subject.region(1).at(Placement::Exact(base + subject.units(3))).build().unwrap();
    // In the way of the region, of the guard before it, and of the guard behind it.
    for units in [3, 4, 2] {
        let wanted = base + subject.units(units);
        let error = subject.region(1).guarded().at(Placement::Exact(wanted)).build().unwrap_err();
        let Detail::AddressTaken { wanted: reported, offered, .. } = error.detail() else {
            panic!("{error}")
        };
        assert_eq!(*reported, wanted);
        assert_ne!(*offered, wanted);
        let elsewhere = subject.region(1).guarded().at(Placement::Prefer(wanted)).build().unwrap();
        assert_ne!(elsewhere.address(), wanted);
        assert_eq!(elsewhere.guard(), subject.unit());
    }
}

fn before_the_first_address<B: TestKit>(subject: &Subject<B>) {
    for address in [Address(0), Address(0) + subject.unit()] {
        let guarded = || subject.region(1).guard(subject.units(2));
        let error = guarded().at(Placement::Exact(address)).build().unwrap_err();
        assert!(
            matches!(error.detail(), Detail::AddressTaken { wanted, .. } if *wanted == address),
            "{error}"
        );
        assert_ne!(guarded().at(Placement::Prefer(address)).build().unwrap().address(), address);
    }
}

fn as_large_as_was_asked_for<B: TestKit>(subject: &Subject<B>) {
    let unit = subject.unit();
    for (size, units) in
        [(Bytes(0), 0), (Bytes(1), 1), (unit, 1), (unit + Bytes(1), 2), (subject.units(5), 5)]
    {
        let region = subject.region(3).guard(size).build().unwrap();
        assert_eq!((region.guard(), region.reserved()), (subject.units(units), subject.units(3)), "{size}");
    }
}

fn larger_than_the_address_space<B: TestKit>(subject: &Subject<B>) {
    for guard in [Bytes(u64::MAX), Bytes((1 << 47) + 1), Bytes(1 << 46)] {
        refused!(subject.region(1).guard(guard).build(), Detail::ExceedsAddressSpace { .. });
    }
    let beyond = Address(u64::MAX - subject.unit().0 + 1);
    refused!(subject.region(1).guarded().at(Placement::Exact(beyond)).build(), Detail::Overflow { .. });
    let odd = Address(subject.unit().0 * 64 + 1);
    refused!(subject.region(1).guarded().at(Placement::Exact(odd)).build(), Detail::Unaligned { .. }, odd);
}

fn the_region_is_aligned<B: TestKit>(subject: &Subject<B>) {
    for alignment in [Bytes(1), Bytes::mib(64), Bytes::gib(1)] {
        let region = subject.region(2).guarded().alignment(alignment).build().unwrap();
        assert!(region.address().is_aligned_to(alignment), "{} for {alignment}", region.address());
        assert!(region.guard() >= subject.unit() && region.reserved() == subject.units(2));
    }
}

/// Lets the device write to both ends of a fully mapped region.
fn use_ends<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, seed: u64) {
    let granule = subject.granularity();
    let last = region.reserved() - granule;
    subject.write(region, Bytes(0), granule, seed);
    subject.write(region, last, granule, seed + 1);
}

fn check_ends<B: TestKit>(subject: &Subject<B>, region: &Region<B>, seed: u64) {
    let granule = subject.granularity();
    subject.check(region, Bytes(0), granule, seed);
    subject.check(region, region.reserved() - granule, granule, seed + 1);
}

fn used_to_both_ends<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).guarded().build().unwrap();
    region.map(Bytes(0), &subject.memory(1)).unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.set_access(Bytes(0), subject.unit(), subject.device, RW).unwrap();
    use_ends(subject, &mut region, 1);
    check_ends(subject, &region, 1);
    let end = region.end();
    region.write(end - Bytes(1), &[7]).unwrap();
    let mut byte = [0];
    region.read(end - Bytes(1), &mut byte).unwrap();
    assert_eq!(byte, [7]);
    refused!(region.write(end - Bytes(1), &[7; 2]), Detail::OutOfRange { .. });
    refused!(region.read(end, &mut byte), Detail::OutOfRange { .. });
    refused!(region.map(end, &subject.piece(1)), Detail::OutOfRange { .. });
    region.unmap(Bytes(0), subject.unit(), idle()).unwrap();
    assert_eq!(region.mapped(), subject.unit());
}

fn side_by_side<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    let at = |units| subject.region(2).guarded().at(Placement::Exact(base + subject.units(units)));
    let mut first = at(1).build().unwrap();
    let error = at(4).build().unwrap_err();
    assert!(matches!(error.detail(), Detail::AddressTaken { .. }), "{error}");
    let mut second = at(5).build().unwrap();
    for (region, seed) in [(&mut first, 1), (&mut second, 3)] {
        region.grow_to(subject.units(2)).unwrap();
        use_ends(subject, region, seed);
    }
    check_ends(subject, &first, 1);
    check_ends(subject, &second, 3);
}
