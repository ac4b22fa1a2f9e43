//! Swaps that are refused: each is an error of its own kind, and both regions are unchanged.

use super::{SEEDS, cuts, filled};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Access, Bytes, Detail, Location, Operation, PhysicalMemory, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "swap":
    /// Parts that are empty, misaligned, outside of the region, unmapped or not whole mappings are refused for either region.
    bad_parts,
    /// Whole regions with different holes are not swapped.
    holes_must_be_the_same,
    /// Several mappings with unequal access are not swapped for one mapping; the error names the device and its access.
    unequal_access_under_one_mapping,
    /// Memory that would cross the border of two reservations is refused with the offset of the border.
    over_a_border,
    /// Memory with a larger granularity is not swapped to an address that is not a multiple of it.
    larger_granularity,
    /// Regions of two backends are not swapped.
    another_backends_region,
}

/// Checks that both regions have the bytes that they were filled with.
#[track_caller]
fn unchanged<B: TestKit>(subject: &Subject<B>, one: &Region<B>, other: &Region<B>) {
    subject.check(one, Bytes(0), one.end(), SEEDS[0]);
    subject.check(other, Bytes(0), other.end(), SEEDS[1]);
}

fn bad_parts<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[2, 1], SEEDS[0]);
    let mut other = filled(subject, &[1, 2], SEEDS[1]);
    let g = |count| subject.granules(count);
    let zero = one.swap(g(0), &mut other, g(0), Bytes(0), idle());
    refused!(zero, Detail::ZeroSize, "swap");
    for (first, second, length) in
        [(g(0) + Bytes(8), g(0), g(3)), (g(0), Bytes(8), g(2)), (g(0), g(0), Bytes(8))]
    {
        refused!(one.swap(first, &mut other, second, length, idle()), Detail::Unaligned { .. }, "0x8");
    }
    let beyond = Bytes(one.reserved().0.max(other.reserved().0));
    refused!(one.swap(beyond, &mut other, g(0), g(1), idle()), Detail::OutOfRange { .. }, beyond);
    refused!(one.swap(g(0), &mut other, beyond, g(2), idle()), Detail::OutOfRange { .. }, beyond);
    let last = Bytes(u64::MAX - subject.granularity().0 + 1);
    refused!(one.swap(last, &mut other, g(0), g(1), idle()), Detail::Overflow { .. });
    refused!(one.swap(g(0), &mut other, last, g(2), idle()), Detail::Overflow { .. });
    refused!(one.swap(g(2), &mut other, g(0), g(2), idle()), Detail::NotMapped { .. }, g(3));
    refused!(one.swap(g(0), &mut other, g(1), g(3), idle()), Detail::NotMapped { .. }, g(3));
    refused!(one.swap(g(0), &mut other, g(0), g(1), idle()), Detail::PartialMapping { .. }, g(2));
    refused!(one.swap(g(2), &mut other, g(1), g(1), idle()), Detail::PartialMapping { .. }, g(2));
    unchanged(subject, &one, &other);
    one.swap(g(0), &mut other, g(1), g(2), idle()).unwrap();
}

fn holes_must_be_the_same<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[1, 1, 1], SEEDS[0]);
    let mut other = filled(subject, &[2], SEEDS[1]);
    let mut none = subject.space(3).build().unwrap();
    refused!(one.swap_all(&mut other, idle()), Detail::NotMapped { .. }, subject.granules(2));
    refused!(other.swap_all(&mut one, idle()), Detail::NotMapped { .. }, subject.granules(2));
    refused!(one.swap_all(&mut none, idle()), Detail::NotMapped { .. });
    refused!(none.swap_all(&mut one, idle()), Detail::NotMapped { .. });
    unchanged(subject, &one, &other);
    let mut holed = filled(subject, &[1, 1, 1], SEEDS[1]);
    holed.unmap(subject.granules(1), subject.granules(1), idle()).unwrap();
    refused!(one.swap_all(&mut holed, idle()), Detail::NotMapped { .. }, subject.granules(1));
    refused!(holed.swap_all(&mut one, idle()), Detail::NotMapped { .. }, subject.granules(1));
    subject.check(&one, Bytes(0), one.end(), SEEDS[0]);
}

fn unequal_access_under_one_mapping<B: TestKit>(subject: &Subject<B>) {
    let mut one = filled(subject, &[1, 1, 1], SEEDS[0]);
    let mut other = filled(subject, &[1, 2], SEEDS[1]);
    let (g, device) = (|count| subject.granules(count), subject.device);
    one.set_access(g(2), g(1), device, Access::Read).unwrap();
    let answer = one.swap(g(0), &mut other, g(0), g(3), idle());
    refused!(answer, Detail::AccessDiffers { .. }, device, "read and write", g(2));
    // Now the region with unequal access is the argument.
    let answer = other.swap(g(0), &mut one, g(0), g(3), idle());
    refused!(answer, Detail::AccessDiffers { .. }, device, "read and write", g(2));
    unchanged(subject, &one, &other);
    one.set_access(g(1), g(1), device, Access::Read).unwrap();
    one.swap(g(0), &mut other, g(0), g(3), idle()).unwrap();
    assert_eq!((one.access(g(1), device), one.access(g(2), device)), (Access::Read, Access::Read));
    subject.check(&one, Bytes(0), g(3), SEEDS[1]);
}

fn over_a_border<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(subject.hole(64));
    let mut one = subject.region(1).at(at).extend_by(subject.unit()).build().unwrap();
    for units in [1, 2] {
        one.grow_to(subject.units(units)).unwrap();
    }
    let mut other = subject.region(2).build().unwrap();
    other.grow_to(subject.units(2)).unwrap();
    subject.write(&mut one, Bytes(0), subject.units(2), SEEDS[0]);
    subject.write(&mut other, Bytes(0), subject.units(2), SEEDS[1]);
    let (length, border) = (subject.units(2), subject.unit());
    refused!(
        one.swap(Bytes(0), &mut other, Bytes(0), length, idle()),
        Detail::CrossesReservation { .. },
        border
    );
    refused!(other.swap_all(&mut one, idle()), Detail::CrossesReservation { .. }, border);
    unchanged(subject, &one, &other);
}

fn larger_granularity<B: TestKit>(subject: &Subject<B>) {
    let properties = subject.properties().located(Location::Host);
    let large = or_skip(subject.backend.granularity_of(Operation::QueryGranularity, &properties)).bytes();
    if large <= subject.granularity() {
        skip("host memory has the same granularity as device memory");
    }
    let memory = or_skip(PhysicalMemory::create(&subject.backend, large, properties));
    let builder = Region::builder(&subject.backend).memory(properties).reserve(large);
    let mut other = or_skip(builder.build());
    subject.open(&mut other, Bytes(0), &memory);
    subject.write(&mut other, Bytes(0), large, SEEDS[1]);
    let count = large.0 / subject.granularity().0;
    let mut one = filled(subject, &vec![1; 2 * count as usize], SEEDS[0]);
    let multiple = Bytes(one.address().0.next_multiple_of(large.0) - one.address().0);
    let between = if multiple == subject.granularity() { subject.granules(2) } else { subject.granularity() };
    let answer = one.swap(between, &mut other, Bytes(0), large, idle());
    refused!(answer, Detail::Unaligned { .. }, "address");
    unchanged(subject, &one, &other);
    // The small pieces would be mapped where only multiples of the larger granularity can be mapped.
    assert_eq!(cuts(subject, &one).len(), 2 * count as usize);
    let answer = one.swap(multiple, &mut other, Bytes(0), large, idle());
    refused!(answer, Detail::Unaligned { .. });
    unchanged(subject, &one, &other);
}

fn another_backends_region<B: TestKit>(subject: &Subject<B>) {
    let Some(foreign) = subject.target.foreign() else { skip("there is no second backend") };
    let mut one = filled(subject, &[1], SEEDS[0]);
    let mut other = Region::builder(&foreign).reserve(foreign.reservation_unit().bytes()).build().unwrap();
    other.grow_to(foreign.granularity().bytes()).unwrap();
    refused!(one.swap_all(&mut other, idle()), Detail::ForeignHandle { .. }, "swap");
    let length = subject.granularity();
    refused!(one.swap(Bytes(0), &mut other, Bytes(0), length, idle()), Detail::ForeignHandle { .. }, "swap");
    subject.check(&one, Bytes(0), length, SEEDS[0]);
}
