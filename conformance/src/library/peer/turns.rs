//! Memory of both devices in turn at one address.

use super::pass_on;
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Bytes, DeviceId, PhysicalMemory, Region};
use gpu_vmm_testkit::TestKit;

cases! { "peer":
    /// Handles of different devices can be mapped in turn at one address, each accessible to its own device.
    in_turn_for_the_owner,
    /// Handles of different devices can be mapped in turn at one address, all accessible to the same device.
    in_turn_for_one_device,
    /// When one device's handle is replaced by another device's at the same address, kernels of both devices with access work
    /// on the new memory.
    to_another_device_at_the_same_address,
    /// A region that shrinks and grows again can map the other device's memory at the same address.
    grown_again_on_the_other_device,
}

/// Pieces of memory of both devices in turn.
fn pieces<B: TestKit>(subject: &Subject<B>, devices: [DeviceId; 2]) -> Vec<PhysicalMemory<B>> {
    (0..4).map(|place| subject.piece_on(devices[place % 2], 2)).collect()
}

fn in_turn_for_the_owner<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.space(2).build().unwrap();
    for (memory, seed) in pieces(subject, [a, b]).iter().zip(0..) {
        region.map(Bytes(0), memory).unwrap();
        region.set_access(Bytes(0), memory.size(), memory.device(), RW).unwrap();
        pass_on(&mut region, memory.device(), memory.device(), memory.size(), seed);
        region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    }
}

/// Maps memory in an empty region and gives both devices access.
fn open_to<B: TestKit>(region: &mut Region<B>, memory: &PhysicalMemory<B>, devices: [DeviceId; 2]) {
    region.map(Bytes(0), memory).unwrap();
    for device in devices {
        region.set_access(Bytes(0), memory.size(), device, RW).unwrap();
    }
}

fn in_turn_for_one_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let pieces = pieces(subject, [a, b]);
    let mut region = subject.space(2).build().unwrap();
    for writes in [true, false] {
        for (memory, seed) in pieces.iter().zip(0..) {
            // The owner too: without kernels, HIP 6 makes it do the copies.
            open_to(&mut region, memory, [memory.device(), a]);
            if writes {
                region.write_pattern(a, Bytes(0), memory.size(), seed).unwrap();
            }
            assert_eq!(region.count_wrong(a, Bytes(0), memory.size(), seed).unwrap(), 0, "piece {seed}");
            region.unmap(Bytes(0), memory.size(), idle()).unwrap();
        }
    }
}

fn to_another_device_at_the_same_address<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let (on_a, on_b) = (subject.piece_on(a, 2), subject.piece_on(b, 2));
    let mut region = subject.space(2).build().unwrap();
    let length = on_a.size();
    open_to(&mut region, &on_a, [a, b]);
    pass_on(&mut region, a, b, length, 1);
    let address = region.address();
    region.unmap(Bytes(0), length, idle()).unwrap();
    open_to(&mut region, &on_b, [a, b]);
    assert_eq!(region.address(), address);
    pass_on(&mut region, a, b, length, 2);
    pass_on(&mut region, b, a, length, 3);
    // Back again: the first piece has kept its bytes.
    region.unmap(Bytes(0), length, idle()).unwrap();
    open_to(&mut region, &on_a, [a, b]);
    for device in [a, b] {
        assert_eq!(region.count_wrong(device, Bytes(0), length, 1).unwrap(), 0);
    }
}

fn grown_again_on_the_other_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.space(4).on(a).access(a, RW).access(b, RW).build().unwrap();
    let address = region.address();
    for (device, seed) in [a, b, a].into_iter().zip(1..) {
        region.grow_to_on(device, subject.granules(4)).unwrap();
        assert_eq!(region.mapping_at(Bytes(0)).unwrap().memory.device(), device);
        pass_on(&mut region, a, b, subject.granules(4), seed);
        let _ = region.shrink_to(Bytes(0), idle()).unwrap();
        assert_eq!(region.address(), address);
    }
}
