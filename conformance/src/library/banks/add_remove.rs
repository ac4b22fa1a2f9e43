//! Adding and removing banks.

use super::{check, filled};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{BankedRegion, Bytes, Detail, PhysicalMemory};
use gpu_vmm_testkit::TestKit;

cases! { "banks":
    /// Adding a bank allocates memory of the region's device, and removing and dropping the bank releases it.
    memory_of_a_bank,
    /// Removing the selected bank unmaps it; its ID is then invalid, refused and never reused.
    removed,
    /// A bank can consist of existing memory: its allocations are adjacent, and memory shared by two banks keeps its contents.
    of_memory_that_is_there,
    /// A bank can consist of another device's memory, and that device can use it while the bank is selected.
    of_another_device,
    /// Banks that are empty, too large, of another backend, or impossible to map are refused, and none is added.
    refused_banks,
    /// Converting to a region releases all banks except the selected one.
    as_a_region,
    /// A bank of several pieces has the size of all of them.
    size_of_several_pieces,
}

fn memory_of_a_bank<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free_here();
    let mut region = BankedRegion::build(subject.space(4)).unwrap();
    assert_eq!(subject.free_here(), before);
    let banks = [1, 4].map(|granules| region.add_bank(subject.granules(granules) - Bytes(1)).unwrap());
    assert_eq!(subject.free_here(), before - subject.granules(5));
    assert_eq!(region.banks().map(|(_, size)| size).sum::<Bytes>(), subject.granules(5));
    let memory = region.remove_bank(banks[1], idle()).unwrap();
    assert_eq!((memory.len(), memory[0].size()), (1, subject.granules(4)));
    assert_eq!(subject.free_here(), before - subject.granules(5), "the caller still holds it");
    drop(memory);
    assert_eq!(subject.free_here(), before - subject.granules(1));
    drop(region);
    assert_eq!(subject.free_here(), before);
}

fn removed<B: TestKit>(subject: &Subject<B>) {
    let (mut region, banks) = filled(subject, &[1, 1]);
    assert_eq!(region.selected(), Some(banks[1]));
    drop(region.remove_bank(banks[1], idle()).unwrap());
    assert_eq!((region.selected(), region.region().mapped(), region.banks().count()), (None, Bytes(0), 1));
    for answer in [region.select(banks[1], idle()), region.remove_bank(banks[1], idle()).map(drop)] {
        refused!(answer, Detail::NoSuchBank { .. }, banks[1], banks[0]);
    }
    let third = region.add_bank(subject.granules(1)).unwrap();
    assert!(!banks.contains(&third), "an ID is reused");
    region.select(banks[0], idle()).unwrap();
    drop(region.remove_bank(third, idle()).unwrap());
    assert_eq!(region.selected(), Some(banks[0]), "another bank was removed");
    check(subject, &region, 0);
    drop(region.remove_bank(banks[0], idle()).unwrap());
    refused!(region.select(banks[0], idle()), Detail::NoSuchBank { .. }, "none");
}

fn of_memory_that_is_there<B: TestKit>(subject: &Subject<B>) {
    let [shared, first, second] = [2, 1, 1].map(|granules| subject.piece(granules));
    let mut region = BankedRegion::build(subject.space(3)).unwrap();
    let one = region.add_bank_of(vec![shared.clone(), first]).unwrap();
    let two = region.add_bank_of(vec![shared, second]).unwrap();
    let behind = subject.granules(2);
    for (bank, seed) in [(one, 1), (two, 2)] {
        region.select(bank, idle()).unwrap();
        region.write_pattern(subject.device, behind, subject.granules(1), seed).unwrap();
    }
    region.write_pattern(subject.device, Bytes(0), behind, 5).unwrap();
    for (bank, seed) in [(one, 1), (two, 2), (one, 1)] {
        region.select(bank, idle()).unwrap();
        assert_eq!(region.region().mappings().count(), 2);
        subject.check(region.region(), Bytes(0), behind, 5);
        subject.check(region.region(), behind, subject.granules(1), seed);
    }
}

fn of_another_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = BankedRegion::build(subject.space(1).on(a)).unwrap();
    let ours = region.add_bank(subject.granules(1)).unwrap();
    let theirs = region.add_bank_of(vec![subject.piece_on(b, 1)]).unwrap();
    for (bank, owner, seed) in [(ours, a, 1), (theirs, b, 2)] {
        region.select(bank, idle()).unwrap();
        assert_eq!(region.region().access(Bytes(0), owner), RW);
        region.write_pattern(owner, Bytes(0), subject.granules(1), seed).unwrap();
    }
    for (bank, owner, seed) in [(ours, a, 1), (theirs, b, 2)] {
        region.select(bank, idle()).unwrap();
        assert_eq!(region.region().count_wrong(owner, Bytes(0), subject.granules(1), seed).unwrap(), 0);
    }
}

fn refused_banks<B: TestKit>(subject: &Subject<B>) {
    let (mut region, banks) = filled(subject, &[1]);
    let (free, reserved) = (subject.free(), region.region().reserved());
    let more = reserved + subject.granularity();
    refused!(region.add_bank(Bytes(0)), Detail::ZeroSize);
    refused!(region.add_bank_of(Vec::new()), Detail::ZeroSize);
    refused!(region.add_bank(more), Detail::OutOfRange { .. }, more, reserved);
    refused!(region.add_bank(Bytes(u64::MAX)), Detail::ExceedsAddressSpace { .. });
    let memory = PhysicalMemory::create(&subject.backend, more, subject.properties()).unwrap();
    refused!(region.add_bank_of(vec![memory]), Detail::OutOfRange { .. }, more, reserved);
    assert_eq!((subject.free(), region.banks().count()), (free, 1));
    if let Some(foreign) = subject.target.foreign() {
        let properties = gpu_vmm_core::Properties::on(gpu_vmm_core::DeviceId(0));
        let memory = PhysicalMemory::create(&foreign, Bytes(1), properties).unwrap();
        if memory.size() <= reserved {
            refused!(region.add_bank_of(vec![memory]), Detail::ForeignHandle { .. });
        }
    } else {
        skip("there is no second backend");
    }
    assert_eq!((region.selected(), region.banks().count()), (Some(banks[0]), 1));
    check(subject, &region, 0);
}

fn as_a_region<B: TestKit>(subject: &Subject<B>) {
    let (mut region, banks) = filled(subject, &[1, 2]);
    region.select(banks[0], idle()).unwrap();
    let (address, free) = (region.address(), subject.free_here());
    let region = region.into_region();
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
