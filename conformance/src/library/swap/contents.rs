//! Bytes and access after a swap.

use super::{SEEDS, cuts, filled};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "swap":
    /// After a swap, copies and kernels find the other region's bytes at each address, and a second swap restores them.
    the_others_bytes,
    /// A swap exchanges pieces of memory without creating or releasing any, and the second region can be dropped.
    memory_changes_hands,
    /// A swap of parts leaves the rest of both regions unchanged.
    parts,
    /// A range of mappings can be swapped with a range that is divided differently, and the regions can grow afterwards.
    cut_differently,
    /// Each address keeps its access, whichever memory is mapped there.
    access_stays_with_the_address,
    /// A peer's access stays with the address, and the peer finds the new bytes there.
    a_peers_access_stays_with_the_address,
    /// Memory of two devices can be exchanged if each device has access to both regions.
    memory_of_two_devices,
    /// Whole regions with equal holes can be exchanged, whatever the sizes of their reservations.
    whole_regions_with_holes,
    /// Swapping two regions without memory has no effect.
    nothing_for_nothing,
    /// A part that crosses the border of two reservations can be swapped with a part that does not.
    across_a_border,
    /// Writes, fills and copies to one region after a swap do not change the other region.
    they_stay_apart,
    /// Memory that is also mapped in a third region stays the same memory after a swap.
    aliases_follow,
}

fn the_others_bytes<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[3], SEEDS[0]);
    let mut other = filled(subject, &[3], SEEDS[1]);
    let (addresses, length) = ([one.address(), other.address()], subject.granules(3));
    one.write(Bytes(8), b"the first").unwrap();
    other.write(Bytes(8), b"the other").unwrap();
    for round in 0..3 {
        one.swap(Bytes(0), &mut other, Bytes(0), length, idle()).unwrap();
        assert_eq!([one.address(), other.address()], addresses);
        let expected = if round % 2 == 0 { [&one, &other] } else { [&other, &one] };
        for (region, bytes, seed) in
            [(expected[0], b"the other", SEEDS[1]), (expected[1], b"the first", SEEDS[0])]
        {
            let mut seen = [0; 9];
            region.read(Bytes(8), &mut seen).unwrap();
            assert_eq!(&seen, bytes, "round {round}");
            subject.check(region, Bytes(24), length - Bytes(24), seed + 3);
        }
    }
}

fn memory_changes_hands<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[2], SEEDS[0]);
    let mut other = filled(subject, &[2], SEEDS[1]);
    let memory = |region: &Region<B>| region.mapping_at(Bytes(0)).unwrap().memory.clone();
    let (ours, theirs, free) = (memory(&one), memory(&other), subject.free());
    one.swap(Bytes(0), &mut other, Bytes(0), subject.granules(2), idle()).unwrap();
    assert!(memory(&one).is_same_as(&theirs) && memory(&other).is_same_as(&ours));
    assert_eq!(subject.free(), free);
    drop((ours, theirs));
    other.close(idle()).unwrap();
    subject.check(&one, Bytes(0), subject.granules(2), SEEDS[1]);
    if subject.gives_back_at_once() {
        assert_eq!(subject.free_here(), free[subject.device.0 as usize] + subject.granules(2));
    }
}

fn parts<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[1, 2, 1], SEEDS[0]);
    let mut other = filled(subject, &[2, 1], SEEDS[1]);
    let [single, pair] = [1, 2].map(|granules| subject.granules(granules));
    one.swap(single, &mut other, Bytes(0), pair, idle()).unwrap();
    subject.check(&one, Bytes(0), single, SEEDS[0]);
    subject.check(&one, single, pair, SEEDS[1]);
    let last = single + pair;
    subject.check(&one, last, single, SEEDS[0] + last.0 / 8);
    subject.check(&other, Bytes(0), pair, SEEDS[0] + single.0 / 8);
    subject.check(&other, pair, single, SEEDS[1] + pair.0 / 8);
}

fn cut_differently<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[2, 4], SEEDS[0]);
    let mut other = filled(subject, &[6], SEEDS[1]);
    let length = subject.granules(6);
    one.swap(Bytes(0), &mut other, Bytes(0), length, idle()).unwrap();
    assert_eq!((cuts(subject, &one), cuts(subject, &other)), (vec![(0, 6)], vec![(0, 2), (2, 4)]));
    subject.check(&one, Bytes(0), length, SEEDS[1]);
    subject.check(&other, Bytes(0), length, SEEDS[0]);
    for region in [&mut one, &mut other] {
        assert_eq!(region.access(subject.granules(5), subject.device), RW);
        region.grow_to(subject.granules(8)).unwrap();
        subject.write(region, Bytes(0), subject.granules(8), 9);
        subject.check(region, Bytes(0), subject.granules(8), 9);
    }
    // Five granules for five, of which each side has borders that the other side lacks.
    let mut three = filled(subject, &[1, 1, 3], SEEDS[0]);
    let mut five = filled(subject, &[2, 2, 1], SEEDS[1]);
    three.swap(Bytes(0), &mut five, Bytes(0), subject.granules(5), idle()).unwrap();
    assert_eq!(cuts(subject, &three), [(0, 2), (2, 2), (4, 1)]);
    subject.check(&three, Bytes(0), subject.granules(5), SEEDS[1]);
    subject.check(&five, Bytes(0), subject.granules(5), SEEDS[0]);
}

fn access_stays_with_the_address<B: TestKit>(subject: &Subject<B>) {
    let all = [RW, Access::Read, Access::None];
    let device = subject.device;
    let mut one = filled(subject, &[1; 9], SEEDS[0]);
    let mut other = filled(subject, &[1; 9], SEEDS[1]);
    for (at, (first, second)) in (0..).zip(all.iter().flat_map(|first| all.map(|second| (*first, second)))) {
        one.set_access(subject.granules(at), subject.granules(1), device, first).unwrap();
        other.set_access(subject.granules(at), subject.granules(1), device, second).unwrap();
    }
    let access = |region: &Region<B>| (0..9).map(|at| region.access(subject.granules(at), device)).collect();
    let before: [Vec<Access>; 2] = [access(&one), access(&other)];
    one.swap(Bytes(0), &mut other, Bytes(0), subject.granules(9), idle()).unwrap();
    assert_eq!([access(&one), access(&other)], before);
    for (region, allowed, seed) in [(&mut one, &before[0], SEEDS[1]), (&mut other, &before[1], SEEDS[0])] {
        for (at, access) in (0..).zip(allowed) {
            let (offset, length) = (subject.granules(at), subject.granules(1));
            let wrong = region.count_wrong(device, offset, length, seed + offset.0 / 8);
            match access {
                Access::None => refused!(wrong, Detail::NoAccess { .. }, device),
                _ => assert_eq!(wrong.unwrap(), 0, "granule {at}"),
            }
            match access {
                Access::ReadWrite => subject.write(region, offset, length, 5),
                _ => refused!(region.write(offset, &[1]), Detail::NoAccess { .. }, device),
            }
        }
    }
}

fn a_peers_access_stays_with_the_address<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut one = filled(subject, &[1, 1], SEEDS[0]);
    let mut other = filled(subject, &[1, 1], SEEDS[1]);
    let length = subject.granules(2);
    one.set_access(Bytes(0), length, b, Access::Read).unwrap();
    one.swap(Bytes(0), &mut other, Bytes(0), length, idle()).unwrap();
    assert_eq!((one.access(Bytes(0), b), other.access(Bytes(0), b)), (Access::Read, Access::None));
    assert_eq!(one.count_wrong(b, Bytes(0), length, SEEDS[1]).unwrap(), 0);
    refused!(other.count_wrong(b, Bytes(0), length, SEEDS[0]), Detail::NoAccess { .. }, b);
    subject.write(&mut one, Bytes(0), length, 3);
    assert_eq!(one.count_wrong(b, Bytes(0), length, 3).unwrap(), 0);
    subject.check(&other, Bytes(0), length, SEEDS[0]);
    assert_eq!((one.access(Bytes(0), a), other.access(Bytes(0), a)), (RW, RW));
}

fn memory_of_two_devices<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let length = subject.granules(2);
    let build = |device| {
        let mut region = subject.space(2).on(device).access(a, RW).access(b, RW).build().unwrap();
        region.grow_to(length).unwrap();
        region.write_pattern(device, Bytes(0), length, SEEDS[device.0 as usize % 2]).unwrap();
        region
    };
    let (mut one, mut other) = (build(a), build(b));
    one.swap_all(&mut other, idle()).unwrap();
    let owner = |region: &Region<B>| region.mapping_at(Bytes(0)).unwrap().memory.device();
    assert_eq!((owner(&one), owner(&other)), (b, a));
    for device in [a, b] {
        assert_eq!(one.count_wrong(device, Bytes(0), length, SEEDS[b.0 as usize % 2]).unwrap(), 0);
        assert_eq!(other.count_wrong(device, Bytes(0), length, SEEDS[a.0 as usize % 2]).unwrap(), 0);
    }
    one.write(Bytes(0), b"copied by its owner").unwrap();
}

fn whole_regions_with_holes<B: TestKit>(subject: &Subject<B>) {
    let mut one = subject.space(9).build().unwrap();
    let mut other = subject.space(20).build().unwrap();
    for (region, pieces, seed) in
        [(&mut one, vec![(1, 2), (5, 1)], SEEDS[0]), (&mut other, vec![(1, 1), (2, 1), (5, 1)], SEEDS[1])]
    {
        for (at, granules) in pieces {
            let (offset, memory) = (subject.granules(at), subject.piece(granules));
            subject.open(region, offset, &memory);
            subject.write(region, offset, memory.size(), seed + offset.0 / 8);
        }
    }
    one.swap_all(&mut other, idle()).unwrap();
    assert_eq!(cuts(subject, &one), [(1, 1), (2, 1), (5, 1)]);
    assert_eq!(cuts(subject, &other), [(1, 2), (5, 1)]);
    for (region, seed) in [(&one, SEEDS[1]), (&other, SEEDS[0])] {
        for (at, granules) in [(1, 2), (5, 1)] {
            let offset = subject.granules(at);
            subject.check(region, offset, subject.granules(granules), seed + offset.0 / 8);
        }
    }
}

fn nothing_for_nothing<B: TestKit>(subject: &Subject<B>) {
    let (mut one, mut other) = (subject.space(1).build().unwrap(), subject.space(2).build().unwrap());
    one.swap_all(&mut other, idle()).unwrap();
    assert_eq!((one.mapped(), other.mapped()), (Bytes(0), Bytes(0)));
}

fn across_a_border<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(subject.hole(64));
    let mut one = subject.region(2).at(at).extend_by(subject.unit()).build().unwrap();
    one.grow_to(subject.units(2)).unwrap();
    one.grow_to(subject.units(3)).unwrap();
    assert_eq!(one.reservations().len(), 2);
    let mut other = subject.region(3).build().unwrap();
    for units in [2, 3] {
        other.grow_to(subject.units(units)).unwrap();
    }
    let length = subject.units(3);
    subject.write(&mut one, Bytes(0), length, SEEDS[0]);
    subject.write(&mut other, Bytes(0), length, SEEDS[1]);
    one.swap(Bytes(0), &mut other, Bytes(0), length, idle()).unwrap();
    subject.check(&one, Bytes(0), length, SEEDS[1]);
    subject.check(&other, Bytes(0), length, SEEDS[0]);
    // Only the part behind the border.
    one.swap(subject.units(2), &mut other, subject.units(2), subject.unit(), idle()).unwrap();
    subject.check(&one, subject.units(2), subject.unit(), SEEDS[0] + subject.units(2).0 / 8);
}

fn they_stay_apart<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[2], SEEDS[0]);
    let mut other = filled(subject, &[1, 1], SEEDS[1]);
    let length = subject.granules(2);
    one.swap_all(&mut other, idle()).unwrap();
    subject.write(&mut one, Bytes(0), length, 77);
    subject.check(&other, Bytes(0), length, SEEDS[0]);
    other.fill(Bytes(0), length, 0x5a).unwrap();
    subject.check(&one, Bytes(0), length, 77);
    other.copy_from(Bytes(0), &one, Bytes(0), length).unwrap();
    subject.check(&other, Bytes(0), length, 77);
    one.unmap(Bytes(0), length, idle()).unwrap();
    subject.check(&other, Bytes(0), length, 77);
}

fn aliases_follow<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[1], SEEDS[0]);
    let mut other = filled(subject, &[1], SEEDS[1]);
    let mut third = subject.space(1).build().unwrap();
    let memory = one.mapping_at(Bytes(0)).unwrap().memory.clone();
    subject.open(&mut third, Bytes(0), &memory);
    one.swap_all(&mut other, idle()).unwrap();
    let length = subject.granules(1);
    subject.write(&mut third, Bytes(0), length, 7);
    subject.check(&other, Bytes(0), length, 7);
    subject.check(&one, Bytes(0), length, SEEDS[1]);
    subject.write(&mut other, Bytes(0), length, 8);
    subject.check(&third, Bytes(0), length, 8);
}
