//! The addresses of reservations.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, Feature, MemoryCalls, Placement, Region, Reservation, WaitFor,
};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "addresses::a_trial_of_hints_has_several", needs: Needs::Device, run: several_hints },
    Test { name: "addresses::alignment_wins_over_a_hint", needs: Needs::Device, run: alignment_and_hint },
    Test { name: "addresses::more_than_there_are_is_an_error", needs: Needs::Device, run: too_large },
    Test { name: "addresses::refused_hints_keep_no_addresses", needs: Needs::Device, run: refused_hints },
    Test { name: "addresses::restorable_regions_use_kept_addresses", needs: Needs::Device, run: restorable },
    Test { name: "addresses::moved_regions_use_kept_addresses", needs: Needs::Device, run: moved },
    Test { name: "addresses::what_is_kept_can_be_released", needs: Needs::Device, run: release_kept },
];

/// An address that was free when these tests were written, below the addresses that Linux chooses itself.
const EMPTY: Address = Address(0x6f00_0000_0000);

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

fn too_large(rig: &Rig) {
    // SAFETY: a multiple of the granularity.
    let error =
        unsafe { rig.backend.reserve(Bytes::gib(1 << 18), rig.alignment(), None) }.expect_err("256 TiB");
    assert_eq!(error.driver_error().map(|source| source.call), Some("hipMemAddressReserve"), "{error}");
    assert_eq!(rig.hip("hipGetLastError", 0), 0);
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
