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
    let mut slots = BankedRegion::build(subject.space(3).on(subject.device)).unwrap();
    let [two, one, other] = [2, 1, 1].map(|granules| subject.piece_on(subject.device, granules));
    let first = slots.add_bank_of(vec![two.clone(), one]).unwrap();
    let second = slots.add_bank_of(vec![other, two.clone()]).unwrap();
    for set in [first, second, first] {
        slots.select(set, idle()).unwrap();
        let places: Vec<_> = slots.region().mappings().map(|one| (one.offset, one.length)).collect();
        let lengths = if set == first { [2, 1] } else { [1, 2] }.map(|count| subject.granules(count));
        assert_eq!(places, [(Bytes(0), lengths[0]), (lengths[0], lengths[1])]);
        let at = if set == first { Bytes(0) } else { lengths[0] };
        assert!(slots.region().mapping_at(at).unwrap().memory.is_same_as(&two));
        if set == first {
            // Written in the first round, and read in both.
            slots.write_pattern(subject.device, Bytes(0), subject.granules(2), 5).unwrap();
        }
        assert_eq!(slots.region().count_wrong(subject.device, at, subject.granules(2), 5).unwrap(), 0);
    }
}

fn each_set_keeps_its_bytes<B: TestKit>(subject: &Subject<B>) {
    let (mut slots, sets) = filled(subject, &[2, 2, 2]);
    let (address, free) = (slots.address(), subject.free());
    for place in [0, 2, 1, 0, 1, 2, 0] {
        slots.select(sets[place], idle()).unwrap();
        assert_eq!((slots.address(), slots.selected()), (address, Some(sets[place])));
        check(subject, &slots, place as u64);
    }
    slots.write_pattern(subject.device, Bytes(0), subject.granules(2), 7).unwrap();
    slots.select(sets[1], idle()).unwrap();
    check(subject, &slots, 1);
    slots.select(sets[0], idle()).unwrap();
    subject.check(slots.region(), Bytes(0), subject.granules(2), 7);
    assert_eq!(subject.free(), free, "selecting allocates and releases no memory");
}

fn sets_of_unequal_size<B: TestKit>(subject: &Subject<B>) {
    let sizes = [3, 1, 2];
    let (mut slots, sets) = filled(subject, &sizes);
    let listed: Vec<_> = slots.banks().collect();
    assert_eq!(
        listed,
        sets.iter().copied().zip(sizes.map(|size| subject.granules(size))).collect::<Vec<_>>()
    );
    for place in [1, 0, 2, 1] {
        slots.select(sets[place], idle()).unwrap();
        let size = subject.granules(sizes[place]);
        assert_eq!((slots.region().end(), slots.region().mapped()), (size, size));
        check(subject, &slots, place as u64);
        refused!(slots.region().read(size, &mut [0]), Detail::NotMapped { .. } | Detail::OutOfRange { .. });
    }
}

fn the_shown_one_is_left_alone<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let builder = gpu_vmm_core::Region::builder(&backend).on(subject.device);
    let mut slots = BankedRegion::build(builder.reserve(subject.granules(1))).unwrap();
    let set = slots.add_bank(subject.granules(1)).unwrap();
    slots.select(set, idle()).unwrap();
    backend.fail(0, 1);
    slots.select(set, idle()).unwrap();
    assert_eq!(backend.stop(), 0);
}

fn peers_are_granted_each_time<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let length = subject.granules(2);
    let mut slots = BankedRegion::build(subject.space(2).on(a).access(b, Access::Read)).unwrap();
    let mut closed = BankedRegion::build(subject.space(2).on(a)).unwrap();
    let sets = [1, 2].map(|seed| {
        let sets = [&mut slots, &mut closed].map(|slots| {
            let set = slots.add_bank(length).unwrap();
            slots.select(set, idle()).unwrap();
            slots.write_pattern(a, Bytes(0), length, seed).unwrap();
            set
        });
        (sets, seed)
    });
    for round in 0..4 {
        let ([set, other], seed) = sets[round % 2];
        slots.select(set, idle()).unwrap();
        closed.select(other, idle()).unwrap();
        assert_eq!(slots.region().count_wrong(b, Bytes(0), length, seed).unwrap(), 0);
        assert_eq!([a, b].map(|device| slots.region().access(Bytes(0), device)), [RW, Access::Read]);
        refused!(closed.region().count_wrong(b, Bytes(0), length, seed), Detail::NoAccess { .. }, b);
    }
}

fn work_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    const AFTER: u64 = 1 << 50;
    let mut slots = BankedRegion::build(subject.region(1)).unwrap();
    let sets = [0, 1].map(|_| slots.add_bank(subject.unit()).unwrap());
    slots.select(sets[0], idle()).unwrap();
    let flight = start(subject, slots.region(), Bytes(0), AFTER);
    slots.select(sets[1], idle()).unwrap();
    assert!(flight.is_done().unwrap(), "the bank was unmapped while work used it");
    slots.write_pattern(subject.device, Bytes(0), subject.unit(), 1).unwrap();
    slots.select(sets[0], idle()).unwrap();
    subject.check(slots.region(), Bytes(0), subject.unit(), AFTER);
}

fn a_failure_leaves_the_old_one<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let builder = gpu_vmm_core::Region::builder(&backend).on(subject.device);
    let mut slots = BankedRegion::build(builder.reserve(subject.granules(3))).unwrap();
    let sets = [(2, 1), (3, 2)].map(|(granules, seed)| {
        let set = slots.add_bank(subject.granules(granules)).unwrap();
        slots.select(set, idle()).unwrap();
        slots.write_pattern(subject.device, Bytes(0), subject.granules(granules), seed).unwrap();
        set
    });
    // The calls: wait, unmap, map, set access.
    for failing in 0..4 {
        backend.fail(failing, 1);
        slots.select(sets[0], idle()).unwrap_err();
        backend.stop();
        assert_eq!(slots.selected(), Some(sets[1]));
        let length = slots.region().end();
        assert_eq!(length, subject.granules(3));
        assert_eq!(slots.region().count_wrong(subject.device, Bytes(0), length, 2).unwrap(), 0);
    }
    slots.select(sets[0], idle()).unwrap();
    let wrong = slots.region().count_wrong(subject.device, Bytes(0), subject.granules(2), 1);
    assert_eq!(wrong.unwrap(), 0);
}

fn hidden<B: TestKit>(subject: &Subject<B>) {
    let mut slots = BankedRegion::build(subject.space(1)).unwrap();
    assert_eq!((slots.selected(), slots.region().mapped()), (None, Bytes(0)));
    let set = slots.add_bank(subject.granules(1)).unwrap();
    assert_eq!((slots.selected(), slots.region().mapped()), (None, Bytes(0)), "a new bank is not selected");
    for round in 0..2 {
        slots.select(set, idle()).unwrap();
        if round == 0 {
            slots.write_pattern(subject.device, Bytes(0), subject.granules(1), seed(0)).unwrap();
        }
        check(subject, &slots, 0);
        slots.hide(idle()).unwrap();
        slots.hide(idle()).unwrap();
        assert_eq!((slots.selected(), slots.region().mapped()), (None, Bytes(0)));
        refused!(slots.write(Bytes(0), &[1]), Detail::NotMapped { .. });
    }
    slots.select(set, idle()).unwrap();
    check(subject, &slots, 0);
}

fn contents_are_the_shown_ones<B: TestKit>(subject: &Subject<B>) {
    let (mut slots, sets) = filled(subject, &[1, 1]);
    slots.write(Bytes(16), b"of the second").unwrap();
    let mut elsewhere = subject.space(1).build().unwrap();
    elsewhere.grow_to(subject.granules(1)).unwrap();
    elsewhere.copy_from(Bytes(0), slots.region(), Bytes(0), subject.granules(1)).unwrap();
    slots.select(sets[0], idle()).unwrap();
    check(subject, &slots, 0);
    slots.fill(Bytes(0), subject.granules(1), 3).unwrap();
    slots.select(sets[1], idle()).unwrap();
    let mut bytes = [0; 13];
    slots.region().read(Bytes(16), &mut bytes).unwrap();
    assert_eq!(&bytes, b"of the second");
    slots.select(sets[0], idle()).unwrap();
    slots.region().read(Bytes(16), &mut bytes).unwrap();
    assert_eq!(bytes, [3; 13]);
    slots.copy_from(Bytes(0), &elsewhere, Bytes(0), subject.granules(1)).unwrap();
    slots.region().read(Bytes(16), &mut bytes).unwrap();
    assert_eq!(&bytes, b"of the second");
}

#[allow(unsafe_code)] // reclaims memory that was left until the end of the process
fn not_in_what_is_out_of_use<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let builder = gpu_vmm_core::Region::builder(&backend).on(subject.device);
    let mut slots = BankedRegion::build(builder.reserve(subject.granules(1))).unwrap();
    let sets = [0, 1].map(|_| slots.add_bank(subject.granules(1)).unwrap());
    slots.select(sets[0], idle()).unwrap();
    // After the wait and the unmap: the map fails, and so does mapping the old bank again.
    backend.fail(2, 2);
    let failed = slots.select(sets[1], idle()).unwrap_err();
    backend.stop();
    assert!(matches!(failed.detail(), Detail::RollbackFailed { .. }), "{failed}");
    assert_eq!(slots.selected(), Some(sets[0]));
    for set in sets {
        refused!(@SelectBank slots.select(set, idle()), Detail::Poisoned { .. }, subject.granules(1));
    }
    drop(slots);
    // SAFETY: no region of this backend is left, and no work uses its memory.
    unsafe { backend.reclaim() }.unwrap();
}
