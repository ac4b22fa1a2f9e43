//! Unmapping: whole mappings, once, and the state afterwards.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{Access, Bytes, Detail, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "unmap":
    /// One call removes a run of mappings of different sizes.
    a_run_at_once,
    /// Mappings can be removed one by one, in any order.
    in_any_order,
    /// Removing one of several mappings leaves its neighbors with their bytes and access.
    one_of_several,
    /// A part of a run can be removed if it consists of whole mappings; otherwise nothing is removed.
    some_of_a_run,
    /// Unmapping removes the access: the next mapping at the address has none, and the bytes stay with the memory.
    gone_after_unmap,
    /// Reads, writes, fills and kernels are refused at addresses that were unmapped, or removed by shrinking.
    nothing_is_reached_any_more,
    /// Removing a mapping twice is an error, although CUDA returns success and HIP 6 crashes.
    twice_is_an_error,
    /// Removing a range that was never mapped is an error.
    never_mapped,
    /// The addresses stay reserved: no other region gets them.
    addresses_stay_reserved,
    /// Memory without a handle is released when its mapping is removed.
    memory_comes_back,
    /// One call removes mappings on both sides of the border of two reservations.
    across_a_border,
    /// A hundred rounds of mapping and unmapping at one address leak nothing.
    a_hundred_rounds,
}

/// A region with mappings of these sizes in a row, each with a pattern of its number.
fn mapped<B: TestKit>(subject: &Subject<B>, granules: &[u64]) -> Region<B> {
    let mut region = subject.space(granules.iter().sum()).build().unwrap();
    for (granules, seed) in granules.iter().zip(0..) {
        let (from, memory) = (region.end(), subject.piece(*granules));
        subject.open(&mut region, from, &memory);
        subject.write(&mut region, from, memory.size(), seed);
    }
    region
}

fn unmap<B: TestKit>(
    subject: &Subject<B>,
    region: &mut Region<B>,
    (at, length): (u64, u64),
) -> gpu_vmm_core::Result<()> {
    region.unmap(subject.granules(at), subject.granules(length), idle())
}

fn a_run_at_once<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[2, 1, 3]);
    unmap(subject, &mut region, (0, 6)).unwrap();
    assert_eq!((region.end(), region.mapped(), region.mappings().count()), (Bytes(0), Bytes(0), 0));
    // The whole range can be mapped again.
    let memory = subject.piece(6);
    subject.open(&mut region, Bytes(0), &memory);
    subject.write(&mut region, Bytes(0), memory.size(), 9);
    subject.check(&region, Bytes(0), memory.size(), 9);
}

fn in_any_order<B: TestKit>(subject: &Subject<B>) {
    let parts = [(0, 1), (1, 2), (3, 3), (6, 1), (7, 2)];
    let mut region = mapped(subject, &parts.map(|(_, length)| length));
    let mut left = vec![0, 1, 2, 3, 4];
    for gone in [2, 0, 4, 1, 3] {
        unmap(subject, &mut region, parts[gone]).unwrap();
        left.retain(|index| *index != gone);
        for index in &left {
            let (at, length) = parts[*index];
            subject.check(&region, subject.granules(at), subject.granules(length), *index as u64);
        }
    }
    assert_eq!(region.mapped(), Bytes(0));
}

fn one_of_several<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[2, 2, 2]);
    region.set_access(subject.granules(4), subject.granules(2), subject.device, Access::Read).unwrap();
    unmap(subject, &mut region, (2, 2)).unwrap();
    assert_eq!((region.end(), region.mapped()), (subject.granules(6), subject.granules(4)));
    let rights = [0, 2, 4].map(|at| region.access(subject.granules(at), subject.device));
    assert_eq!(rights, [RW, Access::None, Access::Read]);
    subject.check(&region, Bytes(0), subject.granules(2), 0);
    subject.check(&region, subject.granules(4), subject.granules(2), 2);
}

fn some_of_a_run<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[1, 2, 2, 1]);
    for cut in [(0, 2), (2, 1), (2, 3), (1, 3), (4, 2)] {
        refused!(unmap(subject, &mut region, cut), Detail::PartialMapping { .. });
    }
    assert_eq!(region.mapped(), subject.granules(6));
    unmap(subject, &mut region, (1, 4)).unwrap();
    let left: Vec<Bytes> = region.mappings().map(|mapping| mapping.offset).collect();
    assert_eq!(left, [Bytes(0), subject.granules(5)]);
    subject.check(&region, Bytes(0), subject.granules(1), 0);
    subject.check(&region, subject.granules(5), subject.granules(1), 3);
}

fn gone_after_unmap<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(4).build().unwrap();
    let (memory, other) = (subject.piece(2), subject.piece(2));
    subject.open(&mut region, Bytes(0), &memory);
    subject.write(&mut region, Bytes(0), memory.size(), 1);
    region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), Access::None);
    // At the same address.
    region.map(Bytes(0), &other).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), Access::None);
    refused!(region.count_wrong(subject.device, Bytes(0), other.size(), 1), Detail::NoAccess { .. });
    region.set_access(Bytes(0), other.size(), subject.device, RW).unwrap();
    subject.write(&mut region, Bytes(0), other.size(), 2);
    // At another address.
    let behind = memory.size();
    region.map(behind, &memory).unwrap();
    refused!(region.read(behind, &mut [0]), Detail::NoAccess { .. });
    region.set_access(behind, behind, subject.device, Access::Read).unwrap();
    subject.check(&region, behind, behind, 1);
}

fn nothing_is_reached_any_more<B: TestKit>(subject: &Subject<B>) {
    let (start, granule) = (Bytes(0), subject.granularity());
    for shrinks in [false, true] {
        let mut region = mapped(subject, &[2]);
        if shrinks {
            let _ = region.shrink_to(start, idle()).unwrap();
        } else {
            unmap(subject, &mut region, (0, 2)).unwrap();
        }
        refused!(region.read(start, &mut [0]), Detail::NotMapped { .. });
        refused!(region.write(start, &[0]), Detail::NotMapped { .. });
        refused!(region.fill(start, granule, 0), Detail::NotMapped { .. });
        refused!(region.write_pattern(subject.device, start, granule, 0), Detail::NotMapped { .. });
        refused!(region.count_wrong(subject.device, start, granule, 0), Detail::NotMapped { .. });
        refused!(region.set_access(start, granule, subject.device, RW), Detail::NotMapped { .. });
        refused!(unmap(subject, &mut region, (0, 2)), Detail::NotMapped { .. });
    }
}

fn twice_is_an_error<B: TestKit>(subject: &Subject<B>) {
    let mut region = mapped(subject, &[2, 2]);
    unmap(subject, &mut region, (0, 2)).unwrap();
    refused!(unmap(subject, &mut region, (0, 2)), Detail::NotMapped { .. });
    // Also together with a range that is mapped.
    refused!(unmap(subject, &mut region, (0, 4)), Detail::NotMapped { .. });
    subject.check(&region, subject.granules(2), subject.granules(2), 1);
    unmap(subject, &mut region, (2, 2)).unwrap();
    refused!(unmap(subject, &mut region, (2, 2)), Detail::NotMapped { .. });
}

fn never_mapped<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    refused!(unmap(subject, &mut region, (0, 1)), Detail::NotMapped { .. });
    refused!(region.unmap(Bytes(0), subject.units(2), idle()), Detail::NotMapped { .. }, subject.units(2));
    refused!(region.unmap(subject.units(2), subject.unit(), idle()), Detail::OutOfRange { .. });
}

fn addresses_stay_reserved<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.unmap(Bytes(0), subject.units(2), idle()).unwrap();
    for units in [0, 1] {
        let wanted = Placement::Exact(region.address() + subject.units(units));
        let error = subject.region(1).at(wanted).build().unwrap_err();
        assert!(matches!(error.detail(), Detail::AddressTaken { .. }), "{error}");
    }
}

fn memory_comes_back<B: TestKit>(subject: &Subject<B>) {
    if !subject.gives_back_at_once() {
        skip("this version of HIP keeps unmapped memory until the addresses are released");
    }
    let mut region = mapped(subject, &[4, 2, 8]);
    let held = subject.free_here();
    unmap(subject, &mut region, (4, 2)).unwrap();
    assert_eq!(subject.free_here(), held + subject.granules(2));
    unmap(subject, &mut region, (0, 4)).unwrap();
    unmap(subject, &mut region, (6, 8)).unwrap();
    assert_eq!(subject.free_here(), held + subject.granules(14));
}

fn across_a_border<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8);
    let mut region = subject.region(2).at(Placement::Exact(base)).extend_by(subject.unit()).build().unwrap();
    for units in 1..=4 {
        region.grow_to(subject.units(units)).unwrap();
    }
    assert_eq!(region.reservations().len(), 3);
    let unit = subject.unit();
    let words = unit.0 / 8;
    subject.write(&mut region, Bytes(0), subject.units(4), 1);
    region.unmap(unit, subject.units(2), idle()).unwrap();
    assert_eq!((region.mapped(), region.end()), (subject.units(2), subject.units(4)));
    subject.check(&region, Bytes(0), unit, 1);
    subject.check(&region, subject.units(3), unit, 1 + 3 * words);
    assert_eq!(region.reservations().len(), 3, "the addresses were released");
    region.unmap(Bytes(0), unit, idle()).unwrap();
    region.unmap(subject.units(3), unit, idle()).unwrap();
    assert_eq!(region.end(), Bytes(0));
}

fn a_hundred_rounds<B: TestKit>(subject: &Subject<B>) {
    let page = Bytes(4096);
    let mut region = subject.space(3).build().unwrap();
    let mut free = None;
    for round in 0..100 {
        let memory = subject.piece(1 + round % 3);
        subject.open(&mut region, Bytes(0), &memory);
        subject.write(&mut region, Bytes(0), page, round);
        subject.check(&region, Bytes(0), page, round);
        region.unmap(Bytes(0), memory.size(), idle()).unwrap();
        drop(memory);
        if subject.gives_back_at_once() {
            let now = subject.free_here();
            // The first round loads kernels, which stay loaded.
            assert_eq!(*free.get_or_insert(now), now, "after round {round}");
        }
    }
}
