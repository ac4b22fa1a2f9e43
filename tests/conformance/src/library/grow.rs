//! Rules 5 and 6: growth within, by extension, by remapping; one handle for what is asked.

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, DeviceId, Done, Error, Grown, Placement, Region, Vendor, Workbench};

cases! { "grow":
    /// within.
    within,
    /// sizes are rounded and said.
    sizes_are_rounded_and_said,
    /// one handle a step.
    one_handle_a_step,
    /// nothing to do.
    nothing_to_do,
    /// extended.
    extended,
    /// extended many times.
    extended_many_times,
    /// a step across the seam is split.
    a_step_across_the_seam_is_split,
    /// remapped.
    remapped,
    /// remapped keeps access and aliases.
    remapped_keeps_access_and_aliases,
    /// fixed address is demanded.
    fixed_address_is_demanded,
    /// unequal steps.
    unequal_steps,
    /// shrinks in whole handles.
    shrinks_in_whole_handles,
    /// shrinks to nothing and grows again.
    shrinks_to_nothing_and_grows_again,
    /// over two devices.
    over_two_devices,
    /// after a hole.
    after_a_hole,
    /// address space is given back.
    address_space_is_given_back,
}

/// A region that is full, with the addresses behind it known to be free or taken.
fn full<B: Workbench>(subject: &Subject<B>, units: u64, behind_is_free: bool) -> (Region<B>, Vec<Region<B>>) {
    let base = subject.hole(512);
    let mut region =
        subject.region(units).at(Placement::Exact(base)).extend_by(subject.unit()).build().unwrap();
    region.grow_to(subject.units(units)).unwrap();
    let mut others = Vec::new();
    if !behind_is_free {
        let behind = Placement::Exact(base.checked_add(subject.units(units)).unwrap());
        others.push(subject.region(1).at(behind).build().unwrap());
    }
    (region, others)
}

fn check_pattern<B: Workbench>(subject: &Subject<B>, region: &Region<B>, length: Bytes) {
    assert_eq!(region.count_wrong(subject.device, Bytes(0), length, 7).unwrap(), 0);
}

fn within<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(64).build().unwrap();
    let address = region.address();
    for units in [1, 2, 5, 16, 64] {
        let from = region.end();
        let growth = region.grow_to(subject.units(units)).unwrap();
        assert_eq!((growth.how, growth.address, growth.end), (Grown::Within, address, subject.units(units)));
        assert_eq!(growth.added, growth.end - from);
        region.write_pattern(subject.device, from, growth.added, 7 + from.0 / 8).unwrap();
        check_pattern(subject, &region, region.end());
    }
    // The check can fail.
    region.fill(subject.unit(), Bytes(8), 0x5a).unwrap();
    assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), 7).unwrap(), 1);
}

fn sizes_are_rounded_and_said<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    let least = subject.granularity();
    let growth = region.grow_to(Bytes(1)).unwrap();
    assert_eq!((growth.end, growth.added), (least, least));
    let growth = region.grow_to(least + Bytes(1)).unwrap();
    assert_eq!((growth.end, growth.added), (least + least, least));
}

fn one_handle_a_step<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(64).build().unwrap();
    for units in [1, 8, 64] {
        region.grow_to(subject.units(units)).unwrap();
    }
    let lengths: Vec<Bytes> = region.mappings().map(|mapping| mapping.length).collect();
    assert_eq!(lengths, [subject.units(1), subject.units(7), subject.units(56)]);
}

fn nothing_to_do<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    for units in [1, 2, 3] {
        let growth = region.grow_to(subject.units(units)).unwrap();
        assert_eq!((growth.how, growth.end, growth.added), (Grown::Within, subject.units(3), Bytes(0)));
    }
}

fn extended<B: Workbench>(subject: &Subject<B>) {
    let (mut region, _) = full(subject, 4, true);
    region.write_pattern(subject.device, Bytes(0), region.end(), 7).unwrap();
    let address = region.address();
    let growth = region.grow_to(subject.units(6)).unwrap();
    assert_eq!((growth.how, growth.address, growth.end), (Grown::Extended, address, subject.units(6)));
    assert_eq!(region.reservations().len(), 2);
    region.write_pattern(subject.device, subject.units(4), growth.added, 7 + subject.units(4).0 / 8).unwrap();
    check_pattern(subject, &region, region.end());
}

fn extended_many_times<B: Workbench>(subject: &Subject<B>) {
    let (mut region, _) = full(subject, 1, true);
    let address = region.address();
    for units in 2..=65 {
        let growth = region.grow_to(subject.units(units)).unwrap();
        assert_eq!((growth.how, growth.address), (Grown::Extended, address), "at {units} units");
    }
    assert_eq!(region.reservations().len(), 65);
    region.write_pattern(subject.device, Bytes(0), region.end(), 7).unwrap();
    check_pattern(subject, &region, region.end());
    let mut ends = region.reservations().map(|range| (range.base, range.end()));
    let mut end = ends.next().unwrap().1;
    for (base, next) in ends {
        assert_eq!(base, end);
        end = next;
    }
}

fn a_step_across_the_seam_is_split<B: Workbench>(subject: &Subject<B>) {
    let (mut region, _) = full(subject, 4, true);
    region.shrink_to(Bytes(0), Done::when_devices_idle()).unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.grow_to(subject.units(7)).unwrap();
    let mappings: Vec<_> = region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
    let units = |count| subject.units(count);
    assert_eq!(mappings, [(units(0), units(2)), (units(2), units(2)), (units(4), units(3))]);
    // Bytes, fills and access across the seam are split too.
    let around = units(4) - Bytes(100);
    region.write(around, &[1; 200]).unwrap();
    region.fill(around + Bytes(50), Bytes(100), 2).unwrap();
    let mut bytes = [0; 200];
    region.read(around, &mut bytes).unwrap();
    assert_eq!(bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 300);
    region.set_access(Bytes(0), units(7), subject.device, Access::Read).unwrap();
    assert_eq!(region.access(units(6), subject.device), Access::Read);
    region.unmap(units(2), units(5), Done::when_devices_idle()).unwrap();
    assert_eq!(region.mapped(), units(2));
}

fn remapped<B: Workbench>(subject: &Subject<B>) {
    let (mut region, others) = full(subject, 4, false);
    region.write_pattern(subject.device, Bytes(0), region.end(), 7).unwrap();
    let before = region.address();
    let growth = region.grow_or_move(subject.units(9), Done::when_devices_idle()).unwrap();
    assert_eq!((growth.how, growth.end, growth.added), (Grown::Remapped, subject.units(9), subject.units(5)));
    assert_ne!(growth.address, before);
    assert_eq!((region.address(), region.reservations().len()), (growth.address, 1));
    assert!(region.reserved() >= subject.units(18), "a move leaves room: {}", region.reserved());
    check_pattern(subject, &region, subject.units(4));
    region.write(subject.units(8), b"new").unwrap();
    // The old addresses are free again.
    let old = subject.region(4).at(Placement::Exact(before)).build().unwrap();
    assert_eq!(old.address(), before);
    drop(others);
}

fn remapped_keeps_access_and_aliases<B: Workbench>(subject: &Subject<B>) {
    let (mut region, _others) = full(subject, 2, false);
    region.write(Bytes(0), b"same memory").unwrap();
    let shared = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    region.set_access(Bytes(0), subject.units(2), subject.device, Access::Read).unwrap();
    region.grow_or_move(subject.units(3), Done::when_devices_idle()).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), Access::Read);
    assert_eq!(region.access(subject.units(2), subject.device), RW);
    assert!(region.mapping_at(Bytes(0)).unwrap().memory.is_same_as(&shared));
    let mut bytes = [0; 11];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"same memory");
}

fn fixed_address_is_demanded<B: Workbench>(subject: &Subject<B>) {
    let (mut region, _others) = full(subject, 4, false);
    region.write(Bytes(0), b"untouched").unwrap();
    let (address, free) = (region.address(), subject.free());
    let error = region.grow_to(subject.units(5)).unwrap_err();
    let wanted = address.checked_add(subject.units(4)).unwrap();
    let Error::AddressTaken { wanted: told, offered, .. } = error else { panic!("{error}") };
    assert_eq!(told, wanted);
    assert_ne!(offered, wanted);
    assert!(error.to_string().contains(&offered.to_string()), "{error}");
    assert_eq!((region.address(), region.end(), subject.free()), (address, subject.units(4), free));
    let mut bytes = [0; 9];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"untouched");
}

fn unequal_steps<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(200).build().unwrap();
    let mut units = 0;
    for step in [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] {
        let from = region.end();
        units += step;
        region.grow_to(subject.units(units)).unwrap();
        region.write_pattern(subject.device, from, region.end() - from, 7 + from.0 / 8).unwrap();
    }
    check_pattern(subject, &region, subject.units(units));
}

fn shrinks_in_whole_handles<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(16).build().unwrap();
    for units in [2, 4, 8, 16] {
        region.grow_to(subject.units(units)).unwrap();
    }
    let free = subject.free()[0];
    let shrunk = region.shrink_to(subject.units(5), Done::when_devices_idle()).unwrap();
    // 5 units lie in the handle from 4 to 8, which stays.
    assert_eq!((shrunk.end, shrunk.removed), (subject.units(8), subject.units(8)));
    // Some versions of HIP keep the memory until the addresses are given back.
    if subject.backend.vendor() != Vendor::Hip {
        assert_eq!(subject.free()[0], free + subject.units(8));
    }
    // Use after shrink is an error.
    assert!(matches!(region.read(subject.units(8), &mut [0]), Err(Error::NotMapped { .. })));
    let too_much = region.shrink_to(subject.units(9), Done::when_devices_idle()).unwrap_err();
    assert!(matches!(too_much, Error::OutOfRange { .. }), "{too_much}");
}

fn shrinks_to_nothing_and_grows_again<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(8).build().unwrap();
    let address = region.address();
    for _ in 0..3 {
        region.grow_to(subject.units(3)).unwrap();
        region.write(Bytes(0), b"again").unwrap();
        region.grow_to(subject.units(8)).unwrap();
        let shrunk = region.shrink_to(Bytes(0), Done::when_devices_idle()).unwrap();
        assert_eq!((shrunk.end, shrunk.removed, region.address()), (Bytes(0), subject.units(8), address));
    }
}

fn over_two_devices<B: Workbench>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(8).access(a, RW).access(b, RW).build().unwrap();
    region.grow_to_on(a, subject.units(3)).unwrap();
    region.grow_to_on(b, subject.units(8)).unwrap();
    let owners: Vec<DeviceId> = region.mappings().map(|mapping| mapping.memory.device()).collect();
    assert_eq!(owners, [a, b]);
    for (writer, reader, seed) in [(a, b, 1), (b, a, 2)] {
        region.write_pattern(writer, Bytes(0), region.end(), seed).unwrap();
        assert_eq!(region.count_wrong(reader, Bytes(0), region.end(), seed).unwrap(), 0);
        assert_ne!(region.count_wrong(reader, Bytes(0), region.end(), seed + 1).unwrap(), 0);
    }
}

fn after_a_hole<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(16).build().unwrap();
    for units in [2, 4, 6, 8] {
        region.grow_to(subject.units(units)).unwrap();
    }
    region.unmap(subject.units(2), subject.units(2), Done::when_devices_idle()).unwrap();
    let growth = region.grow_to(subject.units(9)).unwrap();
    assert_eq!((growth.added, region.mapped()), (subject.unit(), subject.units(7)));
    // Shrinking past the hole takes what is on both sides.
    let shrunk = region.shrink_to(subject.units(1), Done::when_devices_idle()).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (subject.units(2), subject.units(5)));
}

fn address_space_is_given_back<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(4)).unwrap();
    let range = region.range();
    region.close(Done::when_devices_idle()).unwrap();
    let again = subject.region(4).at(Placement::Exact(range.base)).build().unwrap();
    assert_eq!(again.range(), range);
}
