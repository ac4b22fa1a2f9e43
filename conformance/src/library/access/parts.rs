//! Different access on different mappings of a region.

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{RW, Subject, or_skip};
use gpu_vmm_core::{Access, Bytes, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "access":
    /// One call sets the access of several mappings, and another call the access of some of them.
    over_several_mappings,
    /// Of three mappings of one size, access can be set for each, for the first two and then the last two, and for all.
    three_of_one_size,
    /// Growth in steps of different sizes, each with its own access, does not change the access of earlier steps.
    each_step_may_differ,
    /// Access of mappings of different sizes can be set one by one in any order, the last before the first.
    in_any_order,
    /// Access of mappings behind a hole can be set, whatever the sizes of the mappings before it.
    behind_a_hole,
    /// One call sets access across the border of two reservations.
    across_a_border,
    /// Two mappings of one allocation have separate access, also in different regions.
    each_region_has_its_own,
    /// Access can be removed from every second of 32 mappings, and the others stay usable.
    every_second_one,
}

/// Creates a region with adjacent, inaccessible mappings of these sizes.
fn mapped<B: TestKit>(subject: &Subject<B>, granules: &[u64]) -> Region<B> {
    let mut region = subject.space(granules.iter().sum()).build().unwrap();
    for granules in granules {
        region.map(region.end(), &subject.piece(*granules)).unwrap();
    }
    region
}

/// Returns the device's access, granule by granule.
fn rights<B: TestKit>(subject: &Subject<B>, region: &Region<B>) -> Vec<Access> {
    let count = region.end().0 / subject.granularity().0;
    (0..count).map(|granule| region.access(subject.granules(granule), subject.device)).collect()
}

fn set<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, part: (u64, u64), access: Access) {
    let (offset, length) = (subject.granules(part.0), subject.granules(part.1));
    region.set_access(offset, length, subject.device, access).unwrap();
}

/// Lets the device write all of the region and check it.
fn use_all<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, seed: u64) {
    let length = region.end();
    subject.write(region, Bytes(0), length, seed);
    subject.check(region, Bytes(0), length, seed);
}

fn over_several_mappings<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[1, 3, 2]);
    set(subject, &mut region, (0, 6), RW);
    use_all(subject, &mut region, 5);
    set(subject, &mut region, (1, 3), Access::Read);
    assert_eq!(rights(subject, &region), [RW, Access::Read, Access::Read, Access::Read, RW, RW]);
    subject.check(&region, Bytes(0), subject.granules(6), 5);
}

fn three_of_one_size<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[2, 2, 2]);
    for at in [0, 2, 4] {
        set(subject, &mut region, (at, 2), RW);
        let open = rights(subject, &region).iter().filter(|access| **access == RW).count() as u64;
        assert_eq!(open, at + 2);
        subject.write(&mut region, subject.granules(at), subject.granules(2), at);
    }
    for at in [0, 2, 4] {
        subject.check(&region, subject.granules(at), subject.granules(2), at);
    }
    let mut region = mapped(subject, &[2, 2, 2]);
    set(subject, &mut region, (0, 4), RW);
    subject.write(&mut region, Bytes(0), subject.granules(4), 1);
    assert_eq!(rights(subject, &region)[4..], [Access::None; 2]);
    set(subject, &mut region, (2, 4), RW);
    subject.check(&region, Bytes(0), subject.granules(4), 1);
    use_all(subject, &mut region, 2);
    let mut region = mapped(subject, &[2, 2, 2]);
    set(subject, &mut region, (0, 6), RW);
    assert_eq!(rights(subject, &region), [RW; 6]);
    use_all(subject, &mut region, 1);
}

/// On HIP 7.0 to 7.2, a call for a later mapping can need a range that includes the earlier ones; their access must stay.
fn each_step_may_differ<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(32).build().unwrap();
    let steps = [RW, Access::Read, RW, Access::Read, Access::None, RW, Access::Read];
    for (access, seed) in steps.into_iter().zip(0..) {
        let from = region.end();
        let growth = region.grow_to(from + subject.granules(1 + seed % 3)).unwrap();
        subject.write(&mut region, from, growth.added, seed);
        region.set_access(from, growth.added, subject.device, access).unwrap();
    }
    let mappings: Vec<_> = region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
    for ((access, seed), (offset, length)) in steps.into_iter().zip(0..).zip(mappings) {
        assert_eq!(region.access(offset, subject.device), access, "step {seed}");
        if access != Access::None {
            subject.check(&region, offset, length, seed);
        }
    }
}

fn in_any_order<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[3, 1, 4, 2, 5]);
    let parts = [(10, 5), (3, 1), (8, 2), (0, 3), (4, 4)];
    for part in parts {
        set(subject, &mut region, part, RW);
        subject.write(&mut region, subject.granules(part.0), subject.granules(part.1), part.0);
    }
    for (at, length) in parts {
        subject.check(&region, subject.granules(at), subject.granules(length), at);
    }
    for part in parts {
        set(subject, &mut region, part, Access::Read);
        subject.check(&region, subject.granules(part.0), subject.granules(part.1), part.0);
    }
}

fn behind_a_hole<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[2, 1, 3, 2]);
    region.unmap(subject.granules(2), subject.granules(1), idle()).unwrap();
    for (at, length) in [(3, 3), (6, 2), (0, 2)] {
        let (offset, length) = (subject.granules(at), subject.granules(length));
        // HIP 7.0 to 7.2 need a function of ROCr for this, and report its absence.
        or_skip(region.set_access(offset, length, subject.device, RW));
        subject.write(&mut region, offset, length, at);
        subject.check(&region, offset, length, at);
    }
    assert_eq!(region.access(subject.granules(2), subject.device), Access::None);
}

fn across_a_border<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    let mut region = subject.region(2).at(Placement::Exact(base)).extend_by(subject.unit()).build().unwrap();
    for units in 1..=4 {
        region.grow_to(subject.units(units)).unwrap();
    }
    assert_eq!(region.reservations().len(), 3);
    use_all(subject, &mut region, 1);
    for access in [Access::Read, Access::None, RW] {
        region.set_access(subject.unit(), subject.units(3), subject.device, access).unwrap();
        let rights = [0, 1, 2, 3].map(|unit| region.access(subject.units(unit), subject.device));
        assert_eq!(rights, [RW, access, access, access]);
    }
    subject.check(&region, Bytes(0), region.end(), 1);
}

fn each_region_has_its_own<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(2);
    let rights = [RW, Access::None, Access::Read];
    let mut regions: Vec<Region<B>> = Vec::new();
    for access in rights {
        let mut region = subject.space(2).build().unwrap();
        region.map(Bytes(0), &memory).unwrap();
        region.set_access(Bytes(0), memory.size(), subject.device, access).unwrap();
        regions.push(region);
    }
    subject.write(&mut regions[0], Bytes(0), memory.size(), 1);
    subject.check(&regions[2], Bytes(0), memory.size(), 1);
    assert!(regions[1].count_wrong(subject.device, Bytes(0), Bytes(8), 1).is_err());
    assert!(regions[2].write_pattern(subject.device, Bytes(0), Bytes(8), 2).is_err());
    // Removing access from the writing region leaves the reading region's access.
    regions[0].set_access(Bytes(0), memory.size(), subject.device, Access::None).unwrap();
    subject.check(&regions[2], Bytes(0), memory.size(), 1);
}

fn every_second_one<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[1; 32]);
    set(subject, &mut region, (0, 32), RW);
    use_all(subject, &mut region, 1);
    for at in (0..32).step_by(2) {
        set(subject, &mut region, (at, 1), Access::None);
    }
    let words = subject.granularity().0 / 8;
    for at in 0..32 {
        let offset = subject.granules(at);
        let wrong = region.count_wrong(subject.device, offset, subject.granularity(), 1 + at * words);
        match region.access(offset, subject.device) {
            RW => assert_eq!(wrong.unwrap(), 0, "mapping {at}"),
            Access::None => assert!(wrong.is_err() && at % 2 == 0, "mapping {at}: {wrong:?}"),
            Access::Read => panic!("mapping {at} is read only"),
        }
    }
}
