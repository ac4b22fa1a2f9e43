//! The memory at the address, and the contents of banks that are not mapped.

use super::{check, filled, seed};
use crate::case::cases;
use crate::library::flights::start;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, BankedRegion, Bytes, Detail};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "banks":
    /// Whichever bank is selected, the address is the same and the bank contains the bytes that were last written to it.
    each_set_keeps_its_bytes,
    /// Banks of unequal size can be selected in turn: the mapped size is the bank's size, and nothing is mapped behind it.
    sets_of_unequal_size,
    /// Selecting the bank that is already selected makes no driver call.
    the_shown_one_is_left_alone,
    /// An allocation that two banks contain at different offsets is mapped at the offset of the selected bank.
    a_piece_at_two_places,
    /// Devices that the region grants access can use each bank while it is selected, and no other device can.
    peers_are_granted_each_time,
    /// Selecting another bank returns only after the work on the previous bank has finished, and that bank contains the results.
    work_is_waited_for,
    /// If a driver call fails, the previous bank stays selected with its bytes, and the new one can be selected later.
    a_failure_leaves_the_old_one,
    /// No bank is mapped at first or after hiding; a hidden bank has its old contents when it is selected again.
    hidden,
    /// Reading, writing, filling and copying affect the selected bank only.
    contents_are_the_shown_ones,
    /// In a region with a poisoned range no bank can be selected, not even the one that was.
    not_in_what_is_out_of_use,
}

fn a_piece_at_two_places<B: TestKit>(subject: &Subject<B>) {
    let mut region = BankedRegion::build(subject.space(3).on(subject.device)).unwrap();
    let [two, one, other] = [2, 1, 1].map(|granules| subject.piece_on(subject.device, granules));
    let first = region.add_bank_of(vec![two.clone(), one]).unwrap();
    let second = region.add_bank_of(vec![other, two.clone()]).unwrap();
    for bank in [first, second, first] {
        region.select(bank, idle()).unwrap();
        let places: Vec<_> = region.region().mappings().map(|one| (one.offset, one.length)).collect();
        let lengths = if bank == first { [2, 1] } else { [1, 2] }.map(|count| subject.granules(count));
        assert_eq!(places, [(Bytes(0), lengths[0]), (lengths[0], lengths[1])]);
        let at = if bank == first { Bytes(0) } else { lengths[0] };
        assert!(region.region().mapping_at(at).unwrap().memory.is_same_as(&two));
        if bank == first {
            // Written in the first round, and read in both.
            region.write_pattern(subject.device, Bytes(0), subject.granules(2), 5).unwrap();
        }
        assert_eq!(region.region().count_wrong(subject.device, at, subject.granules(2), 5).unwrap(), 0);
    }
}

fn each_set_keeps_its_bytes<B: TestKit>(subject: &Subject<B>) {
    let (mut region, banks) = filled(subject, &[2, 2, 2]);
    let (address, free) = (region.address(), subject.free());
    for place in [0, 2, 1, 0, 1, 2, 0] {
        region.select(banks[place], idle()).unwrap();
        assert_eq!((region.address(), region.selected()), (address, Some(banks[place])));
        check(subject, &region, place as u64);
    }
    region.write_pattern(subject.device, Bytes(0), subject.granules(2), 7).unwrap();
    region.select(banks[1], idle()).unwrap();
    check(subject, &region, 1);
    region.select(banks[0], idle()).unwrap();
    subject.check(region.region(), Bytes(0), subject.granules(2), 7);
    assert_eq!(subject.free(), free, "selecting allocates and releases no memory");
}

fn sets_of_unequal_size<B: TestKit>(subject: &Subject<B>) {
    let sizes = [3, 1, 2];
    let (mut region, banks) = filled(subject, &sizes);
    let listed: Vec<_> = region.banks().collect();
    assert_eq!(
        listed,
        banks.iter().copied().zip(sizes.map(|size| subject.granules(size))).collect::<Vec<_>>()
    );
    for place in [1, 0, 2, 1] {
        region.select(banks[place], idle()).unwrap();
        let size = subject.granules(sizes[place]);
        assert_eq!((region.region().end(), region.region().mapped()), (size, size));
        check(subject, &region, place as u64);
        refused!(region.region().read(size, &mut [0]), Detail::NotMapped { .. } | Detail::OutOfRange { .. });
    }
}

fn the_shown_one_is_left_alone<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let builder = gpu_vmm_core::Region::builder(&backend).on(subject.device);
    let mut region = BankedRegion::build(builder.reserve(subject.granules(1))).unwrap();
    let bank = region.add_bank(subject.granules(1)).unwrap();
    region.select(bank, idle()).unwrap();
    backend.fail(0, 1);
    region.select(bank, idle()).unwrap();
    assert_eq!(backend.stop(), 0);
}

fn peers_are_granted_each_time<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let length = subject.granules(2);
    let mut region = BankedRegion::build(subject.space(2).on(a).access(b, Access::Read)).unwrap();
    let mut closed = BankedRegion::build(subject.space(2).on(a)).unwrap();
    let banks = [1, 2].map(|seed| {
        let banks = [&mut region, &mut closed].map(|region| {
            let bank = region.add_bank(length).unwrap();
            region.select(bank, idle()).unwrap();
            region.write_pattern(a, Bytes(0), length, seed).unwrap();
            bank
        });
        (banks, seed)
    });
    for round in 0..4 {
        let ([bank, other], seed) = banks[round % 2];
        region.select(bank, idle()).unwrap();
        closed.select(other, idle()).unwrap();
        assert_eq!(region.region().count_wrong(b, Bytes(0), length, seed).unwrap(), 0);
        assert_eq!([a, b].map(|device| region.region().access(Bytes(0), device)), [RW, Access::Read]);
        refused!(closed.region().count_wrong(b, Bytes(0), length, seed), Detail::NoAccess { .. }, b);
    }
}

fn work_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    const AFTER: u64 = 1 << 50;
    let mut region = BankedRegion::build(subject.region(1)).unwrap();
    let banks = [0, 1].map(|_| region.add_bank(subject.unit()).unwrap());
    region.select(banks[0], idle()).unwrap();
    let flight = start(subject, region.region(), Bytes(0), AFTER);
    region.select(banks[1], idle()).unwrap();
    assert!(flight.is_done().unwrap(), "the bank was unmapped while work used it");
    region.write_pattern(subject.device, Bytes(0), subject.unit(), 1).unwrap();
    region.select(banks[0], idle()).unwrap();
    subject.check(region.region(), Bytes(0), subject.unit(), AFTER);
}

fn a_failure_leaves_the_old_one<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let builder = gpu_vmm_core::Region::builder(&backend).on(subject.device);
    let mut region = BankedRegion::build(builder.reserve(subject.granules(3))).unwrap();
    let banks = [(2, 1), (3, 2)].map(|(granules, seed)| {
        let bank = region.add_bank(subject.granules(granules)).unwrap();
        region.select(bank, idle()).unwrap();
        region.write_pattern(subject.device, Bytes(0), subject.granules(granules), seed).unwrap();
        bank
    });
    // The calls: wait, unmap, map, bank access.
    for failing in 0..4 {
        backend.fail(failing, 1);
        region.select(banks[0], idle()).unwrap_err();
        backend.stop();
        assert_eq!(region.selected(), Some(banks[1]));
        let length = region.region().end();
        assert_eq!(length, subject.granules(3));
        assert_eq!(region.region().count_wrong(subject.device, Bytes(0), length, 2).unwrap(), 0);
    }
    region.select(banks[0], idle()).unwrap();
    let wrong = region.region().count_wrong(subject.device, Bytes(0), subject.granules(2), 1);
    assert_eq!(wrong.unwrap(), 0);
}

fn hidden<B: TestKit>(subject: &Subject<B>) {
    let mut region = BankedRegion::build(subject.space(1)).unwrap();
    assert_eq!((region.selected(), region.region().mapped()), (None, Bytes(0)));
    let bank = region.add_bank(subject.granules(1)).unwrap();
    assert_eq!((region.selected(), region.region().mapped()), (None, Bytes(0)), "a new bank is not selected");
    for round in 0..2 {
        region.select(bank, idle()).unwrap();
        if round == 0 {
            region.write_pattern(subject.device, Bytes(0), subject.granules(1), seed(0)).unwrap();
        }
        check(subject, &region, 0);
        region.hide(idle()).unwrap();
        region.hide(idle()).unwrap();
        assert_eq!((region.selected(), region.region().mapped()), (None, Bytes(0)));
        refused!(region.write(Bytes(0), &[1]), Detail::NotMapped { .. });
    }
    region.select(bank, idle()).unwrap();
    check(subject, &region, 0);
}

fn contents_are_the_shown_ones<B: TestKit>(subject: &Subject<B>) {
    let (mut region, banks) = filled(subject, &[1, 1]);
    region.write(Bytes(16), b"of the second").unwrap();
    let mut elsewhere = subject.space(1).build().unwrap();
    elsewhere.grow_to(subject.granules(1)).unwrap();
    elsewhere.copy_from(Bytes(0), region.region(), Bytes(0), subject.granules(1)).unwrap();
    region.select(banks[0], idle()).unwrap();
    check(subject, &region, 0);
    region.fill(Bytes(0), subject.granules(1), 3).unwrap();
    region.select(banks[1], idle()).unwrap();
    let mut bytes = [0; 13];
    region.region().read(Bytes(16), &mut bytes).unwrap();
    assert_eq!(&bytes, b"of the second");
    region.select(banks[0], idle()).unwrap();
    region.region().read(Bytes(16), &mut bytes).unwrap();
    assert_eq!(bytes, [3; 13]);
    region.copy_from(Bytes(0), &elsewhere, Bytes(0), subject.granules(1)).unwrap();
    region.region().read(Bytes(16), &mut bytes).unwrap();
    assert_eq!(&bytes, b"of the second");
}

#[allow(unsafe_code)] // reclaims memory that was left until the end of the process
fn not_in_what_is_out_of_use<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let builder = gpu_vmm_core::Region::builder(&backend).on(subject.device);
    let mut region = BankedRegion::build(builder.reserve(subject.granules(1))).unwrap();
    let banks = [0, 1].map(|_| region.add_bank(subject.granules(1)).unwrap());
    region.select(banks[0], idle()).unwrap();
    // After the wait and the unmap: the map fails, and so does mapping the old bank again.
    backend.fail(2, 2);
    let failed = region.select(banks[1], idle()).unwrap_err();
    backend.stop();
    assert!(matches!(failed.detail(), Detail::RollbackFailed { .. }), "{failed}");
    assert_eq!(region.selected(), Some(banks[0]));
    for bank in banks {
        refused!(@SelectBank region.select(bank, idle()), Detail::Poisoned { .. }, subject.granules(1));
    }
    drop(region);
    // SAFETY: no region of this backend is left, and no work uses its memory.
    unsafe { backend.reclaim() }.unwrap();
}
