//! How sets come and go.

use super::{check, filled};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{BankedRegion, Bytes, Detail, PhysicalMemory};
use gpu_vmm_testkit::TestKit;

cases! { "banks":
    /// Each set takes memory of the region's device as it is added, and gives it back when it is removed and dropped.
    memory_of_a_set,
    /// A set that is shown is hidden when it is removed; its number is nobody's from then on, and refused.
    removed,
    /// A set can be made of memory that there is: its pieces lie one behind the other, and what two sets share stays.
    of_memory_that_is_there,
    /// A set can be of another device's memory, whose own device can use it then.
    of_another_device,
    /// Sets that are empty, too large, of another backend, or cannot lie there are refused, and none is added.
    refused_sets,
    /// Giving the region out gives the sets back but for the one that is shown.
    as_a_region,
}

fn memory_of_a_set<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free_here();
    let mut slots = BankedRegion::build(subject.space(4)).unwrap();
    assert_eq!(subject.free_here(), before);
    let sets = [1, 4].map(|granules| slots.add_bank(subject.granules(granules) - Bytes(1)).unwrap());
    assert_eq!(subject.free_here(), before - subject.granules(5));
    assert_eq!(slots.banks().map(|(_, size)| size).sum::<Bytes>(), subject.granules(5));
    let memory = slots.remove_bank(sets[1], idle()).unwrap();
    assert_eq!((memory.len(), memory[0].size()), (1, subject.granules(4)));
    assert_eq!(subject.free_here(), before - subject.granules(5), "it is still held");
    drop(memory);
    assert_eq!(subject.free_here(), before - subject.granules(1));
    drop(slots);
    assert_eq!(subject.free_here(), before);
}

fn removed<B: TestKit>(subject: &Subject<B>) {
    let (mut slots, sets) = filled(subject, &[1, 1]);
    assert_eq!(slots.selected(), Some(sets[1]));
    drop(slots.remove_bank(sets[1], idle()).unwrap());
    assert_eq!((slots.selected(), slots.region().mapped(), slots.banks().count()), (None, Bytes(0), 1));
    for answer in [slots.select(sets[1], idle()), slots.remove_bank(sets[1], idle()).map(drop)] {
        refused!(answer, Detail::NoSuchBank { .. }, sets[1], sets[0]);
    }
    let third = slots.add_bank(subject.granules(1)).unwrap();
    assert!(!sets.contains(&third), "a number is given twice");
    slots.select(sets[0], idle()).unwrap();
    drop(slots.remove_bank(third, idle()).unwrap());
    assert_eq!(slots.selected(), Some(sets[0]), "another set is removed");
    check(subject, &slots, 0);
    drop(slots.remove_bank(sets[0], idle()).unwrap());
    refused!(slots.select(sets[0], idle()), Detail::NoSuchBank { .. }, "none");
}

fn of_memory_that_is_there<B: TestKit>(subject: &Subject<B>) {
    let [shared, first, second] = [2, 1, 1].map(|granules| subject.piece(granules));
    let mut slots = BankedRegion::build(subject.space(3)).unwrap();
    let one = slots.add_bank_of(vec![shared.clone(), first]).unwrap();
    let two = slots.add_bank_of(vec![shared, second]).unwrap();
    let behind = subject.granules(2);
    for (set, seed) in [(one, 1), (two, 2)] {
        slots.select(set, idle()).unwrap();
        slots.write_pattern(subject.device, behind, subject.granules(1), seed).unwrap();
    }
    slots.write_pattern(subject.device, Bytes(0), behind, 5).unwrap();
    for (set, seed) in [(one, 1), (two, 2), (one, 1)] {
        slots.select(set, idle()).unwrap();
        assert_eq!(slots.region().mappings().count(), 2);
        subject.check(slots.region(), Bytes(0), behind, 5);
        subject.check(slots.region(), behind, subject.granules(1), seed);
    }
}

fn of_another_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut slots = BankedRegion::build(subject.space(1).on(a)).unwrap();
    let ours = slots.add_bank(subject.granules(1)).unwrap();
    let theirs = slots.add_bank_of(vec![subject.piece_on(b, 1)]).unwrap();
    for (set, owner, seed) in [(ours, a, 1), (theirs, b, 2)] {
        slots.select(set, idle()).unwrap();
        assert_eq!(slots.region().access(Bytes(0), owner), RW);
        slots.write_pattern(owner, Bytes(0), subject.granules(1), seed).unwrap();
    }
    for (set, owner, seed) in [(ours, a, 1), (theirs, b, 2)] {
        slots.select(set, idle()).unwrap();
        assert_eq!(slots.region().count_wrong(owner, Bytes(0), subject.granules(1), seed).unwrap(), 0);
    }
}

fn refused_sets<B: TestKit>(subject: &Subject<B>) {
    let (mut slots, sets) = filled(subject, &[1]);
    let (free, reserved) = (subject.free(), slots.region().reserved());
    let more = reserved + subject.granularity();
    refused!(slots.add_bank(Bytes(0)), Detail::ZeroSize);
    refused!(slots.add_bank_of(Vec::new()), Detail::ZeroSize);
    refused!(slots.add_bank(more), Detail::OutOfRange { .. }, more, reserved);
    refused!(slots.add_bank(Bytes(u64::MAX)), Detail::AddressSpaceExhausted { .. });
    let memory = PhysicalMemory::create(&subject.backend, more, subject.properties()).unwrap();
    refused!(slots.add_bank_of(vec![memory]), Detail::OutOfRange { .. }, more, reserved);
    assert_eq!((subject.free(), slots.banks().count()), (free, 1));
    if let Some(foreign) = subject.target.foreign() {
        let properties = gpu_vmm_core::Properties::on(gpu_vmm_core::DeviceId(0));
        let memory = PhysicalMemory::create(&foreign, Bytes(1), properties).unwrap();
        if memory.size() <= reserved {
            refused!(slots.add_bank_of(vec![memory]), Detail::ForeignHandle { .. });
        }
    } else {
        skip("there is no second backend");
    }
    assert_eq!((slots.selected(), slots.banks().count()), (Some(sets[0]), 1));
    check(subject, &slots, 0);
}

fn as_a_region<B: TestKit>(subject: &Subject<B>) {
    let (mut slots, sets) = filled(subject, &[1, 2]);
    slots.select(sets[0], idle()).unwrap();
    let (address, free) = (slots.address(), subject.free_here());
    let region = slots.into_region();
    assert_eq!((region.address(), region.end()), (address, subject.granules(1)));
    subject.check(&region, Bytes(0), region.end(), super::seed(0));
    if subject.gives_back_at_once() {
        assert_eq!(subject.free_here(), free + subject.granules(2));
    }
}
