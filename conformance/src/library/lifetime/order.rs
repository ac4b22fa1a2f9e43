//! The order in which memory, regions and backends are dropped.

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, PhysicalMemory, Placement, Properties, Region};
use gpu_vmm_testkit::TestKit;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

cases! { "lifetime":
    /// Memory whose handle is dropped right after it was mapped can be given access and used.
    released_before_use,
    /// Memory whose handle is dropped while it is in use keeps its bytes, and can be protected, unmapped and mapped again.
    released_while_in_use,
    /// Unmapped memory keeps its bytes while a handle exists, and is released when the last handle is dropped.
    released_after_unmap,
    /// When a region is dropped, its memory can still be mapped in another region and keeps its bytes.
    memory_outlives_its_region,
    /// A region works after all values of its backend have been dropped.
    region_outlives_the_backend,
    /// A backend, memory and two regions that map it can be dropped in all 24 orders, and nothing leaks.
    dropped_in_any_order,
    /// Dropping a region releases everything that is mapped in it, also with holes and several reservations.
    dropped_while_mapped,
    /// A thread that never made a driver call can drop a region.
    dropped_on_another_thread,
    /// A region that is dropped during a panic is released.
    dropped_by_a_panic,
}

/// A region of three granules with mapped memory whose handle has been dropped.
fn released<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.space(3).build().unwrap();
    let memory = subject.piece(3);
    region.map(Bytes(0), &memory).unwrap();
    region
}

fn released_before_use<B: TestKit>(subject: &Subject<B>) {
    let mut region = released(subject);
    let length = region.end();
    // Memory that is created now must be different memory.
    let other = subject.piece(3);
    region.set_access(Bytes(0), length, subject.device, RW).unwrap();
    subject.write(&mut region, Bytes(0), length, 1);
    let mut second = subject.space(3).build().unwrap();
    subject.open(&mut second, Bytes(0), &other);
    subject.write(&mut second, Bytes(0), length, 2);
    subject.check(&region, Bytes(0), length, 1);
}

fn released_while_in_use<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(2).build().unwrap();
    let memory = subject.piece(2);
    let length = memory.size();
    subject.open(&mut region, Bytes(0), &memory);
    subject.write(&mut region, Bytes(0), length, 1);
    drop(memory);
    subject.check(&region, Bytes(0), length, 1);
    region.set_access(Bytes(0), length, subject.device, Access::Read).unwrap();
    subject.check(&region, Bytes(0), length, 1);
    // The mapping holds a handle, from which the memory can be mapped again.
    let memory = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    region.unmap(Bytes(0), length, idle()).unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    subject.check(&region, Bytes(0), length, 1);
}

fn released_after_unmap<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(2);
    let mut region = subject.space(2).build().unwrap();
    for written in [false, true] {
        subject.open(&mut region, Bytes(0), &memory);
        if !written {
            subject.write(&mut region, Bytes(0), memory.size(), 1);
        }
        subject.check(&region, Bytes(0), memory.size(), 1);
        region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    }
    drop(region);
    let held = subject.free_here();
    let size = memory.size();
    drop(memory);
    assert_eq!(subject.free_here(), held + size);
}

fn memory_outlives_its_region<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(2).build().unwrap();
    region.grow_to(subject.granules(2)).unwrap();
    subject.write(&mut region, Bytes(0), subject.granules(2), 1);
    let memory = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    drop(region);
    let mut other = subject.space(2).build().unwrap();
    subject.open(&mut other, Bytes(0), &memory);
    drop(memory);
    subject.check(&other, Bytes(0), subject.granules(2), 1);
}

fn region_outlives_the_backend<B: TestKit>(subject: &Subject<B>) {
    // On host memory, this is the only value of a separate backend.
    let backend = subject.target.open().unwrap();
    let mut region =
        Region::builder(&backend).on(subject.device).reserve(subject.granules(2)).build().unwrap();
    let memory =
        PhysicalMemory::create(&backend, subject.granularity(), Properties::on(subject.device)).unwrap();
    drop(backend);
    region.map(Bytes(0), &memory).unwrap();
    drop(memory);
    region.set_access(Bytes(0), subject.granularity(), subject.device, RW).unwrap();
    subject.write(&mut region, Bytes(0), subject.granularity(), 1);
    region.grow_to(subject.granules(2)).unwrap();
    subject.check(&region, Bytes(0), subject.granularity(), 1);
    region.close(idle()).unwrap();
}

/// A backend, memory and two regions that refer to each other.
fn together<B: TestKit>(subject: &Subject<B>) -> Vec<Box<dyn Any>> {
    let backend = subject.backend.clone();
    let memory = PhysicalMemory::create(&backend, subject.granularity(), subject.properties()).unwrap();
    let regions = [(); 2].map(|()| {
        let mut region =
            Region::builder(&backend).on(subject.device).reserve(subject.unit()).build().unwrap();
        subject.open(&mut region, Bytes(0), &memory);
        region
    });
    let [one, other] = regions;
    vec![Box::new(backend), Box::new(memory), Box::new(one), Box::new(other)]
}

fn dropped_in_any_order<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    for mut order in 0..24 {
        let mut all = together(subject);
        while !all.is_empty() {
            let next = order % all.len();
            order /= all.len();
            drop(all.swap_remove(next));
        }
        assert_eq!(subject.free(), before);
    }
}

fn dropped_while_mapped<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let place = Placement::Exact(subject.hole(8));
    for _ in 0..3 {
        let mut region = subject.region(2).at(place).extend_by(subject.unit()).build().unwrap();
        for units in 1..=4 {
            region.grow_to(subject.units(units)).unwrap();
        }
        region.unmap(subject.unit(), subject.unit(), idle()).unwrap();
        region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
        drop(region);
        assert_eq!(subject.free(), before);
    }
}

fn dropped_on_another_thread<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(1);
    let place = Placement::Exact(base);
    let before = subject.free();
    for _ in 0..3 {
        let mut region = subject.region(1).at(place).build().unwrap();
        region.grow_to(subject.granules(2)).unwrap();
        let memory = region.mapping_at(Bytes(0)).unwrap().memory.clone();
        let dropped = std::thread::spawn(move || drop((region, memory))).join();
        dropped.unwrap_or_else(|panic| resume_unwind(panic));
        assert_eq!(subject.free(), before);
    }
}

fn dropped_by_a_panic<B: TestKit>(subject: &Subject<B>) {
    let place = Placement::Exact(subject.hole(1));
    let before = subject.free();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut region = subject.region(1).at(place).build().unwrap();
        region.grow_to(subject.granularity()).unwrap();
        // Without a message: this panic is intended.
        resume_unwind(Box::new(region.end()));
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref::<Bytes>(), Some(&subject.granularity()));
    assert_eq!(subject.free(), before);
    subject.region(1).at(place).build().unwrap().close(idle()).unwrap();
}
