//! Memory of both devices in one region.

use super::pass_on;
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, DeviceVec, GrowthKind, Placement, Region};
use gpu_vmm_testkit::{TestKit, write_pattern_words};

cases! { "peer":
    /// Memory is allocated on the named device and on no other.
    on_the_device_that_was_named,
    /// Each device alone supports a whole cycle: growth, kernels, host copies and closing.
    each_device_alone,
    /// Memory of two devices can be mapped back to back in one range, each part accessible only to its own device.
    back_to_back,
    /// One range grows by memory of two devices, and both devices access all of it.
    over_two_devices,
    /// Host copies span memory of two devices, and each device copies its own part.
    over_two_owners,
    /// A region grows by its own device's memory, then by another device's, then by its own again.
    in_turns,
    /// A region that moves keeps the memory of both devices in its order.
    moved_with_both,
    /// A vector on the other device works like any vector, and allocates its memory there.
    a_vector_on_the_other_device,
    /// A vector that both devices may read stays readable for both as it grows.
    a_vector_for_both,
}

fn on_the_device_that_was_named<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let before = [a, b].map(|device| subject.free_of(device));
    let size = subject.granules(8);
    let memory = subject.piece_on(b, 8);
    assert_eq!([a, b].map(|device| subject.free_of(device)), [before[0], before[1] - size]);
    assert_eq!(memory.device(), b);
    let other = subject.piece_on(a, 8);
    assert_eq!([a, b].map(|device| subject.free_of(device)), before.map(|free| free - size));
    drop(memory);
    assert_eq!([a, b].map(|device| subject.free_of(device)), [before[0] - size, before[1]]);
    drop(other);
}

fn each_device_alone<B: TestKit>(subject: &Subject<B>) {
    let devices = subject.two_devices();
    for (device, seed) in [devices.0, devices.1].into_iter().zip(0..) {
        let mut region = subject.space(3).on(device).build().unwrap();
        for granules in [1, 3] {
            region.grow_to(subject.granules(granules)).unwrap();
        }
        assert!(region.mappings().all(|mapping| mapping.memory.device() == device));
        let length = region.end();
        pass_on(&mut region, device, device, length, seed);
        region.write(Bytes(8), b"from the host").unwrap();
        let mut bytes = [0; 13];
        region.read(Bytes(8), &mut bytes).unwrap();
        assert_eq!(&bytes, b"from the host");
        region.close(idle()).unwrap();
    }
}

/// Two granules of each device's memory in turn, without access.
fn striped<B: TestKit>(subject: &Subject<B>, devices: [DeviceId; 2]) -> Region<B> {
    let mut region = subject.space(8).build().unwrap();
    for place in 0..4 {
        let memory = subject.piece_on(devices[place % 2], 2);
        region.map(subject.granules(2 * place as u64), &memory).unwrap();
    }
    region
}

fn back_to_back<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = striped(subject, [a, b]);
    let length = subject.granules(2);
    let parts: Vec<_> = [a, b, a, b].into_iter().zip([0, 2, 4, 6].map(|at| subject.granules(at))).collect();
    for (device, offset) in &parts {
        region.set_access(*offset, length, *device, RW).unwrap();
        region.write_pattern(*device, *offset, length, offset.0).unwrap();
    }
    for (device, offset) in &parts {
        assert_eq!(region.count_wrong(*device, *offset, length, offset.0).unwrap(), 0);
        let other = if *device == a { b } else { a };
        refused!(region.count_wrong(other, *offset, length, offset.0), Detail::NoAccess { .. }, other);
    }
    refused!(region.count_wrong(a, Bytes(0), length + length, 0), Detail::NoAccess { .. }, a, length);
}

fn over_two_devices<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(8).on(a).access(a, RW).access(b, RW).build().unwrap();
    region.grow_to_on(a, subject.units(3)).unwrap();
    region.grow_to_on(b, subject.units(8)).unwrap();
    let owners: Vec<DeviceId> = region.mappings().map(|mapping| mapping.memory.device()).collect();
    assert_eq!(owners, [a, b]);
    let length = region.end();
    pass_on(&mut region, a, b, length, 1);
    pass_on(&mut region, b, a, length, 2);
}

fn over_two_owners<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(4).on(a).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.grow_to_on(b, subject.units(4)).unwrap();
    // No device has access to the whole region; each owner copies its own part.
    let bytes: Vec<u8> = (0..100).collect();
    region.write(subject.units(2) - Bytes(50), &bytes).unwrap();
    let mut back = vec![0; 100];
    region.read(subject.units(2) - Bytes(50), &mut back).unwrap();
    assert_eq!(bytes, back);
    region.fill(subject.units(2) - Bytes(10), Bytes(20), 0xaa).unwrap();
    region.read(subject.units(2) - Bytes(50), &mut back).unwrap();
    assert_eq!(back[40..60], [0xaa; 20]);
    assert_eq!((&back[..40], &back[60..]), (&bytes[..40], &bytes[60..]));
}

fn in_turns<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.space(12).on(a).access(b, Access::Read).build().unwrap();
    let before = [a, b].map(|device| subject.free_of(device));
    region.grow_to(subject.granules(2)).unwrap();
    region.grow_to_on(b, subject.granules(5)).unwrap();
    region.grow_to(subject.granules(9)).unwrap();
    let taken = [6, 3].map(|granules| subject.granules(granules));
    let expected = [before[0] - taken[0], before[1] - taken[1]];
    assert_eq!([a, b].map(|device| subject.free_of(device)), expected);
    // The region's device owns its parts; the other device's part has the access that the region was built with.
    for (at, device, access) in [(0, a, RW), (2, b, Access::Read), (5, a, RW)] {
        assert_eq!(region.access(subject.granules(at), device), access, "at {at}");
    }
}

fn moved_with_both<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let base = subject.hole(4);
    let builder = subject.region(2).on(a).access(a, RW).access(b, RW).at(Placement::Exact(base));
    let mut region = builder.build().unwrap();
    let _wall = subject.region(1).at(Placement::Exact(base + subject.units(2))).build().unwrap();
    region.grow_to_on(a, subject.unit()).unwrap();
    region.grow_to_on(b, subject.units(2)).unwrap();
    let length = region.end();
    region.write_pattern(a, Bytes(0), length, 1).unwrap();
    let growth = region.grow_or_move(subject.units(3), idle()).unwrap();
    assert_eq!(growth.how, GrowthKind::Remapped);
    let owners: Vec<DeviceId> = region.mappings().map(|mapping| mapping.memory.device()).collect();
    assert_eq!(owners, [a, b, a]);
    for device in [a, b] {
        assert_eq!(region.count_wrong(device, Bytes(0), length, 1).unwrap(), 0);
    }
    pass_on(&mut region, b, a, subject.units(3), 2);
}

fn a_vector_on_the_other_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let before = [a, b].map(|device| subject.free_of(device));
    let mut numbers = DeviceVec::<u32, B>::new(&subject.backend, b).unwrap();
    for number in 0..10 {
        numbers.push(number).unwrap();
    }
    assert_eq!(numbers.to_vec().unwrap(), (0..10).collect::<Vec<u32>>());
    assert_eq!(subject.free_of(a), before[0]);
    assert_eq!(subject.free_of(b), before[1] - subject.granularity());
    assert_eq!(numbers.region().mapping_at(Bytes(0)).unwrap().memory.device(), b);
}

fn a_vector_for_both<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut words = DeviceVec::<u64, B>::build(subject.space(8).on(a).access(b, Access::Read)).unwrap();
    let count = (subject.granularity().0 / 8) as usize;
    let mut pattern = vec![0; 3 * count];
    write_pattern_words(&mut pattern, 1, 0);
    for part in pattern.chunks(count) {
        words.extend_from_slice(part).unwrap();
        let length = Bytes::of::<u64>(words.len()).unwrap();
        for device in [a, b] {
            assert_eq!(words.region().count_wrong(device, Bytes(0), length, 1).unwrap(), 0);
        }
    }
}
