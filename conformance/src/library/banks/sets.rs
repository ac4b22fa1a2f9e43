//! Adding and removing banks.

use super::{check, filled};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{BankedRegion, Bytes, Detail, PhysicalMemory};
use gpu_vmm_testkit::TestKit;

cases! { "banks":
    /// Adding a bank allocates memory of the region's device, and removing and dropping the bank releases it.
    memory_of_a_set,
    /// Removing the selected bank unmaps it; its ID is then invalid, refused and never reused.
    removed,
    /// A bank can consist of existing memory: its allocations are adjacent, and memory shared by two banks keeps its contents.
    of_memory_that_is_there,
    /// A bank can consist of another device's memory, and that device can use it while the bank is selected.
    of_another_device,
    /// Banks that are empty, too large, of another backend, or impossible to map are refused, and none is added.
    refused_sets,
    /// Converting to a region releases all banks except the selected one.
    as_a_region,
    /// A bank of several pieces has the size of all of them.
    size_of_several_pieces,
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
    assert_eq!(subject.free_here(), before - subject.granules(5), "the caller still holds it");
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
    assert!(!sets.contains(&third), "an ID is reused");
    slots.select(sets[0], idle()).unwrap();
    drop(slots.remove_bank(third, idle()).unwrap());
    assert_eq!(slots.selected(), Some(sets[0]), "another bank was removed");
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

fn size_of_several_pieces<B: TestKit>(subject: &Subject<B>) {
    let mut banked = BankedRegion::build(subject.space(4)).unwrap();
    let pieces = [2, 1].map(|granules| subject.piece(granules));
    let bank = banked.add_bank_of(pieces.into()).unwrap();
    assert_eq!(banked.banks().collect::<Vec<_>>(), [(bank, subject.granules(3))]);
}
