//! Several regions at once, by their tags, from several threads.

use super::memory::take_all;
use super::{pinned, suspend};
use crate::case::cases;
use crate::library::tools::{has, idle, write};
use crate::subject::Subject;
use gpu_vmm_core::{
    BackingKind, BackingStore, Bytes, Detail, Region, RegionSet, RegionState, SharedRegion, TagResult,
};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

cases! { "suspend":
    /// All regions with a tag are suspended and resumed, and no others; what was so already is left as it is.
    by_tag,
    /// Where one of several cannot be suspended, those before it are and those behind it are not, and a second call goes on.
    by_tag_up_to_what_fails,
    /// Resuming regions by their tag where memory has run out says that this is why, and goes on when there is some.
    by_tag_without_memory,
    /// A region that is suspended and has lost its addresses counts among those that are done, and is resumed with them.
    by_tag_with_lost_addresses,
    /// Threads that suspend, resume, write and look at the same regions at once leave them whole, with all of their contents.
    by_many_threads,
    /// Of opposite calls at the same time none is mixed with another: all regions are as the last one says.
    opposite_calls_at_once,
    /// A thread that panics with a region locked does not keep others from it.
    after_a_panic,
    /// A region that was removed is left alone, and lives on.
    removed,
}

/// A region of one granule with a pattern.
fn add<B: TestKit>(
    subject: &Subject<B>,
    regions: &RegionSet<B>,
    tag: &'static str,
    seed: u64,
) -> SharedRegion<B> {
    let mut region = subject.space(1).tag(tag).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    write(subject, &mut region, seed);
    let shared = regions.insert(region).unwrap();
    assert_eq!(shared.tag(), tag);
    shared
}

fn is_active<B: TestKit>(region: &SharedRegion<B>) -> bool {
    region.lock().unwrap().state() == RegionState::Active
}

fn by_tag<B: TestKit>(subject: &Subject<B>) {
    let (regions, store, one) = (RegionSet::new(), pinned(subject, 4), subject.granularity());
    let weights: Vec<_> = (1..4).map(|seed| add(subject, &regions, "weights", seed)).collect();
    let cache = add(subject, &regions, "cache", 9);
    assert!(
        regions.tagged("weights").unwrap().iter().zip(&weights).all(|(found, one)| found.is_same_as(one))
    );
    suspend(&mut weights[1].lock().unwrap(), &store);
    let did = regions.clone().suspend("weights", &store, idle()).unwrap();
    assert_eq!(did, TagResult { regions: 3, changed: 2, memory: one + one });
    assert!(weights.iter().all(|region| !is_active(region)) && is_active(&cache));
    assert!(has(subject, &cache.lock().unwrap(), 9));
    assert_eq!(regions.suspend("weights", &store, idle()).unwrap().changed, 0);
    let away = RegionState::Suspended { memory: one, store: BackingKind::Pinned };
    let states = regions.states().unwrap().into_iter().map(|(tag, range, state)| {
        assert_eq!(range.size, cache.lock().unwrap().reserved());
        (tag.to_string(), state)
    });
    let weights_are = ["weights"; 3].map(|tag| (tag.to_owned(), away));
    let all: Vec<_> = weights_are.into_iter().chain([("cache".to_owned(), RegionState::Active)]).collect();
    assert_eq!(states.collect::<Vec<_>>(), all);
    let did = regions.resume("weights").unwrap();
    assert_eq!(did, TagResult { regions: 3, changed: 3, memory: one + one + one });
    for (region, seed) in weights.iter().zip(1..) {
        assert!(has(subject, &region.lock().unwrap(), seed));
    }
    assert_eq!(regions.suspend("nothing has this", &store, idle()).unwrap(), TagResult::default());
}

fn by_tag_up_to_what_fails<B: TestKit>(subject: &Subject<B>) {
    let (regions, store) = (RegionSet::new(), pinned(subject, 3));
    let all: Vec<_> = (1..4).map(|seed| add(subject, &regions, "all", seed)).collect();
    let held = all[1].lock().unwrap().mapping_at(Bytes(0)).unwrap().memory.clone();
    let error = regions.suspend("all", &store, idle()).unwrap_err();
    let Detail::Partial { done: 1, regions: 3, source, .. } = error.detail() else { panic!("{error:?}") };
    assert!(matches!(source.detail(), Detail::StillReferenced { .. }), "{source}");
    for part in ["3 regions", "\"all\"", "1 are done", "held by somebody else"] {
        assert!(error.to_string().contains(part), "{error} does not say {part}");
    }
    assert_eq!(all.iter().map(is_active).collect::<Vec<_>>(), [false, true, true]);
    drop(held);
    assert_eq!(regions.suspend("all", &store, idle()).unwrap().changed, 2);
    assert_eq!(regions.resume("all").unwrap().changed, 3);
    for (region, seed) in all.iter().zip(1..) {
        assert!(has(subject, &region.lock().unwrap(), seed));
    }
}

fn by_tag_without_memory<B: TestKit>(subject: &Subject<B>) {
    let (regions, store) = (RegionSet::new(), pinned(subject, 2));
    let all = [1, 2].map(|seed| add(subject, &regions, "all", seed));
    regions.suspend("all", &store, idle()).unwrap();
    let taken = take_all(subject);
    let error = regions.resume("all").unwrap_err();
    assert!(matches!(error.detail(), Detail::Partial { done: 0, regions: 2, .. }), "{error}");
    assert!(error.is_out_of_memory() && error.driver_error().is_some(), "{error}");
    drop(taken);
    assert_eq!(regions.resume("all").unwrap().changed, 2);
    for (region, seed) in all.iter().zip(1..) {
        assert!(has(subject, &region.lock().unwrap(), seed));
    }
}

fn by_tag_with_lost_addresses<B: TestKit>(subject: &Subject<B>) {
    let (backend, regions) = (FaultInject::new(subject.backend.clone()), RegionSet::new());
    let store = BackingStore::pinned(&backend, subject.granules(3)).unwrap();
    let all: Vec<_> = (1..4)
        .map(|seed| {
            let size = subject.granularity();
            let builder = Region::builder(&backend).on(subject.device).reserve(size).tag("all");
            let mut region = builder.build().unwrap();
            region.grow_to(size).unwrap();
            region.write_pattern(subject.device, Bytes(0), size, seed).unwrap();
            regions.insert(region).unwrap()
        })
        .collect();
    all[0].lock().unwrap().suspend(&store, idle()).unwrap();
    backend.lose_addresses(true);
    let error = regions.suspend("all", &store, idle()).unwrap_err();
    backend.lose_addresses(false);
    let Detail::Partial { done: 2, regions: 3, source, .. } = error.detail() else { panic!("{error:?}") };
    assert!(matches!(source.detail(), Detail::AddressesLost { .. }), "{source}");
    let text = error.to_string();
    assert!(text.contains("2 are done, the last of them without its addresses"), "{text}");
    assert!(!text.contains("failed"), "{text}");
    let is_active =
        |region: &SharedRegion<FaultInject<B>>| region.lock().unwrap().state() == RegionState::Active;
    assert_eq!(all.iter().map(is_active).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(regions.suspend("all", &store, idle()).unwrap().changed, 1);
    assert_eq!(regions.resume("all").unwrap().changed, 3);
    for (region, seed) in all.iter().zip(1..) {
        let region = region.lock().unwrap();
        assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), seed).unwrap(), 0);
    }
}

fn by_many_threads<B: TestKit>(subject: &Subject<B>) {
    const ROUNDS: u64 = 6;
    let (regions, store) = (RegionSet::new(), pinned(subject, 3));
    let all: Vec<_> = (1..4).map(|seed| add(subject, &regions, "all", seed << 32)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (regions, store, all) = (regions.clone(), &store, &all);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    match (thread + round) % 4 {
                        0 => drop(regions.suspend("all", store, idle()).unwrap()),
                        1 => drop(regions.resume("all").unwrap()),
                        2 => drop(regions.states().unwrap()),
                        _ => {
                            // Whoever uses a region sees to it that it is there, and keeps it locked.
                            let mut region = all[(round % 3) as usize].lock().unwrap();
                            region.resume().unwrap();
                            let seed = (round % 3 + 1) << 32;
                            assert!(has(subject, &region, seed));
                            write(subject, &mut region, seed);
                        }
                    }
                }
            });
        }
    });
    regions.resume("all").unwrap();
    for (region, seed) in all.iter().zip(1..) {
        assert!(has(subject, &region.lock().unwrap(), seed << 32));
    }
    assert_eq!(store.free(), store.capacity());
}

fn opposite_calls_at_once<B: TestKit>(subject: &Subject<B>) {
    let (regions, store) = (RegionSet::new(), pinned(subject, 4));
    let all: Vec<_> = (1..5).map(|seed| add(subject, &regions, "all", seed)).collect();
    for _ in 0..8 {
        std::thread::scope(|scope| {
            scope.spawn(|| regions.suspend("all", &store, idle()).unwrap());
            scope.spawn(|| regions.resume("all").unwrap());
        });
        let active = all.iter().filter(|region| is_active(region)).count();
        assert!(active == 0 || active == all.len(), "{active} of {} are active", all.len());
    }
}

fn after_a_panic<B: TestKit>(subject: &Subject<B>) {
    let regions = RegionSet::new();
    let region = add(subject, &regions, "one", 1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _locked = region.lock().unwrap();
        resume_unwind(Box::new("as planned"))
    }));
    let () = panicked.map_err(|panic| assert!(panic.is::<&str>())).unwrap_err();
    regions.suspend("one", &pinned(subject, 1), idle()).unwrap();
    regions.resume("one").unwrap();
    assert!(has(subject, &region.lock().unwrap(), 1));
}

fn removed<B: TestKit>(subject: &Subject<B>) {
    let regions = RegionSet::new();
    let [one, other] = [1, 2].map(|seed| add(subject, &regions, "all", seed));
    assert!(regions.remove(&one).unwrap());
    assert!(!regions.remove(&one).unwrap());
    let did = regions.suspend("all", &BackingStore::nothing(), idle()).unwrap();
    assert_eq!((did.regions, did.changed), (1, 1));
    assert!(is_active(&one) && !is_active(&other));
    assert!(has(subject, &one.lock().unwrap(), 1));
}
