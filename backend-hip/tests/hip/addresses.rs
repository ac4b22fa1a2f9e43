//! The addresses of reservations.

use crate::rig::{Rig, ZERO, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, Feature, MemoryCalls, Placement, Region, Reservation, WaitFor,
};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "addresses::a_hint_that_is_free_is_taken", needs: Needs::Device, run: free_hint },
    Test {
        name: "addresses::a_hint_that_is_taken_gives_another_address",
        needs: Needs::Device,
        run: taken_hint,
    },
    Test { name: "addresses::a_trial_of_hints_has_several", needs: Needs::Device, run: several_hints },
    Test {
        name: "addresses::an_address_comes_back_to_who_asks_for_it",
        needs: Needs::Device,
        run: back_at_the_same,
    },
    Test { name: "addresses::alignment_of_one_gibibyte", needs: Needs::Device, run: alignment },
    Test { name: "addresses::alignment_wins_over_a_hint", needs: Needs::Device, run: alignment_and_hint },
    Test { name: "addresses::a_terabyte_costs_no_memory", needs: Needs::Device, run: large },
    Test { name: "addresses::more_than_there_are_is_an_error", needs: Needs::Device, run: too_large },
    Test { name: "addresses::reservations_beside_each_other", needs: Needs::Device, run: adjacent },
    Test { name: "addresses::refused_hints_keep_no_addresses", needs: Needs::Device, run: refused_hints },
    Test { name: "addresses::restorable_regions_use_kept_addresses", needs: Needs::Device, run: restorable },
    Test { name: "addresses::moved_regions_use_kept_addresses", needs: Needs::Device, run: moved },
    Test { name: "addresses::what_is_kept_can_be_released", needs: Needs::Device, run: release_kept },
];

/// An address that was free when these tests were written, below the addresses that Linux chooses itself.
const EMPTY: Address = Address(0x6f00_0000_0000);

fn free_hint(rig: &Rig) {
    // SAFETY: multiples of the granularity.
    let reservation = unsafe { rig.backend.reserve(rig.units(3), rig.alignment(), Some(EMPTY)) }.unwrap();
    assert_eq!(reservation.range().base, EMPTY);
    assert_eq!(reservation.range().size, rig.units(3));
}

fn taken_hint(rig: &Rig) {
    let first = rig.reserve(rig.units(4));
    let hint = first.range().base + rig.unit();
    // SAFETY: multiples of the granularity.
    let second = unsafe { rig.backend.reserve(rig.unit(), rig.alignment(), Some(hint)) }.unwrap();
    assert!(!first.range().contains(second.range().base), "{:?} and {:?}", first.range(), second.range());
}

/// Hints are supported although the first place that is tried for them is taken.
fn several_hints(rig: &Rig) {
    let near = rig.reserve(rig.unit()).range().base;
    let first = Address(near.0 - Bytes::gib(16).0);
    // SAFETY: multiples of the granularity.
    let _taken = unsafe { rig.backend.reserve(rig.unit(), rig.alignment(), Some(first)) }.unwrap();
    let all = rig.backend.capabilities(ZERO).unwrap();
    let fixed = all.iter().find(|one| one.feature == Feature::FixedAddress).unwrap();
    assert!(fixed.available, "{}", fixed.note);
}

fn back_at_the_same(rig: &Rig) {
    let (base, size) = {
        let mut reservation = rig.mapped(ZERO, rig.units(2));
        // SAFETY: one whole mapping, no longer used.
        unsafe { reservation.unmap(Bytes::ZERO, rig.units(2)) }.unwrap();
        (reservation.range().base, reservation.range().size)
    };
    // SAFETY: multiples of the granularity.
    let again = unsafe { rig.backend.reserve(size, rig.alignment(), Some(base)) }.unwrap();
    assert_eq!(again.range().base, base);
}

fn alignment(rig: &Rig) {
    let alignment = Alignment::new(Bytes::gib(1)).unwrap();
    let size = rig.units(3);
    // SAFETY: multiples of the granularity.
    let mut all: Vec<_> =
        (0..3).map(|_| unsafe { rig.backend.reserve(size, alignment, None) }.unwrap()).collect();
    for reservation in &mut all {
        assert!(reservation.range().base.is_aligned_to(Bytes::gib(1)), "{:?}", reservation.range());
        assert_eq!(reservation.range().size, size);
        let handle = rig.create(ZERO, size);
        // SAFETY: the handle fits the empty reservation.
        unsafe {
            reservation.map(Bytes::ZERO, &handle).unwrap();
            reservation.set_access(Bytes::ZERO, size, &[read_write(ZERO)]).unwrap();
            rig.works(ZERO, reservation, Bytes::ZERO, size, 1);
            reservation.unmap(Bytes::ZERO, size).unwrap();
        }
    }
}

fn alignment_and_hint(rig: &Rig) {
    let alignment = Alignment::new(Bytes::gib(1)).unwrap();
    // SAFETY: multiples of the granularity.
    let exact = unsafe { rig.backend.reserve(rig.unit(), alignment, Some(EMPTY)) }.unwrap();
    assert_eq!(exact.range().base, EMPTY, "this hint is aligned");
    let hint = EMPTY + Bytes::gib(4) + rig.unit();
    // SAFETY: as above.
    let other = unsafe { rig.backend.reserve(rig.unit(), alignment, Some(hint)) }.unwrap();
    assert!(other.range().base.is_aligned_to(Bytes::gib(1)), "{:?}", other.range());
}

fn large(rig: &Rig) {
    let before = rig.free(ZERO);
    let mut reservation = rig.reserve(Bytes::gib(1024));
    assert_eq!(rig.free(ZERO), before);
    let last = Bytes::gib(1024) - rig.unit();
    let handle = rig.create(ZERO, rig.unit());
    // SAFETY: the last unit of an empty reservation.
    unsafe {
        reservation.map(last, &handle).unwrap();
        reservation.set_access(last, rig.unit(), &[read_write(ZERO)]).unwrap();
        rig.works(ZERO, &reservation, last, rig.unit(), 1);
        reservation.unmap(last, rig.unit()).unwrap();
    }
}

fn too_large(rig: &Rig) {
    // SAFETY: a multiple of the granularity.
    let error =
        unsafe { rig.backend.reserve(Bytes::gib(1 << 18), rig.alignment(), None) }.expect_err("256 TiB");
    assert_eq!(error.driver_error().map(|source| source.call), Some("hipMemAddressReserve"), "{error}");
    assert_eq!(rig.hip("hipGetLastError", 0), 0);
}

fn adjacent(rig: &Rig) {
    let (unit, first_base) = (rig.unit(), EMPTY + Bytes::gib(1));
    // SAFETY: multiples of the granularity.
    let mut first = unsafe { rig.backend.reserve(unit, rig.alignment(), Some(first_base)) }.unwrap();
    // SAFETY: as above.
    let mut second =
        unsafe { rig.backend.reserve(unit, rig.alignment(), Some(first.range().end())) }.unwrap();
    assert_eq!(first.range().end(), second.range().base, "the next place was free");
    for reservation in [&mut first, &mut second] {
        let handle = rig.create(ZERO, unit);
        // SAFETY: the handle fits the empty reservation.
        unsafe {
            reservation.map(Bytes::ZERO, &handle).unwrap();
            reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
        }
        rig.works(ZERO, reservation, Bytes::ZERO, unit, 1);
    }
    for reservation in [&mut first, &mut second] {
        // SAFETY: one whole mapping, no longer used.
        unsafe { reservation.unmap(Bytes::ZERO, unit) }.unwrap();
    }
}

/// Repeats something, and checks that the process has no more lines of `/proc/self/maps` in the end than after a few rounds. HIP 6
/// cannot free addresses safely, so that each new reservation would be a line for ever.
fn stays_flat(mut round: impl FnMut()) {
    let lines = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    (0..8).for_each(|_| round());
    let few = lines();
    (0..200).for_each(|_| round());
    // Other threads of the runtime map memory of their own now and then.
    assert!(lines() <= few + 20, "{few} lines, and {} after 200 rounds", lines());
}

fn refused_hints(rig: &Rig) {
    let first = rig.reserve(rig.units(4));
    for count in [1, 4, 9] {
        stays_flat(|| {
            // SAFETY: multiples of the granularity.
            let other =
                unsafe { rig.backend.reserve(rig.units(count), rig.alignment(), Some(first.range().base)) };
            assert_ne!(other.unwrap().range().base, first.range().base);
        });
    }
}

/// 192 GiB each: 61 places of that size that were used up were all that there were.
fn restorable(rig: &Rig) {
    stays_flat(|| {
        let builder = Region::builder(&rig.backend).at(Placement::Restorable);
        drop(builder.reserve(Bytes::gib(192)).build().unwrap());
    });
}

/// A region that cannot grow behind its end moves.
fn moved(rig: &Rig) {
    let size = Bytes::mib(32);
    let reserved = |placement| Region::builder(&rig.backend).at(placement).reserve(size).build().unwrap();
    stays_flat(|| {
        let mut region = reserved(Placement::Anywhere);
        region.grow_to(rig.unit()).unwrap();
        let _blocker = reserved(Placement::Prefer(region.range().end()));
        region.grow_or_move(Bytes(2 * size.0), WaitFor::all_devices()).unwrap();
    });
}

fn release_kept(rig: &Rig) {
    drop(rig.reserve(rig.units(7)));
    let released = rig.backend.release_kept_addresses().unwrap();
    assert_eq!(released > 0, rig.has_quirk("free-races"), "{released} ranges");
    assert_eq!(rig.backend.release_kept_addresses().unwrap(), 0, "the second time");
    let mut reservation = rig.mapped(ZERO, rig.units(7));
    rig.works(ZERO, &reservation, Bytes::ZERO, rig.units(7), 1);
    // SAFETY: one whole mapping, no longer used.
    unsafe { reservation.unmap(Bytes::ZERO, rig.units(7)) }.unwrap();
}
