//! The address of a region.

use crate::case::cases;
use crate::library::tools::{capability, idle};
use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, Detail, Feature, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "reserve":
    /// A free exact address is reserved, and can be reserved again after its release.
    exact_and_free,
    /// If an exact address is taken, the error names the address that the driver offered instead, and that offer is released.
    exact_and_taken,
    /// An exact range that would overlap a reservation behind it is refused.
    exact_and_half_taken,
    /// Reserving an exact address succeeds exactly if the device's capabilities report it.
    as_the_capabilities_say,
    /// The null address, which drivers treat as no hint, is never returned.
    the_null_address,
    /// A preferred address is used if it is free; otherwise the region is at another address and reports it.
    prefer,
    /// One address can be reserved, used and released twenty times in a row.
    the_same_address_again,
    /// Regions at exact addresses can be terabytes apart, all in use at once.
    far_apart,
    /// Adjacent regions share no byte: device writes up to the end of one leave the next unchanged.
    side_by_side,
    /// The gap between two reservations can be reserved exactly, and not more than the gap.
    between_two,
    /// The addresses directly in front of a reservation can be reserved exactly.
    in_front_of_another,
    /// Addresses that were released in pieces, the last one first, can be reserved in one piece.
    given_back_in_pieces,
}

fn exact_and_free<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    for _ in 0..2 {
        let region = subject.region(8).at(Placement::Exact(base)).build().unwrap();
        assert_eq!((region.address(), region.reserved()), (base, subject.units(8)));
    }
}

/// The address that the driver offers if the wanted one is taken.
fn offered<B: TestKit>(subject: &Subject<B>, wanted: Address) -> Address {
    let error = subject.region(8).at(Placement::Exact(wanted)).build().unwrap_err();
    let Detail::AddressTaken { wanted: named, offered, .. } = error.detail() else { panic!("{error}") };
    assert_eq!(*named, wanted);
    assert_ne!(*offered, wanted);
    assert!(error.to_string().contains(&offered.to_string()), "{error}");
    *offered
}

fn exact_and_taken<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    let _first = subject.region(8).at(Placement::Exact(base)).build().unwrap();
    for units in [0, 1, 7] {
        let wanted = base + subject.units(units);
        // Another thread of the process may take the released addresses, so a single failure does not count.
        let came_back = (0..8).any(|_| {
            let offered = offered(subject, wanted);
            subject.region(8).at(Placement::Exact(offered)).build().is_ok()
        });
        assert!(came_back, "the address offered instead of {wanted} was not released");
    }
}

fn exact_and_half_taken<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(12);
    let behind = Placement::Exact(base + subject.units(4));
    let _behind = subject.region(8).at(behind).build().unwrap();
    offered(subject, base);
    let before = subject.region(4).at(Placement::Exact(base)).build().unwrap();
    assert_eq!(before.address(), base);
}

fn as_the_capabilities_say<B: TestKit>(subject: &Subject<B>) {
    let capability = capability(subject, Feature::FixedAddress);
    let at = Placement::Exact(subject.hole(2));
    let done = subject.region(2).at(at).build();
    assert_eq!(capability.available, done.is_ok(), "{capability:?}");
}

fn the_null_address<B: TestKit>(subject: &Subject<B>) {
    let offered = offered(subject, Address(0));
    assert_ne!(offered, Address(0));
    let region = subject.region(1).at(Placement::Prefer(Address(0))).build().unwrap();
    assert_ne!(region.address(), Address(0));
}

fn prefer<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    let first = subject.region(8).at(Placement::Prefer(base)).build().unwrap();
    assert_eq!(first.address(), base);
    let second = subject.region(8).at(Placement::Prefer(base)).build().unwrap();
    assert_ne!(second.address(), base);
    assert_eq!(second.reserved(), subject.units(8));
    drop((first, second));
    let third = subject.region(8).at(Placement::Prefer(base)).build().unwrap();
    assert_eq!(third.address(), base);
}

fn the_same_address_again<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(2);
    for seed in 0..20 {
        let mut region = subject.region(2).at(Placement::Exact(base)).build().unwrap();
        region.grow_to(subject.granules(2)).unwrap();
        subject.write(&mut region, Bytes(0), subject.granules(2), seed);
        subject.check(&region, Bytes(0), subject.granules(2), seed);
        region.close(idle()).unwrap();
    }
}

/// A region of two units at an exact address, with a granule mapped at each end.
fn two_units<B: TestKit>(subject: &Subject<B>, base: Address) -> Region<B> {
    let mut region = subject.region(2).at(Placement::Exact(base)).build().unwrap();
    for offset in [Bytes(0), subject.units(2) - subject.granularity()] {
        subject.open(&mut region, offset, &subject.piece(1));
    }
    region
}

/// Writes to both ends of all regions with a device, and then checks them.
fn use_all<B: TestKit>(subject: &Subject<B>, regions: &mut [Region<B>]) {
    let granule = subject.granularity();
    for (region, seed) in regions.iter_mut().zip(0..) {
        subject.write(region, Bytes(0), granule, 2 * seed);
        subject.write(region, region.end() - granule, granule, 2 * seed + 1);
    }
    for (region, seed) in regions.iter().zip(0..) {
        subject.check(region, Bytes(0), granule, 2 * seed);
        subject.check(region, region.end() - granule, granule, 2 * seed + 1);
    }
}

fn far_apart<B: TestKit>(subject: &Subject<B>) {
    let mut regions: Vec<Region<B>> = Vec::new();
    for _ in 0..3 {
        let base = subject.hole(2);
        regions.push(two_units(subject, base));
    }
    for pair in regions.windows(2) {
        assert!(pair[0].address().0.abs_diff(pair[1].address().0) >= 1 << 40);
    }
    use_all(subject, &mut regions);
}

fn side_by_side<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(6);
    let mut regions: Vec<Region<B>> = [0, 2, 4].map(|at| two_units(subject, base + subject.units(at))).into();
    use_all(subject, &mut regions);
    // The region in the middle is dropped, and its neighbors keep their bytes.
    drop(regions.remove(1));
    use_all(subject, &mut regions);
}

fn between_two<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(6);
    let gap = base + subject.units(2);
    let mut regions = vec![two_units(subject, base), two_units(subject, base + subject.units(4))];
    let error = subject.region(3).at(Placement::Exact(gap)).build().unwrap_err();
    assert!(matches!(error.detail(), Detail::AddressTaken { .. }), "{error}");
    regions.push(two_units(subject, gap));
    use_all(subject, &mut regions);
}

fn in_front_of_another<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(4);
    let behind = two_units(subject, base + subject.units(2));
    let mut regions = vec![behind, two_units(subject, base)];
    assert_eq!(regions[1].range().end(), regions[0].address());
    use_all(subject, &mut regions);
}

fn given_back_in_pieces<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(4);
    let at = |units| Placement::Exact(base + subject.units(units));
    let [first, second] = [0, 2].map(|units| subject.region(2).at(at(units)).build().unwrap());
    drop(second);
    drop(first);
    assert_eq!(subject.region(4).at(at(0)).build().unwrap().reserved(), subject.units(4));
}
