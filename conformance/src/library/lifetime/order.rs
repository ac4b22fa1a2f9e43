//! Who is dropped first.

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, PhysicalMemory, Placement, Properties, Region};
use gpu_vmm_testkit::TestKit;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

cases! { "lifetime":
    /// Memory that is released right after it was mapped can be opened and used.
    released_before_use,
    /// Memory that is released while it is in use keeps its bytes, and can be protected, unmapped and mapped again.
    released_while_in_use,
    /// Memory can be released after it was unmapped, and has kept its bytes until then.
    released_after_unmap,
    /// When the addresses are given back, the memory goes on to be mapped elsewhere.
    memory_outlives_its_region,
    /// A region outlives every value of the backend that it was made on.
    region_outlives_the_backend,
    /// Backend, memory and two regions that share it can be dropped in all 24 orders, and nothing is left.
    dropped_in_any_order,
    /// A region is given back with all that is mapped in it, holes and several reservations included.
    dropped_while_mapped,
    /// A region can be dropped by a thread that has never met the driver.
    dropped_on_another_thread,
    /// A region that is dropped by a panic is given back.
    dropped_by_a_panic,
}

/// A region of three granules in which memory is mapped that nobody else holds.
fn released<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.space(3).build().unwrap();
    let memory = subject.piece(3);
    region.map(Bytes(0), &memory).unwrap();
    region
}

fn released_before_use<B: TestKit>(subject: &Subject<B>) {
    let mut region = released(subject);
    let length = region.end();
    // What is created now is other memory.
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
    // The mapping itself holds on to it: it can be taken out again.
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
    // On host memory this is the only value of a backend of its own.
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

/// Things that hold on to each other.
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
        // No message: the panic is the point.
        resume_unwind(Box::new(region.end()));
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref::<Bytes>(), Some(&subject.granularity()));
    assert_eq!(subject.free(), before);
    subject.region(1).at(place).build().unwrap().close(idle()).unwrap();
}
