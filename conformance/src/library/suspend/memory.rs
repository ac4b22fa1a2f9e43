//! The memory that a suspension releases, and resumes for which it is not available.

use super::{check_varied, keeping, pinned, resume, suspend, varied};
use crate::case::cases;
use crate::counts::take_freed;
use crate::library::tools::{has, idle, write};
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{
    Access, BackingKind, BackingStore, Bytes, Detail, Operation, PhysicalMemory, Region, RegionState,
    StagingRing,
};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::sync::Arc;

cases! { "suspend":
    /// While a region is suspended, exactly its memory is free, each piece counted once, and the resume takes exactly as
    /// much.
    memory_is_free_meanwhile,
    /// A resume without enough memory leaves the region suspended and takes nothing; a later resume restores it completely.
    out_of_memory,
    /// If the contents cannot be copied, a piece that its owner could not read before cannot be read afterwards, and a later
    /// suspension saves its bytes.
    a_failed_copy_takes_its_access_away,
    /// A region that is suspended and resumed 20 times is restored completely each time, and nothing leaks.
    twenty_times,
    /// A store's room is free again after the resume, and after the end of a region that was never resumed.
    room_comes_back,
    /// Several regions can be in one store at once, and be resumed in any order.
    several_in_one_store,
    /// The free room of a store is used, however fragmented it is.
    room_in_pieces,
    /// Pageable memory for contents is released to the system by the resume.
    pages_go_back_to_the_system,
    /// A store that keeps pageable memory has it between suspensions, with the contents of the last one only, until it is trimmed.
    pages_that_are_kept,
    /// If the addresses are lost while memory is released, suspend reports it, and the region can be resumed when they are
    /// free.
    lost_addresses,
    /// If another user of the HSA runtime takes the addresses for a while, suspend reports it, and failed resumes leave no
    /// reservation behind.
    addresses_taken_meanwhile,
}

/// Whether the driver's free memory reflects released memory.
fn counts<B: TestKit>(subject: &Subject<B>) -> bool {
    !subject.has_quirk("release-frees-nothing")
}

fn memory_is_free_meanwhile<B: TestKit>(subject: &Subject<B>) {
    for store in keeping(subject, super::MEMORY).into_iter().chain([BackingStore::nothing()]) {
        let before = subject.free_here();
        let mut region = varied(subject);
        let with = subject.free_here();
        suspend(&mut region, &store);
        if counts(subject) {
            assert_eq!(subject.free_here(), before, "suspended, {:?}", store.kind());
        }
        resume(&mut region);
        assert_eq!(subject.free_here(), with, "resumed, {:?}", store.kind());
    }
}

/// Allocates all memory of the device, in as few pieces as possible.
pub(super) fn take_all<B: TestKit>(subject: &Subject<B>) -> Vec<PhysicalMemory<B>> {
    let mut taken = Vec::new();
    let mut size = subject.free_here();
    while size >= subject.granularity() {
        match PhysicalMemory::create(&subject.backend, size, subject.properties()) {
            Ok(memory) => taken.push(memory),
            Err(_) => size = Bytes(size.0 / 2),
        }
    }
    taken
}

fn out_of_memory<B: TestKit>(subject: &Subject<B>) {
    let mut region = varied(subject);
    for store in keeping(subject, super::MEMORY) {
        suspend(&mut region, &store);
        let state = region.state();
        let taken = take_all(subject);
        let free = subject.free_here();
        for _ in 0..2 {
            let error = region.resume().unwrap_err();
            assert!(error.is_out_of_memory(), "{error}");
            assert_eq!((region.state(), subject.free_here()), (state, free));
            assert_eq!(region.mapped(), Bytes(0));
        }
        drop(taken);
        resume(&mut region);
        check_varied(subject, &mut region);
    }
}

fn twenty_times<B: TestKit>(subject: &Subject<B>) {
    let stores = keeping(subject, super::MEMORY);
    let mut region = varied(subject);
    let (range, free) = (region.range(), subject.free());
    for store in stores.iter().cycle().take(20) {
        suspend(&mut region, store);
        resume(&mut region);
        assert_eq!((region.range(), &subject.free()), (range, &free));
        check_varied(subject, &mut region);
    }
    assert_eq!(stores[0].free(), stores[0].capacity());
}

fn room_comes_back<B: TestKit>(subject: &Subject<B>) {
    let store = pinned(subject, 10);
    let room = |granules| Some(subject.granules(granules));
    assert_eq!((store.kind(), store.capacity(), store.free()), (BackingKind::Pinned, room(10), room(10)));
    for end in ["resumed", "closed", "dropped"] {
        let mut region = varied(subject);
        suspend(&mut region, &store);
        assert_eq!(store.clone().free(), room(10 - super::MEMORY));
        match end {
            "resumed" => drop(resume(&mut region)),
            "closed" => region.close(idle()).unwrap(),
            _ => drop(region),
        }
        assert_eq!(store.free(), room(10), "{end}");
    }
    assert_eq!((BackingStore::<B>::nothing().capacity(), BackingStore::<B>::nothing().free()), (None, None));
}

/// A region with `granules` granules, filled with the pattern of a seed.
fn filled<B: TestKit>(subject: &Subject<B>, granules: u64, seed: u64) -> Region<B> {
    let mut region = subject.space(granules).build().unwrap();
    region.grow_to(subject.granules(granules)).unwrap();
    write(subject, &mut region, seed);
    region
}

fn several_in_one_store<B: TestKit>(subject: &Subject<B>) {
    for store in keeping(subject, 6) {
        let mut regions = [1, 2, 3].map(|granules| filled(subject, granules, granules << 32));
        for region in &mut regions {
            suspend(region, &store);
        }
        for at in [1, 0, 2] {
            resume(&mut regions[at]);
            let seed = (at as u64 + 1) << 32;
            assert!(has(subject, &regions[at], seed), "{at} from {:?}", store.kind());
        }
    }
}

fn room_in_pieces<B: TestKit>(subject: &Subject<B>) {
    let store = pinned(subject, 6);
    let mut small: Vec<Region<B>> = (0..6).map(|seed| filled(subject, 1, seed << 32)).collect();
    for region in &mut small {
        suspend(region, &store);
    }
    for region in small.iter_mut().step_by(2) {
        resume(region);
    }
    // Three granules are free, no two of them adjacent.
    let mut large = filled(subject, 3, 99);
    suspend(&mut large, &store);
    assert_eq!(store.free(), Some(Bytes(0)));
    resume(&mut large);
    assert!(has(subject, &large, 99));
    for (region, seed) in small.iter_mut().zip(0..) {
        region.resume().unwrap();
        assert!(has(subject, region, seed << 32), "{seed}");
    }
    // The free room is contiguous again.
    let mut all = filled(subject, 6, 7);
    suspend(&mut all, &store);
    resume(&mut all);
    assert!(has(subject, &all, 7));
}

/// The size of the process's resident anonymous memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn pages_go_back_to_the_system<B: TestKit>(subject: &Subject<B>) {
    // Other cases run meanwhile and use memory too, so this is much larger than theirs, and tried several times.
    const SIZE: Bytes = Bytes::mib(192);
    let store = BackingStore::pageable(super::ring(subject));
    let granules = SIZE.0.div_ceil(subject.granularity().0);
    let mut region = filled(subject, granules, 3);
    let seen = (0..4).any(|_| {
        let before = resident();
        suspend(&mut region, &store);
        let meanwhile = resident();
        resume(&mut region);
        let after = resident();
        let half = SIZE.0 / 2;
        meanwhile > before + half && meanwhile > after + half
    });
    assert!(seen, "the contents were not in memory during the suspension, or stayed there");
    assert!(has(subject, &region, 3));
}

fn pages_that_are_kept<B: TestKit>(subject: &Subject<B>) {
    let size = subject.granules(2);
    let store = BackingStore::pageable_keeping(super::ring(subject), subject.granules(1));
    assert_eq!(store.host_memory(), Bytes::ZERO);
    let mut region = filled(subject, 2, 3);
    for seed in [3, 4] {
        write(subject, &mut region, seed);
        suspend(&mut region, &store);
        assert_eq!((store.host_memory(), store.trim().unwrap()), (size, Bytes::ZERO));
        resume(&mut region);
        assert!(has(subject, &region, seed));
        // Two granules are one block, which is more than the store keeps.
        assert_eq!(store.host_memory(), Bytes::ZERO);
    }
    let store = BackingStore::pageable_keeping(super::ring(subject), size);
    for seed in [5, 6] {
        write(subject, &mut region, seed);
        suspend(&mut region, &store);
        resume(&mut region);
        assert!(has(subject, &region, seed));
        assert_eq!(store.clone().host_memory(), size);
    }
    assert_eq!((store.trim().unwrap(), store.host_memory()), (size, Bytes::ZERO));
    let pinned = BackingStore::pinned(&subject.backend, size).unwrap();
    assert_eq!((pinned.host_memory(), pinned.trim().unwrap()), (size, Bytes::ZERO));
    assert_eq!(BackingStore::<B>::nothing().host_memory(), Bytes::ZERO);
}

fn a_failed_copy_takes_its_access_away<B: TestKit>(subject: &Subject<B>) {
    const COPIES: [Operation; 2] = [Operation::CopyToHost, Operation::QueueCopyToHost];
    let backend = FaultInject::new(subject.backend.clone());
    let ring = Arc::new(StagingRing::new(&backend, 2, Bytes(100_001)).unwrap());
    let one = subject.granularity();
    let stores = [
        BackingStore::pinned(&backend, subject.granules(2)).unwrap(),
        BackingStore::pageable(Arc::clone(&ring)),
        BackingStore::file(super::directory(), ring),
    ];
    for store in stores {
        let mut region =
            Region::builder(&backend).on(subject.device).reserve(subject.granules(2)).build().unwrap();
        region.grow_to(one).unwrap();
        region.grow_to(subject.granules(2)).unwrap();
        region.write_pattern(subject.device, Bytes(0), region.end(), 6).unwrap();
        region.set_access(one, one, subject.device, Access::None).unwrap();
        backend.fail_calls(&COPIES);
        region.suspend(&store, idle()).unwrap_err();
        backend.stop();
        assert_eq!(region.state(), RegionState::Active);
        let access = [
            Some(region.access(one, subject.device)),
            backend.access_at(region.address() + one, subject.device).unwrap(),
        ];
        assert_eq!(access, [Some(Access::None); 2], "{:?}", store.kind());
        region.suspend(&store, idle()).unwrap();
        region.resume().unwrap();
        assert_eq!(region.access(one, subject.device), Access::None);
        region.set_access(one, one, subject.device, RW).unwrap();
        assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), 6).unwrap(), 0);
    }
}

fn lost_addresses<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    loses_addresses(subject, &backend, |lose| backend.lose_addresses(lose));
}

fn addresses_taken_meanwhile<B: TestKit>(subject: &Subject<B>) {
    if !subject.has_quirk("memory-stays-until-free") {
        skip("this driver keeps the addresses while a region is suspended");
    }
    if !take_freed(false) {
        skip("only the simulated HSA runtime takes freed addresses");
    }
    loses_addresses(subject, &subject.backend, |lose| assert!(take_freed(lose)));
}

/// While `lose(true)` is in effect, a suspended region cannot keep its addresses.
fn loses_addresses<B: TestKit, L: TestKit>(subject: &Subject<B>, backend: &L, lose: impl Fn(bool)) {
    let store = BackingStore::pinned(backend, subject.granules(2)).unwrap();
    let builder = Region::builder(backend).on(subject.device).reserve(subject.granules(2));
    let mut region = builder.build().unwrap();
    region.grow_to(subject.granules(2)).unwrap();
    region.write_pattern(subject.device, Bytes(0), region.end(), 6).unwrap();
    let held = subject.free_here();
    lose(true);
    let mut list = Vec::new();
    let error = region.suspend_into(&store, idle(), &mut list).unwrap_err();
    assert!(matches!(error.detail(), Detail::AddressesLost { .. }), "{error}");
    assert_eq!(list.drain(..).map(|memory| memory.size()).sum::<Bytes>(), subject.granules(2));
    for part in ["is suspended", &region.address().to_string()] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let state = RegionState::Suspended { memory: subject.granules(2), store: BackingKind::Pinned };
    assert_eq!((region.state(), store.free()), (state, Some(Bytes(0))));
    if counts(subject) && subject.gives_back_at_once() {
        assert_eq!(subject.free_here(), held + subject.granules(2));
    }
    assert!(region.suspend(&store, idle()).unwrap().already);
    for _ in 0..2 {
        let error = region.resume().unwrap_err();
        assert!(matches!(error.detail(), Detail::AddressTaken { .. }), "{error}");
        assert_eq!(region.state(), state);
    }
    lose(false);
    region.resume().unwrap();
    assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), 6).unwrap(), 0);
    // A region that is dropped meanwhile leaves the addresses to their new owner.
    lose(true);
    region.suspend(&store, idle()).unwrap_err();
    let failures = backend.drop_log().count();
    drop(region);
    assert_eq!(backend.drop_log().count(), failures, "{:?}", backend.drop_log().take_last());
    lose(false);
}
