//! Access to a region after a move, and the memory that it grows by.

use super::{SEED, check, filled, owners, two};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, or_skip};
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, MovePath, PhysicalMemory, Properties};
use gpu_vmm_testkit::TestKit;

cases! { "moved":
    /// In each mapping, the new owner takes over the old owner's access, and the old owner has none.
    handed_over,
    /// A peer that becomes the owner has at least the access that it had before.
    a_peer_becomes_the_owner,
    /// The old owner can be given access as a peer afterwards, and the driver enforces that access.
    the_old_owner_as_a_peer,
    /// After a move, the region grows by the new device's memory, with the access that growth gave before.
    growth_goes_on_there,
    /// The CPU keeps its access when the region moves.
    the_host_keeps_its_access,
    /// Moved memory keeps all of its properties except the device.
    properties_stay,
}

fn handed_over<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let mut region = filled(subject, &[1, 1, 1]);
    let granule = subject.granularity();
    let all = [RW, Access::Read, Access::None];
    for (at, access) in (0..).zip(all) {
        region.set_access(subject.granules(at), granule, a, access).unwrap();
    }
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    for (at, access) in (0..).zip(all) {
        let offset = subject.granules(at);
        assert_eq!((region.access(offset, a), region.access(offset, b)), (Access::None, access));
        if access == Access::None {
            // The mapping was moved too, as the new owner's access shows.
            region.set_access(offset, granule, b, Access::Read).unwrap();
        }
    }
    check(&region, b);
    refused!(region.count_wrong(a, Bytes(0), granule, SEED), Detail::NoAccess { .. }, a);
    refused!(region.write(granule, &[1]), Detail::NoAccess { have: Access::Read, .. }, b);
    region.write(Bytes(0), &[1]).unwrap();
}

fn a_peer_becomes_the_owner<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = filled(subject, &[1, 1, 1]);
    let (granule, length) = (subject.granularity(), subject.granules(3));
    for (at, own, peer) in [(0, Access::Read, RW), (1, RW, Access::Read), (2, Access::None, Access::Read)] {
        region.set_access(subject.granules(at), granule, b, peer).unwrap();
        region.set_access(subject.granules(at), granule, a, own).unwrap();
    }
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    let access: Vec<Access> = (0..3).map(|at| region.access(subject.granules(at), b)).collect();
    assert_eq!(access, [RW, RW, Access::Read]);
    assert!((0..3).all(|at| region.access(subject.granules(at), a) == Access::None));
    assert_eq!(region.count_wrong(b, Bytes(0), length, SEED).unwrap(), 0);
}

fn the_old_owner_as_a_peer<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = filled(subject, &[2]);
    let length = region.end();
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    region.set_access(Bytes(0), length, a, Access::Read).unwrap();
    check(&region, a);
    region.write_pattern(b, Bytes(0), length, 3).unwrap();
    assert_eq!(region.count_wrong(a, Bytes(0), length, 3).unwrap(), 0);
    refused!(region.write_pattern(a, Bytes(0), length, 3), Detail::NoAccess { have: Access::Read, .. }, a);
}

fn growth_goes_on_there<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let [one, two, three] = [1, 2, 3].map(|granules| subject.granules(granules));
    let mut plain = subject.space(3).on(a).build().unwrap();
    let mut shared = subject.space(3).on(a).access(b, Access::Read).build().unwrap();
    for region in [&mut plain, &mut shared] {
        region.grow_to(one).unwrap();
        let free = subject.free_of(b);
        region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
        region.grow_to(two).unwrap();
        assert_eq!(subject.free_of(b), free - two);
        assert_eq!(owners(region), [b, b]);
        assert_eq!((region.access(one, a), region.access(one, b)), (Access::None, RW));
        region.grow_to_on(a, three).unwrap();
        assert_eq!(owners(region), [b, b, a]);
        assert_eq!(region.access(two, a), RW, "a device has no access to its own memory");
    }
    // In the one region, growth gave access to the owner only; in the other, also to the new device.
    assert_eq!((plain.access(two, b), shared.access(two, b)), (Access::None, RW));
}

fn the_host_keeps_its_access<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = two(subject);
    let mut region = filled(subject, &[1]);
    let length = region.end();
    or_skip(region.set_access(Bytes(0), length, DeviceId::HOST, Access::Read));
    or_skip(region.move_to_device(b, MovePath::Fastest(None), idle()));
    assert_eq!(region.access(Bytes(0), DeviceId::HOST), Access::Read);
    check(&region, b);
}

fn properties_stay<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let properties = Properties::on(a).shareable();
    let memory = match PhysicalMemory::create(&subject.backend, subject.granularity(), properties) {
        Ok(memory) => memory,
        Err(error) if matches!(error.detail(), Detail::Unsupported { .. }) => subject.piece(1),
        Err(error) => panic!("{error}"),
    };
    let before = memory.properties();
    let mut region = subject.space(1).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    drop(memory);
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    let after = region.mapping_at(Bytes(0)).unwrap().memory.properties();
    assert_eq!(after, Properties { device: b, ..before });
}
