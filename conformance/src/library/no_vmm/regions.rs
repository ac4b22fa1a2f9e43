//! Regions and vectors that grow and shrink.

use super::{filled, grow, has_one_allocation, shrink};
use crate::case::cases;
use crate::library::premap::settled;
use crate::library::tools::{capability, idle};
use crate::subject::Subject;
use gpu_vmm_core::{Access, Address, Bytes, Detail, DeviceVec, Feature, GrowthKind, Operation, Region};
use gpu_vmm_premap::{GrowingRegion, Premap, PremapThread};
use gpu_vmm_testkit::TestKit;

cases! { "no_vmm":
    /// The device is usable, its capabilities say why it has no virtual memory management, and name no other feature.
    said_by_capabilities,
    /// A new region has neither memory nor addresses, and takes no memory of the device.
    begins_empty,
    /// Growth keeps the contents, at another address, and the device can write the new memory.
    growth_keeps_contents,
    /// Growth to the same size or less changes nothing, and a size of zero is refused.
    growth_to_less,
    /// Growth is not limited by the addresses that the region asked for.
    beyond_the_reservation,
    /// Shrinking keeps the contents of the rest, and the removed memory is free at once.
    shrinking_returns_memory,
    /// Shrinking to zero frees all memory, and the region can grow again.
    shrinking_to_zero,
    /// Every address is a multiple of the alignment that the region asked for.
    aligned,
    /// Reading, writing, filling and copying work as in any region, and nothing outside of it can be read or written.
    contents,
    /// A vector keeps its elements while it grows, shrinks and is truncated, and its pointer is the elements' address.
    vectors,
    /// A thread that maps memory in advance does not move a region, and growth works without it.
    premap_does_nothing,
    /// Dropping and closing a region free its memory.
    ends,
}

fn said_by_capabilities<B: TestKit>(subject: &Subject<B>) {
    let device = subject.backend.device(Operation::QueryDevice, subject.device).unwrap();
    let reason = device.no_virtual_memory.clone().unwrap();
    let all = subject.backend.capabilities(subject.device).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    let found = capability(subject, Feature::VirtualMemory);
    assert!(!found.available && found.note == reason && !reason.is_empty(), "{found:?}");
    assert!(device.unusable.is_none() && !device.total_memory.is_zero());
}

fn begins_empty<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free_here();
    let mut region = subject.region(3).build().unwrap();
    assert!(region.is_plain());
    assert_eq!((region.address(), region.reserved(), region.end()), (Address(0), Bytes(0), Bytes(0)));
    assert_eq!((region.mappings().count(), region.reservations().count()), (0, 0));
    assert_eq!(region.access(Bytes(0), subject.device), Access::None);
    let error = region.write(Bytes(0), &[1]).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutOfRange { .. }), "{error}");
    assert_eq!(subject.free_here(), free);
}

fn growth_keeps_contents<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    has_one_allocation(&region, subject.unit());
    for units in [2, 3, 7] {
        let before = region.end();
        grow(&mut region, subject.units(units));
        let seed = units << 32;
        let added = region.end() - before;
        subject.write(&mut region, before, added, seed);
        subject.check(&region, Bytes(0), subject.unit(), 1);
        subject.check(&region, before, added, seed);
    }
    assert_eq!(region.access(Bytes(0), subject.device), Access::ReadWrite);
    let growth = region.grow_or_move(subject.units(8), idle()).unwrap();
    assert_eq!((growth.how, growth.address), (GrowthKind::Copied, region.address()));
    subject.check(&region, Bytes(0), subject.unit(), 1);
    // A size between two granules is rounded up.
    let rounded = subject.units(8) + subject.granularity();
    assert_eq!(region.grow_to(subject.units(8) + Bytes(1)).unwrap().end, rounded);
}

fn growth_to_less<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    let address = region.address();
    for size in [Bytes(1), subject.unit()] {
        let growth = region.grow_to(size).unwrap();
        assert_eq!((growth.how, growth.address, growth.added), (GrowthKind::Within, address, Bytes(0)));
    }
    let error = region.grow_to(Bytes(0)).unwrap_err();
    assert!(matches!(error.detail(), Detail::ZeroSize), "{error}");
    assert_eq!(region.address(), address);
    subject.check(&region, Bytes(0), subject.unit(), 1);
}

fn beyond_the_reservation<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(1).build().unwrap();
    grow(&mut region, subject.units(4));
    grow(&mut region, subject.units(9));
}

fn shrinking_returns_memory<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    let one = subject.free_here();
    grow(&mut region, subject.units(5));
    assert!(subject.free_here() < one);
    let address = region.address();
    assert_eq!(shrink(&mut region, subject.units(5)), Bytes(0));
    assert_eq!(region.address(), address);
    assert_eq!(shrink(&mut region, subject.unit()), subject.units(4));
    has_one_allocation(&region, subject.unit());
    subject.check(&region, Bytes(0), subject.unit(), 1);
    assert_eq!(subject.free_here(), one);
    let error = region.shrink_to(subject.units(2), idle()).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutOfRange { .. }), "{error}");
}

fn shrinking_to_zero<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free_here();
    let mut region = filled(subject, 1);
    assert_eq!(shrink(&mut region, Bytes(0)), subject.unit());
    assert_eq!((region.address(), region.end(), subject.free_here()), (Address(0), Bytes(0), free));
    assert_eq!(shrink(&mut region, Bytes(0)), Bytes(0));
    grow(&mut region, subject.units(2));
    subject.write(&mut region, Bytes(0), subject.units(2), 3);
    subject.check(&region, Bytes(0), subject.units(2), 3);
}

fn aligned<B: TestKit>(subject: &Subject<B>) {
    let alignment = Bytes(subject.granularity().0 * 8);
    let mut regions: Vec<Region<B>> =
        (0..4).map(|_| subject.region(1).alignment(alignment).build().unwrap()).collect();
    for granules in [1, 3, 9] {
        for (seed, region) in regions.iter_mut().enumerate() {
            region.grow_to(subject.granules(granules)).unwrap();
            assert!(region.address().is_aligned_to(alignment), "{} for {alignment}", region.address());
            let end = region.end();
            subject.write(region, Bytes(0), end, seed as u64);
        }
        for (seed, region) in regions.iter().enumerate() {
            subject.check(region, Bytes(0), region.end(), seed as u64);
        }
    }
}

fn contents<B: TestKit>(subject: &Subject<B>) {
    let (mut region, other) = (filled(subject, 1), filled(subject, 2));
    let size = subject.unit();
    region.write(Bytes(100), b"plain").unwrap();
    let mut bytes = [0; 7];
    region.read(Bytes(99), &mut bytes).unwrap();
    assert_eq!(&bytes[1..6], b"plain");
    region.fill(Bytes(0), Bytes(512), 9).unwrap();
    region.read(Bytes(99), &mut bytes).unwrap();
    assert_eq!(bytes, [9; 7]);
    region.copy_from(Bytes(0), &other, Bytes(0), size).unwrap();
    subject.check(&region, Bytes(0), size, 2);
    for (offset, length) in [(size, 1), (size - Bytes(1), 2)] {
        let error = region.write(offset, &vec![0; length]).unwrap_err();
        assert!(matches!(error.detail(), Detail::OutOfRange { .. }), "{error}");
    }
    subject.check(&region, Bytes(0), size, 2);
}

fn vectors<B: TestKit>(subject: &Subject<B>) {
    let mut vec = DeviceVec::<u64, B>::new(&subject.backend, subject.device).unwrap();
    let count = subject.granularity().to_usize().unwrap() / 8;
    let numbers: Vec<u64> = (0..count as u64).collect();
    for round in 1..=5 {
        vec.extend_from_slice(&numbers).unwrap();
        vec.push(round).unwrap();
        assert_eq!(vec.as_device_ptr().address(), vec.region().address());
        assert!(vec.capacity() >= vec.len());
    }
    let all = vec.to_vec().unwrap();
    assert_eq!(all.len(), 5 * (count + 1));
    for (round, part) in (1..).zip(all.chunks(count + 1)) {
        assert_eq!((&part[..count], part[count]), (&numbers[..], round));
    }
    vec.resize(6 * count, 77).unwrap();
    assert_eq!((vec.get(6 * count - 1).unwrap(), vec.get(count).unwrap()), (77, 1));
    vec.truncate(10);
    vec.shrink_to_fit(idle()).unwrap();
    assert_eq!((vec.region().end(), vec.to_vec().unwrap()), (subject.granularity(), numbers[..10].to_vec()));
}

fn premap_does_nothing<B: TestKit>(subject: &Subject<B>) {
    let thread = PremapThread::start(subject.units(64)).unwrap();
    let premap = Premap { by: subject.units(8), step: subject.unit() };
    let region = GrowingRegion::new(filled(subject, 1), premap, &thread);
    for units in 2..=4 {
        let grown = region.grow_to(subject.units(units)).unwrap().growth;
        assert_eq!((grown.how, grown.address), (GrowthKind::Copied, region.address()));
        assert_eq!((settled(&region, &thread), region.address()), (Bytes(0), grown.address));
        subject.check(&region.lock().unwrap(), Bytes(0), subject.unit(), 1);
    }
}

fn ends<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free_here();
    drop(filled(subject, 1));
    filled(subject, 2).close(idle()).unwrap();
    // The memory outlives the region as long as a clone of it exists.
    let region = filled(subject, 3);
    let memory = region.mappings().next().unwrap().memory.clone();
    drop(region);
    assert!(subject.free_here() < free);
    drop(memory);
    assert_eq!(subject.free_here(), free);
}
