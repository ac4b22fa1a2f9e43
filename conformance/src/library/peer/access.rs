//! Access of a device to another device's memory.

use super::pass_on;
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "peer":
    /// A peer with read access reads the owner's bytes and cannot write, and its access can be revoked.
    peers_are_granted_and_withdrawn,
    /// A peer with write access writes, and the owner reads what it wrote.
    a_peer_writes,
    /// A device that was not named cannot access another device's memory; once it is given access it reads what was written
    /// before, and the owner keeps its access.
    a_peer_that_comes_late,
    /// Two mappings of one piece can each be accessible to a different device.
    each_mapping_has_its_own,
    /// Setting one device's access over several mappings keeps another device's access to one of them.
    over_several_mappings,
    /// Every pair of the owner's and a peer's access can be set in one region without changing the other pairs.
    every_pair_of_accesses,
    /// Unmapping removes the access of all devices.
    gone_after_unmap,
    /// Growth within the reservation, by extension and by a move gives the peer the access that the region was built with.
    growth_grants_peers,
    /// A peer with access can use memory to which its owner has no access.
    the_peer_alone,
    /// The owner copies to and from the host, so these copies are refused if the owner has no access.
    the_owner_must_have_access,
}

fn peers_are_granted_and_withdrawn<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(4).on(a).access(b, Access::Read).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    pass_on(&mut region, a, b, subject.units(3), 1);
    refused!(region.write_pattern(b, Bytes(0), Bytes(8), 2), Detail::NoAccess { have: Access::Read, .. });
    region.set_access(Bytes(0), subject.units(3), b, Access::None).unwrap();
    refused!(region.count_wrong(b, Bytes(0), Bytes(8), 1), Detail::NoAccess { have: Access::None, .. });
    assert_eq!(region.count_wrong(a, Bytes(0), subject.units(3), 1).unwrap(), 0);
}

fn a_peer_writes<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.space(3).on(a).access(b, RW).build().unwrap();
    for granules in [1, 3] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    let length = region.end();
    pass_on(&mut region, b, a, length, 1);
    pass_on(&mut region, a, b, length, 2);
    pass_on(&mut region, b, b, length, 3);
}

fn a_peer_that_comes_late<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.space(3).on(a).build().unwrap();
    for granules in [1, 3] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    let length = region.end();
    region.write_pattern(a, Bytes(0), length, 1).unwrap();
    assert_eq!((region.access(Bytes(0), a), region.access(Bytes(0), b)), (RW, Access::None));
    refused!(region.count_wrong(b, Bytes(0), Bytes(8), 0), Detail::NoAccess { .. }, b);
    for access in [Access::Read, RW] {
        region.set_access(Bytes(0), length, b, access).unwrap();
        assert_eq!((region.access(Bytes(0), a), region.access(Bytes(0), b)), (RW, access));
        assert_eq!(region.count_wrong(b, Bytes(0), length, 1).unwrap(), 0);
    }
    pass_on(&mut region, a, b, length, 2);
    pass_on(&mut region, b, a, length, 3);
}

fn each_mapping_has_its_own<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let memory = subject.piece_on(a, 2);
    let mut regions: Vec<Region<B>> = Vec::new();
    for (device, access) in [(a, RW), (b, Access::Read)] {
        let mut region = subject.space(2).build().unwrap();
        region.map(Bytes(0), &memory).unwrap();
        region.set_access(Bytes(0), memory.size(), device, access).unwrap();
        regions.push(region);
    }
    let [for_a, for_b] = &mut regions[..] else { unreachable!() };
    for_a.write_pattern(a, Bytes(0), memory.size(), 1).unwrap();
    peer_reads(for_b, b, memory.size(), 1, subject);
    refused!(for_a.count_wrong(b, Bytes(0), Bytes(8), 1), Detail::NoAccess { .. }, b);
    refused!(for_b.count_wrong(a, Bytes(0), Bytes(8), 1), Detail::NoAccess { .. }, a);
}

/// Checks that a peer reads the pattern in memory to which the owner has no access. If the pattern is checked by copies, HIP
/// 6 would make the owner copy, and the backend refuses.
#[track_caller]
fn peer_reads<B: TestKit>(
    region: &Region<B>,
    peer: DeviceId,
    length: Bytes,
    seed: u64,
    subject: &Subject<B>,
) {
    match region.count_wrong(peer, Bytes(0), length, seed) {
        Err(error)
            if matches!(error.detail(), Detail::Unsupported { .. })
                && subject.backend.pattern_by() == "copies" => {}
        answer => assert_eq!(answer.unwrap(), 0),
    }
}

fn every_pair_of_accesses<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let all = [Access::None, Access::Read, RW];
    let pairs: Vec<(Access, Access)> = all.iter().flat_map(|own| all.map(|peer| (*own, peer))).collect();
    let mut region = subject.space(pairs.len() as u64).on(a).build().unwrap();
    for place in 0..pairs.len() as u64 {
        region.map(subject.granules(place), &subject.piece_on(a, 1)).unwrap();
    }
    region.set_access(Bytes(0), region.end(), a, RW).unwrap();
    region.write_pattern(a, Bytes(0), region.end(), 1).unwrap();
    let granule = subject.granularity();
    for ((own, peer), place) in pairs.iter().zip(0..) {
        region.set_access(subject.granules(place), granule, b, *peer).unwrap();
        region.set_access(subject.granules(place), granule, a, *own).unwrap();
    }
    let words = granule.0 / 8;
    for ((own, peer), place) in pairs.iter().zip(0..) {
        let offset = subject.granules(place);
        assert_eq!((region.access(offset, a), region.access(offset, b)), (*own, *peer));
        for (device, access) in [(a, own), (b, peer)] {
            let found = region.count_wrong(device, offset, granule, 1 + place * words);
            match access {
                Access::None => refused!(found, Detail::NoAccess { .. }, device),
                // As in `peer_reads`.
                _ if *own == Access::None && subject.backend.pattern_by() == "copies" => {}
                _ => assert_eq!(found.unwrap(), 0, "{device} with {own} and {peer}"),
            }
        }
    }
}

fn over_several_mappings<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let granule = subject.granularity();
    for open in 0..3 {
        let mut region = subject.space(3).on(a).build().unwrap();
        for granules in 1..=3 {
            region.grow_to(subject.granules(granules)).unwrap();
        }
        let offset = subject.granules(open);
        region.set_access(offset, granule, b, RW).unwrap();
        region.set_access(Bytes(0), region.end(), a, Access::Read).unwrap();
        for place in 0..3 {
            let [own, peer] = [a, b].map(|device| region.access(subject.granules(place), device));
            assert_eq!((own, peer), (Access::Read, if place == open { RW } else { Access::None }));
        }
        match region.write_pattern(b, offset, granule, open) {
            // As in `peer_reads`.
            Err(error)
                if matches!(error.detail(), Detail::Unsupported { .. })
                    && subject.backend.pattern_by() == "copies" => {}
            answer => {
                answer.unwrap();
                assert_eq!(region.count_wrong(a, offset, granule, open).unwrap(), 0, "mapping {open}");
            }
        }
    }
}

fn gone_after_unmap<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.space(2).on(a).access(b, RW).build().unwrap();
    region.grow_to(subject.granules(2)).unwrap();
    let memory = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    pass_on(&mut region, b, a, memory.size(), 1);
    region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    region.map(Bytes(0), &memory).unwrap();
    for device in [a, b] {
        assert_eq!(region.access(Bytes(0), device), Access::None);
        refused!(region.count_wrong(device, Bytes(0), memory.size(), 1), Detail::NoAccess { .. }, device);
    }
    region.set_access(Bytes(0), memory.size(), a, Access::Read).unwrap();
    assert_eq!(region.count_wrong(a, Bytes(0), memory.size(), 1).unwrap(), 0);
    refused!(region.count_wrong(b, Bytes(0), memory.size(), 1), Detail::NoAccess { .. }, b);
}

fn growth_grants_peers<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let at = Placement::Exact(subject.hole(64));
    let builder = subject.region(2).on(a).access(b, Access::Read).at(at).extend_by(subject.unit());
    let mut region = builder.build().unwrap();
    for units in [1, 2, 3] {
        region.grow_to(subject.units(units)).unwrap();
    }
    pass_on(&mut region, a, b, subject.units(3), 1);
    let wall = Placement::Exact(region.range().end());
    let _wall = subject.region(1).at(wall).build().unwrap();
    region.grow_or_move(subject.units(4), idle()).unwrap();
    assert_eq!(region.count_wrong(b, Bytes(0), subject.units(3), 1).unwrap(), 0);
    for unit in 0..4 {
        let offset = subject.units(unit);
        assert_eq!((region.access(offset, a), region.access(offset, b)), (RW, Access::Read), "unit {unit}");
    }
    pass_on(&mut region, a, b, subject.units(4), 2);
}

fn the_peer_alone<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let memory = subject.piece_on(a, 2);
    // At three addresses in turn.
    for seed in 0..3 {
        let mut region = subject.space(2).build().unwrap();
        region.map(Bytes(0), &memory).unwrap();
        region.set_access(Bytes(0), memory.size(), b, RW).unwrap();
        if seed > 0 {
            peer_reads(&region, b, memory.size(), seed - 1, subject);
        }
        match region.write_pattern(b, Bytes(0), memory.size(), seed) {
            Err(error)
                if matches!(error.detail(), Detail::Unsupported { .. })
                    && subject.backend.pattern_by() == "copies" =>
            {
                return;
            }
            answer => answer.unwrap(),
        }
        peer_reads(&region, b, memory.size(), seed, subject);
    }
}

fn the_owner_must_have_access<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(1).on(a).build().unwrap();
    region.map(Bytes(0), &subject.piece_on(a, 1)).unwrap();
    region.set_access(Bytes(0), region.end(), b, RW).unwrap();
    for result in [region.write(Bytes(0), &[1]), region.fill(Bytes(0), Bytes(1), 1)] {
        refused!(result, Detail::NoAccess { have: Access::None, .. }, a);
    }
    refused!(region.read(Bytes(0), &mut [1]), Detail::NoAccess { have: Access::None, .. }, a);
}
