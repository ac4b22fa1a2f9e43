//! Many rounds, and many regions at once.

use crate::case::cases;
use crate::leaks;
use crate::library::tools::idle;
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{Bytes, Region};
use gpu_vmm_testkit::TestKit;

cases! { "lifetime":
    /// The driver's free memory is as expected after each step: create, map, alias, clone, unmap and drop.
    counted_at_every_step,
    /// A hundred regions are created, filled, used and dropped one after the other, and nothing leaks.
    a_hundred_regions,
    /// The process has no more mappings after a hundred regions have been created and dropped.
    @isolated mappings_of_the_process,
    /// A hundred regions exist at once, each with its own memory, and can be dropped in another order than they were created.
    a_hundred_at_once,
    /// A thousand reservations in which nothing is ever mapped can be created and released.
    a_thousand_empty_ones,
    /// A region that grows, moves and shrinks over and over leaks nothing.
    ups_and_downs,
    /// Addresses that the backend keeps for reuse are released when the target asks for them; afterwards no address is
    /// reserved.
    kept_addresses_come_back,
}

fn counted_at_every_step<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free_here();
    let mut region = subject.space(8).build().unwrap();
    assert_eq!(subject.free_here(), before, "addresses");
    let memory = subject.piece(3);
    let held = before - memory.size();
    assert_eq!(subject.free_here(), held, "memory");
    region.map(Bytes(0), &memory).unwrap();
    assert_eq!(subject.free_here(), held, "a mapping");
    region.set_access(Bytes(0), memory.size(), subject.device, RW).unwrap();
    region.map(memory.size(), &memory).unwrap();
    assert_eq!(subject.free_here(), held, "an alias");
    let clone = memory.clone();
    assert!(clone.is_same_as(&memory) && !subject.piece(3).is_same_as(&memory));
    drop(memory);
    assert_eq!(subject.free_here(), held, "a clone is left");
    region.unmap(Bytes(0), clone.size(), idle()).unwrap();
    assert_eq!(subject.free_here(), held, "a clone and an alias are left");
    region.unmap(clone.size(), clone.size(), idle()).unwrap();
    assert_eq!(subject.free_here(), held, "only a clone is left");
    drop(region);
    drop(clone);
    assert_eq!(subject.free_here(), before, "nothing is left");
}

/// A region of `granules` granules, mapped in steps of one, used at both ends.
fn used<B: TestKit>(subject: &Subject<B>, granules: u64, seed: u64) -> Region<B> {
    let page = Bytes(4096);
    let mut region = subject.space(granules).build().unwrap();
    for end in 1..=granules {
        region.grow_to(subject.granules(end)).unwrap();
    }
    let last = region.end() - page;
    for (offset, seed) in [(Bytes(0), seed), (last, seed + 1)] {
        subject.write(&mut region, offset, page, seed);
        subject.check(&region, offset, page, seed);
    }
    region
}

fn a_hundred_regions<B: TestKit>(subject: &Subject<B>) {
    // Kernels that are loaded at their first use stay loaded.
    used(subject, 1, 0).close(idle()).unwrap();
    let before = subject.free();
    for round in 0..100 {
        drop(used(subject, 1 + round % 4, round));
        assert_eq!(subject.free(), before, "after round {round}");
    }
}

/// The number of mappings of this process. Linux limits it (`vm.max_map_count`).
fn process_mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn mappings_of_the_process<B: TestKit>(subject: &Subject<B>) {
    const ROUNDS: usize = 100;
    let rounds = |count: usize| (0..count as u64).for_each(|seed| drop(used(subject, 2, seed)));
    // Mappings that a driver sets up once, or keeps for reuse.
    rounds(10);
    let before = process_mappings();
    rounds(ROUNDS);
    let after = process_mappings();
    assert!(after < before + ROUNDS, "{after} mappings of the process, {before} before");
}

fn a_hundred_at_once<B: TestKit>(subject: &Subject<B>) {
    used(subject, 1, 0).close(idle()).unwrap();
    let before = subject.free();
    let mut regions: Vec<Region<B>> = (0..100).map(|seed| used(subject, 1, 2 * seed)).collect();
    for (region, seed) in regions.iter().zip(0..) {
        subject.check(region, region.end() - Bytes(4096), Bytes(4096), 2 * seed + 1);
    }
    for round in 0.. {
        if regions.is_empty() {
            break;
        }
        drop(regions.swap_remove(round * 37 % regions.len()));
    }
    assert_eq!(subject.free(), before);
}

fn a_thousand_empty_ones<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let mut kept: Vec<Option<Region<B>>> = (0..8).map(|_| None).collect();
    for round in 0..1000 {
        let region = subject.region(1 + round % 5).build().unwrap();
        kept[round as usize * 5 % 8] = Some(region);
    }
    drop(kept);
    assert_eq!(subject.free(), before);
}

fn ups_and_downs<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    subject.write(&mut region, Bytes(0), subject.granularity(), 1);
    let held = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    for round in 0..20 {
        region.grow_or_move(subject.units(1 + round % 5), idle()).unwrap();
        let _ = region.shrink_to(subject.granularity(), idle()).unwrap();
        assert_eq!(region.mapped(), subject.granularity());
        subject.check(&region, Bytes(0), subject.granularity(), 1);
    }
    assert!(region.mapping_at(Bytes(0)).unwrap().memory.is_same_as(&held));
}

fn kept_addresses_come_back<B: TestKit>(subject: &Subject<B>) {
    drop(subject.region(2).build().unwrap());
    subject.target.settle(&subject.backend).unwrap();
    match leaks::check_addresses() {
        Some(answer) => answer.unwrap(),
        None => skip("nothing below this backend counts reservations"),
    }
}
