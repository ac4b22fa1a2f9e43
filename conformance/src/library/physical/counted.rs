//! The memory that a device has left: physical memory counts from its creation until its last handle and mapping are gone.

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Detail, Operation, PhysicalMemory, Region};
use gpu_vmm_testkit::TestKit;

cases! { "physical":
    /// Memory of 1 to 63 granules can be created; each takes exactly its size from the device and returns it.
    multiples_of_the_granularity,
    /// 256 handles at once take 256 times their size.
    many_handles,
    /// If memory does not suffice, the error has the requested, the free and the total size.
    out_of_memory_has_the_numbers,
    /// Growth that runs out of memory takes none; the region keeps its bytes and can still grow by less.
    nothing_is_lost_when_memory_ends,
}

fn multiples_of_the_granularity<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free_here();
    for granules in 1..=63 {
        let memory = subject.piece(granules);
        assert_eq!(memory.size(), subject.granules(granules));
        assert_eq!(subject.free_here(), before - memory.size(), "with {granules} granules");
        drop(memory);
        assert_eq!(subject.free_here(), before, "after {granules} granules");
    }
}

fn many_handles<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free_here();
    let mut pieces: Vec<PhysicalMemory<B>> = (0..256).map(|_| subject.piece(1)).collect();
    assert_eq!(subject.free_here(), before - subject.granules(256));
    pieces.truncate(100);
    assert_eq!(subject.free_here(), before - subject.granules(100));
}

/// Memory that is held, and a size that exceeds the free but not the total memory.
fn too_much<B: TestKit>(subject: &Subject<B>) -> (PhysicalMemory<B>, Bytes) {
    let total = subject.backend.device(Operation::QueryDevice, subject.device).unwrap().total_memory;
    let most = Bytes(total.0 - total.0 % subject.unit().0);
    (subject.memory(4), most)
}

fn out_of_memory_has_the_numbers<B: TestKit>(subject: &Subject<B>) {
    let (_held, most) = too_much(subject);
    let error = PhysicalMemory::create(&subject.backend, most, subject.properties()).unwrap_err();
    let Detail::OutOfMemory { requested, free, total, device, source, .. } = error.detail() else {
        panic!("{error:?}")
    };
    assert_eq!((*requested, *device), (most, subject.device));
    assert_eq!(*total, subject.backend.memory_info(subject.device).unwrap().total);
    assert!(free < requested && !source.name.is_empty(), "{error}");
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains(&requested.to_string()), "{error}");
}

fn nothing_is_lost_when_memory_ends<B: TestKit>(subject: &Subject<B>) {
    let (held, most) = too_much(subject);
    let mut region = Region::builder(&subject.backend).on(subject.device).reserve(most).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    subject.write(&mut region, Bytes(0), subject.units(2), 1);
    let before = (subject.free(), region.range(), region.end());
    let error = region.grow_to(most).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutOfMemory { .. }), "{error}");
    assert_eq!((subject.free(), region.range(), region.end()), before);
    subject.check(&region, Bytes(0), subject.units(2), 1);
    drop(held);
    region.grow_to(subject.units(3)).unwrap();
    subject.check(&region, Bytes(0), subject.units(2), 1);
}
