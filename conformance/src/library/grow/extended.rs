//! Growth by reservations directly behind the last one.

use super::{full, walled};
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{Access, Bytes, Detail, GrowthKind, Placement};
use gpu_vmm_testkit::TestKit;

cases! { "grow":
    /// A full region grows into the addresses directly behind it, and its own address stays.
    extended,
    /// If enough addresses are free, 64 extensions in a row all succeed at the same address and form one range.
    extended_many_times,
    /// By default an extension is as large as the region, so that later steps fit into it.
    extended_by_as_much_again,
    /// If a step needs more than the requested extension size, the extension is as large as needed.
    extended_by_more_than_was_said,
    /// A step across the border of two reservations is split there, and so is every operation across it.
    a_step_across_the_border_is_split,
    /// A region that shrank keeps its reservations and grows into them again.
    extended_once_for_all,
    /// If the addresses behind are taken, the error contains them and the address offered instead, and nothing has changed.
    fixed_address_is_demanded,
    /// A region can grow up to the first taken address behind it: a step that just fits succeeds.
    up_to_what_is_in_the_way,
    /// Dropping a region frees all of its reservations.
    address_space_is_given_back,
    /// An extension has the size that the builder sets, rounded up to whole units, if the step needs less.
    extended_by_what_the_builder_sets,
}

fn extended<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 4);
    subject.write(&mut region, Bytes(0), subject.units(4), 7);
    let address = region.address();
    let growth = region.grow_to(subject.units(6)).unwrap();
    assert_eq!((growth.how, growth.address, growth.end), (GrowthKind::Extended, address, subject.units(6)));
    assert_eq!(region.reservations().len(), 2);
    subject.write(&mut region, subject.units(4), growth.added, 7 + subject.units(4).0 / 8);
    subject.check(&region, Bytes(0), subject.units(6), 7);
}

fn extended_many_times<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 1);
    let address = region.address();
    for units in 2..=65 {
        let growth = region.grow_to(subject.units(units)).unwrap();
        assert_eq!((growth.how, growth.address), (GrowthKind::Extended, address), "at {units} units");
    }
    assert_eq!(region.reservations().len(), 65);
    let length = region.end();
    subject.write(&mut region, Bytes(0), length, 7);
    subject.check(&region, Bytes(0), length, 7);
    let mut ranges = region.reservations().map(|range| (range.base, range.end()));
    let mut end = ranges.next().unwrap().1;
    for (base, next) in ranges {
        assert_eq!(base, end);
        end = next;
    }
}

fn extended_by_as_much_again<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(subject.hole(64));
    let mut region = subject.region(4).at(at).build().unwrap();
    region.grow_to(subject.units(5)).unwrap();
    let sizes: Vec<Bytes> = region.reservations().map(|range| range.size).collect();
    assert_eq!(sizes, [subject.units(4), subject.units(4)]);
    assert_eq!(region.grow_to(subject.units(8)).unwrap().how, GrowthKind::Within);
}

fn extended_by_more_than_was_said<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 2);
    region.grow_to(subject.units(7) + Bytes(1)).unwrap();
    let sizes: Vec<Bytes> = region.reservations().map(|range| range.size).collect();
    assert_eq!(sizes, [subject.units(2), subject.units(6)]);
    assert_eq!(region.end(), subject.units(7) + subject.granularity());
}

fn a_step_across_the_border_is_split<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 4);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.grow_to(subject.units(7)).unwrap();
    let mappings: Vec<_> = region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
    let units = |count| subject.units(count);
    assert_eq!(mappings, [(units(0), units(2)), (units(2), units(2)), (units(4), units(3))]);
    // Writes, fills and access changes across the border are split too.
    let around = units(4) - Bytes(100);
    region.write(around, &[1; 200]).unwrap();
    region.fill(around + Bytes(50), Bytes(100), 2).unwrap();
    let mut bytes = [0; 200];
    region.read(around, &mut bytes).unwrap();
    assert_eq!(bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 300);
    subject.write(&mut region, units(3), units(2), 5);
    subject.check(&region, units(3), units(2), 5);
    region.set_access(Bytes(0), units(7), subject.device, Access::Read).unwrap();
    assert_eq!(region.access(units(6), subject.device), Access::Read);
    region.unmap(units(2), units(5), idle()).unwrap();
    assert_eq!(region.mapped(), units(2));
}

fn extended_once_for_all<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 2);
    region.grow_to(subject.units(4)).unwrap();
    for seed in 0..3 {
        let _ = region.shrink_to(Bytes(0), idle()).unwrap();
        assert_eq!((region.reserved(), region.reservations().len()), (subject.units(4), 2));
        let growth = region.grow_to(subject.units(4)).unwrap();
        assert_eq!((growth.how, growth.added), (GrowthKind::Within, subject.units(4)));
        subject.write(&mut region, Bytes(0), subject.units(4), seed);
        subject.check(&region, Bytes(0), subject.units(4), seed);
    }
}

fn fixed_address_is_demanded<B: TestKit>(subject: &Subject<B>) {
    let (mut region, _wall) = walled(subject, 4);
    subject.write(&mut region, Bytes(0), subject.units(4), 1);
    let (address, free) = (region.address(), subject.free());
    let error = region.grow_to(subject.units(5)).unwrap_err();
    let wanted = address + subject.units(4);
    let Detail::OutgrewReservation { requested, reserved, wanted: reported, offered } = *error.detail()
    else {
        panic!("{error}")
    };
    assert_eq!((requested, reserved, reported), (subject.units(5), subject.units(4), wanted));
    assert_ne!(offered, wanted);
    for part in [offered.to_string(), requested.to_string(), reserved.to_string(), "grow_or_move".to_owned()]
    {
        assert!(error.to_string().contains(&part), "{error} does not say {part}");
    }
    assert_eq!((region.address(), region.end(), subject.free()), (address, subject.units(4), free));
    subject.check(&region, Bytes(0), subject.units(4), 1);
}

fn up_to_what_is_in_the_way<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(16);
    let _wall = subject.region(1).at(Placement::Exact(base + subject.units(6))).build().unwrap();
    let mut region = subject.region(4).at(Placement::Exact(base)).build().unwrap();
    region.grow_to(subject.units(4)).unwrap();
    let error = region.grow_to(subject.units(7)).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutgrewReservation { .. }), "{error}");
    // As much again would be four units; the two free units are enough.
    let growth = region.grow_to(subject.units(6)).unwrap();
    assert_eq!((growth.how, region.reserved()), (GrowthKind::Extended, subject.units(6)));
    subject.write(&mut region, Bytes(0), subject.units(6), 1);
    subject.check(&region, Bytes(0), subject.units(6), 1);
}

fn address_space_is_given_back<B: TestKit>(subject: &Subject<B>) {
    let mut region = full(subject, 2);
    for units in [3, 5] {
        region.grow_to(subject.units(units)).unwrap();
    }
    let range = region.range();
    region.close(idle()).unwrap();
    // One reservation covers all of them if the driver merges freed addresses.
    let joined = subject.region(5).at(Placement::Exact(range.base)).build();
    if !subject.has_quirk("free-races") {
        assert_eq!(joined.unwrap().range(), range);
        return;
    }
    // HIP 6 keeps each freed reservation as it was.
    drop(joined);
    let first = subject.region(2).at(Placement::Exact(range.base)).build().unwrap();
    let second = subject.region(1).at(Placement::Exact(first.range().end())).build().unwrap();
    assert_eq!(second.range().end(), range.base + subject.units(3));
}

fn extended_by_what_the_builder_sets<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(subject.hole(64));
    let size = subject.units(2) - Bytes(1);
    let mut region = subject.region(4).at(at).extend_by(size).build().unwrap();
    assert_eq!(region.settings().extend_by, subject.units(2));
    region.grow_to(subject.units(5)).unwrap();
    let sizes: Vec<Bytes> = region.reservations().map(|range| range.size).collect();
    assert_eq!(sizes, [subject.units(4), subject.units(2)]);
}
