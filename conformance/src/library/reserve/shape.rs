//! The size and the alignment of a region.

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{Access, Bytes, Operation, PhysicalMemory, Region};
use gpu_vmm_testkit::TestKit;

cases! { "reserve":
    /// A new region has the requested addresses in one reservation, and nothing is mapped in it.
    begins_empty,
    /// The granularity is a power of two, at least each device's, and divides the unit of addresses.
    granularity_is_a_power_of_two,
    /// Every power-of-two alignment up to 4 KiB is accepted, and memory can be mapped and used there.
    small_alignments,
    /// Alignments from 64 KiB to 16 GiB are kept, although HIP ignores the requested alignment.
    large_alignments,
    /// Three regions with the same large alignment are at three aligned, usable addresses.
    aligned,
    /// A size that is not a multiple of the unit of addresses is rounded up to one.
    sizes_are_rounded,
    /// Without a size, a region reserves addresses for all of the device's memory.
    as_much_as_the_device_has,
    /// A terabyte of addresses takes no memory.
    addresses_are_free,
    /// A reservation of 64 TiB is complete or is refused with the driver's error, never smaller.
    half_the_address_space,
    /// Of a thousand reservations at once, no two overlap.
    a_thousand_at_once,
}

fn begins_empty<B: TestKit>(subject: &Subject<B>) {
    let region = subject.region(3).build().unwrap();
    assert_eq!((region.reserved(), region.range().size), (subject.units(3), subject.units(3)));
    assert!(region.address().0 != 0 && region.address().is_aligned_to(subject.granularity()));
    assert_eq!(region.reservations().collect::<Vec<_>>(), [region.range()]);
    assert_eq!((region.end(), region.mapped(), region.mappings().count()), (Bytes(0), Bytes(0), 0));
    assert!(region.mapping_at(Bytes(0)).is_none());
    assert_eq!(region.access(Bytes(0), subject.device), Access::None);
}

fn granularity_is_a_power_of_two<B: TestKit>(subject: &Subject<B>) {
    let (granule, unit) = (subject.granularity().0, subject.unit().0);
    assert!(granule.is_power_of_two() && unit.is_multiple_of(granule), "{granule:#x} and {unit:#x}");
    for device in subject.backend.devices() {
        let own = device.granularity.bytes().0;
        assert!(own.is_power_of_two() && own <= granule, "{}: {own:#x} of {granule:#x}", device.id);
    }
    let region = subject.region(1).build().unwrap();
    assert_eq!(region.granularity(), subject.backend.granularity());
    assert!(!region.is_portable());
}

/// Reserves with an alignment, and uses memory there with the device.
fn use_aligned<B: TestKit>(subject: &Subject<B>, alignment: Bytes, memory: &PhysicalMemory<B>) -> Region<B> {
    let mut region = subject.region(3).alignment(alignment).build().unwrap();
    assert!(region.address().is_aligned_to(alignment), "{} for {alignment}", region.address());
    let last = region.reserved() - memory.size();
    subject.open(&mut region, last, memory);
    subject.write(&mut region, last, memory.size(), alignment.0);
    subject.check(&region, last, memory.size(), alignment.0);
    region
}

fn small_alignments<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(1);
    for bits in 0..=12 {
        use_aligned(subject, Bytes(1 << bits), &memory).close(idle()).unwrap();
    }
}

fn large_alignments<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(1);
    for bits in 16..=34 {
        use_aligned(subject, Bytes(1 << bits), &memory).close(idle()).unwrap();
    }
}

fn aligned<B: TestKit>(subject: &Subject<B>) {
    for alignment in [Bytes::mib(64), Bytes::gib(1)] {
        let memory = subject.piece(1);
        let regions: Vec<Region<B>> = (0..3).map(|_| use_aligned(subject, alignment, &memory)).collect();
        let mut addresses: Vec<_> = regions.iter().map(|region| region.address()).collect();
        addresses.dedup();
        assert_eq!(addresses.len(), 3);
    }
}

fn sizes_are_rounded<B: TestKit>(subject: &Subject<B>) {
    for (size, units) in [(Bytes(1), 1), (subject.unit(), 1), (subject.unit() + Bytes(1), 2)] {
        let region = Region::builder(&subject.backend).reserve(size).build().unwrap();
        assert_eq!(region.reserved(), subject.units(units), "for {size}");
    }
}

fn as_much_as_the_device_has<B: TestKit>(subject: &Subject<B>) {
    let total = subject.backend.device(Operation::QueryDevice, subject.device).unwrap().total_memory;
    let region = Region::builder(&subject.backend).on(subject.device).build().unwrap();
    assert!(total <= region.reserved() && region.reserved() < total + subject.unit());
}

fn addresses_are_free<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let region = Region::builder(&subject.backend).reserve(Bytes::gib(1024)).build().unwrap();
    assert_eq!(region.reserved(), Bytes::gib(1024));
    assert_eq!(subject.free(), before);
}

fn half_the_address_space<B: TestKit>(subject: &Subject<B>) {
    let size = Bytes(1 << 46);
    match Region::builder(&subject.backend).reserve(size).build() {
        Ok(region) => assert_eq!(region.range().size, size),
        Err(error) => assert!(error.driver_error().is_some(), "{error}"),
    }
}

fn a_thousand_at_once<B: TestKit>(subject: &Subject<B>) {
    let mut regions: Vec<Region<B>> = (0..1000).map(|_| subject.region(1).build().unwrap()).collect();
    regions.sort_by_key(|region| region.address());
    for pair in regions.windows(2) {
        assert!(pair[0].range().end() <= pair[1].address(), "{} and {}", pair[0].range(), pair[1].range());
    }
    // One of the thousand regions is checked.
    let last = regions.last_mut().unwrap();
    last.grow_to(subject.granularity()).unwrap();
    subject.write(last, Bytes(0), subject.granularity(), 1);
    subject.check(last, Bytes(0), subject.granularity(), 1);
}
