//! Parts of a region that an operation cannot work on.

use super::half_full;
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::extend::MappedMemory;
use gpu_vmm_core::{Access, AccessMap, Bytes, Detail, Operation};
use gpu_vmm_testkit::TestKit;

cases! { "refused":
    /// Mapping over an existing mapping is refused with that mapping's range, wherever the two overlap.
    over_a_mapping,
    /// Unmapping or protecting a range that cuts through a mapping is refused, at either end.
    part_of_a_mapping,
    /// Protecting, unmapping, filling and reading over a hole is refused with the offset of the hole, although CUDA accepts
    /// it.
    over_a_hole,
    /// A range beyond the region's last address is refused with the region's size.
    behind_the_region,
    /// A layout whose mappings overlap or are out of order is refused with the mapping in the way.
    layouts_that_overlap,
    /// After refusals of every kind, the region, its bytes, its access and the device's memory are unchanged.
    nothing_changes,
}

fn over_a_mapping<B: TestKit>(subject: &Subject<B>) {
    let mut region = half_full(subject);
    for (offset, units) in [(0, 1), (1, 1), (1, 2), (0, 4)] {
        let memory = subject.memory(units);
        let offset = subject.units(offset);
        refused!(region.map(offset, &memory), Detail::AlreadyMapped { .. }, memory.size(), subject.units(2));
    }
    region.map(subject.units(2), &subject.memory(2)).unwrap();
}

fn part_of_a_mapping<B: TestKit>(subject: &Subject<B>) {
    let mut region = half_full(subject);
    region.grow_to(subject.units(4)).unwrap();
    for (offset, length) in [(0, 1), (1, 1), (1, 2), (0, 3), (1, 3), (2, 1), (3, 1)] {
        let (offset, length) = (subject.units(offset), subject.units(length));
        refused!(region.unmap(offset, length, idle()), Detail::PartialMapping { .. }, offset, length);
        let access = region.set_access(offset, length, subject.device, Access::Read);
        refused!(access, Detail::PartialMapping { .. }, offset, length);
    }
    assert_eq!((region.access(Bytes(0), subject.device), region.mapped()), (RW, subject.units(4)));
}

fn over_a_hole<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(6).build().unwrap();
    for offset in [1, 4] {
        region.map(subject.units(offset), &subject.memory(1)).unwrap();
    }
    for (offset, length) in [(0, 1), (0, 2), (1, 2), (1, 4), (2, 2), (4, 2), (5, 1)] {
        let (offset, length) = (subject.units(offset), subject.units(length));
        refused!(region.set_access(offset, length, subject.device, RW), Detail::NotMapped { .. }, offset);
        refused!(region.unmap(offset, length, idle()), Detail::NotMapped { .. });
        refused!(region.fill(offset, length, 1), Detail::NotMapped { .. });
        refused!(region.count_wrong(subject.device, offset, length, 1), Detail::NotMapped { .. });
    }
    let around = region.read(subject.units(2) - Bytes(1), &mut [0; 2]);
    refused!(around, Detail::NotMapped { .. }, format!("nothing is mapped at offset {}", subject.units(2)));
}

fn behind_the_region<B: TestKit>(subject: &Subject<B>) {
    let mut region = half_full(subject);
    for (offset, units) in [(4, 1), (3, 2), (100, 1)] {
        let (offset, length) = (subject.units(offset), subject.units(units));
        let limit = subject.units(4);
        refused!(region.map(offset, &subject.memory(units)), Detail::OutOfRange { .. }, offset, limit);
        refused!(region.unmap(offset, length, idle()), Detail::OutOfRange { .. });
        refused!(region.set_access(offset, length, subject.device, RW), Detail::OutOfRange { .. });
        refused!(region.fill(offset, length, 0), Detail::OutOfRange { .. });
        refused!(region.count_wrong(subject.device, offset, length, 0), Detail::OutOfRange { .. });
    }
    refused!(region.read(subject.units(4) - Bytes(1), &mut [0; 2]), Detail::OutOfRange { .. });
}

fn layouts_that_overlap<B: TestKit>(subject: &Subject<B>) {
    let mut region = half_full(subject);
    let (one, two) = (subject.memory(1), subject.memory(2));
    for wanted in [[(0, &two), (1, &one)], [(2, &one), (0, &two)]] {
        let [_, (behind, memory)] = wanted;
        let parts = [subject.units(behind), memory.size()];
        let wanted = wanted.map(|(unit, memory)| MappedMemory {
            offset: subject.units(unit),
            memory: memory.clone(),
            access: AccessMap::NONE,
        });
        let answer = region.apply_layout(Operation::ApplyChange, &wanted, idle());
        refused!(@ApplyChange answer, Detail::AlreadyMapped { .. }, parts[0], parts[1]);
    }
    assert_eq!((region.mappings().count(), region.mapped()), (1, subject.units(2)));
}

fn nothing_changes<B: TestKit>(subject: &Subject<B>) {
    let mut region = half_full(subject);
    subject.write(&mut region, Bytes(0), subject.units(2), 3);
    let (free, range) = (subject.free(), region.range());
    let memory = subject.memory(1);
    let held = subject.free();
    let _ = region.map(Bytes(0), &memory);
    let _ = region.map(Bytes(1), &memory);
    let _ = region.unmap(Bytes(0), subject.unit(), idle());
    let _ = region.set_access(Bytes(0), subject.units(3), subject.device, Access::None);
    let _ = region.grow_to(Bytes(u64::MAX));
    let _ = region.shrink_to(subject.units(3), idle());
    let _ = region.write(subject.units(2) - Bytes(1), &[0; 2]);
    let _ = region.fill(Bytes(0), subject.units(3), 0);
    assert_eq!(subject.free(), held);
    drop(memory);
    assert_eq!((subject.free(), region.range(), region.end()), (free, range, subject.units(2)));
    assert_eq!(region.access(Bytes(0), subject.device), RW);
    subject.check(&region, Bytes(0), subject.units(2), 3);
}
