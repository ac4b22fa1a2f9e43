//! Memory that several regions share, while some of them are suspended: under failing calls, and from several threads.

use crate::{ONE, SMALL};
use gpu_vmm_core::{
    Access, Backend, BackingChange, BackingObserver, BackingOutcome, BackingStore, Bytes, Operation,
    PageList, PhysicalMemory, Properties, Region, RegionState, Result, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::{FaultInject, Random};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

const IDLE: WaitFor<'static> = WaitFor::all_devices();

/// The pages of a prefix.
const PREFIX: u64 = 2;

fn pages<B: Backend>(backend: &B, count: u64) -> PageList<B> {
    PageList::new(backend, SMALL, Properties::on(ONE), SMALL * count).unwrap()
}

/// Regions that begin with a common prefix and have a page of their own.
fn sequences<B: Backend>(backend: &B, list: &PageList<B>, count: usize) -> Vec<Region<B>> {
    let prefix = list.take(SMALL * PREFIX).unwrap();
    prefix.iter().zip(0..).for_each(|(page, number)| page.write(Bytes::ZERO, &[number; 9]).unwrap());
    let sequence = |number| {
        let mut region = Region::builder(backend).reserve(SMALL * 8).build().unwrap();
        region.map_with_access(Bytes::ZERO, &prefix, ONE, Access::Read).unwrap();
        region.grow_with(&list.take(SMALL).unwrap()).unwrap();
        region.write(SMALL * PREFIX, &[number as u8 + 100; 9]).unwrap();
        region
    };
    (0..count).map(sequence).collect()
}

fn check<B: Backend>(region: &Region<B>, number: usize) {
    let last = number as u8 + 100;
    for (page, expected) in [0, 1, last].into_iter().enumerate() {
        let mut bytes = [0xff; 9];
        region.read(SMALL * page as u64, &mut bytes).unwrap();
        assert_eq!(bytes, [expected; 9], "page {page} of sequence {number}");
    }
}

fn evict<B: Backend>(region: &mut Region<B>, store: &BackingStore<B>) -> Result<Bytes> {
    region.suspend_into(store, IDLE, &mut Vec::new()).map(|did| did.shared)
}

fn restore<B: Backend>(region: &mut Region<B>, list: &PageList<B>) -> Result<()> {
    let RegionState::Suspended { memory, .. } = region.state() else { return Ok(()) };
    region.resume_from(&mut list.take(memory)?).map(drop)
}

/// Memory whose shared contents were saved has other contents when other regions share it.
#[test]
fn released_memory_is_shared_by_others() {
    let host = HostConfig::new().granularity(SMALL).open().unwrap();
    let store = BackingStore::pinned(&host, SMALL * 4).unwrap();
    let mut free = vec![PhysicalMemory::create(&host, SMALL, Properties::on(ONE)).unwrap()];
    let mut share = |byte| {
        let memory = std::mem::take(&mut free);
        memory[0].write(Bytes::ZERO, &[byte; 9]).unwrap();
        let mut both = [(); 2].map(|()| Region::builder(&host).reserve(SMALL).build().unwrap());
        for region in &mut both {
            region.map_with_access(Bytes::ZERO, &memory, ONE, Access::Read).unwrap();
        }
        drop(memory);
        both.iter_mut().for_each(|region| _ = region.suspend_into(&store, IDLE, &mut free).unwrap());
        assert_eq!(free.len(), 1);
        both
    };
    let (first, second) = (share(1), share(2));
    for (regions, expected) in [(second, 2), (first, 1)] {
        for mut region in regions {
            region.resume().unwrap();
            let mut bytes = [0; 9];
            region.read(Bytes::ZERO, &mut bytes).unwrap();
            assert_eq!(bytes, [expected; 9]);
        }
    }
}

/// Whichever call fails, the list has no piece more than before, and none is lost.
#[test]
fn failed_resume_leaves_the_list() {
    let faults = FaultInject::new(HostConfig::new().granularity(SMALL).open().unwrap());
    let (pages, store) = (pages(&faults, 8), BackingStore::pinned(&faults, SMALL * 8).unwrap());
    let mut both = sequences(&faults, &pages, 2);
    both.iter_mut().for_each(|region| _ = evict(region, &store).unwrap());
    for number in 0.. {
        // Not enough: the other pieces are created.
        let mut list = pages.take(SMALL * 2).unwrap();
        faults.fail(number, 1);
        let resumed = both[0].resume_from(&mut list);
        faults.stop();
        let RegionState::Suspended { memory, .. } = both[0].state() else { break };
        // Shared pages that were restored have left the list or are new.
        let restored = SMALL * (PREFIX + 1) - memory;
        let least = 2_usize.saturating_sub((restored / SMALL) as usize);
        assert!((least..=2).contains(&list.len()), "{} pieces at call {number}: {resumed:?}", list.len());
        evict(&mut both[0], &store).unwrap();
    }
    check(&both[0], 0);
}

/// Of threads that resume regions with shared memory at once, one restores each piece, and the others keep their memory for it.
#[test]
fn threads_keep_the_memory_that_another_restored() {
    let host = HostConfig::new().granularity(SMALL).open().unwrap();
    let (pages, store) = (pages(&host, 64), BackingStore::pinned(&host, SMALL * 8).unwrap());
    let mut both = sequences(&host, &pages, 2);
    let start = Barrier::new(2);
    for round in 0..200 {
        both.iter_mut().for_each(|region| _ = evict(region, &store).unwrap());
        let resume = |region: &mut Region<HostBackend>| {
            let mut list = pages.take(SMALL * (PREFIX + 1)).unwrap();
            start.wait();
            let did = region.resume_from(&mut list).unwrap();
            [did.memory, did.contents, SMALL * list.len() as u64]
        };
        let did: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = both.iter_mut().map(|region| scope.spawn(|| resume(region))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let sums: [Bytes; 3] = std::array::from_fn(|at| did.iter().map(|one| one[at]).sum());
        assert_eq!(sums, [SMALL * (PREFIX + 2), SMALL * (PREFIX + 2), SMALL * PREFIX], "round {round}");
    }
}

/// Whichever call fails, a page that is not made private stays, and the list has only what it had.
#[test]
fn failed_page_copy_leaves_the_list() {
    let faults = FaultInject::new(HostConfig::new().granularity(SMALL).open().unwrap());
    let pages = pages(&faults, 32);
    let mut both = sequences(&faults, &pages, 2);
    for number in 0.. {
        // Not enough: the other page is created.
        let mut list = pages.take(SMALL).unwrap();
        let memory =
            |region: &Region<_>| [0, SMALL.0].map(|at| region.mapping_at(Bytes(at)).unwrap().memory.id());
        let (had, before) = (list[0].id(), [0, 1].map(|at| memory(&both[at])));
        faults.fail(number, 1);
        let done = both[0].make_private(Bytes::ZERO, SMALL * PREFIX, &mut list, IDLE);
        faults.stop();
        let [after, other] = [0, 1].map(|at| memory(&both[at]));
        assert_eq!(other, before[1]);
        assert!(after[0] == before[0][0] || after[0] == had, "call {number}: {done:?}");
        let left: Vec<_> = list.iter().map(|one| one.id()).collect();
        assert_eq!(left, if after[0] == had { vec![] } else { vec![had] }, "call {number}: {done:?}");
        let done = done.is_ok();
        both[0].make_private(Bytes::ZERO, SMALL * PREFIX, &mut list, IDLE).unwrap();
        both.iter().enumerate().for_each(|(number, region)| check(region, number));
        if done {
            break;
        }
        both = sequences(&faults, &pages, 2);
    }
}

/// Calls a function after a region was released.
struct Released(Box<dyn Fn() + Send + Sync>);

impl BackingObserver for Released {
    fn before(
        &self,
        _: &BackingChange<'_>,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {
        (self.0)();
    }
}

/// Drops a region of one page, whose memory is deferred. Once it is released, an observer waits for another thread, and sends whether
/// that has ended.
fn release_later<B: Backend>(
    backend: &B,
    act: impl Fn() + Clone + Send + Sync + 'static,
) -> mpsc::Receiver<bool> {
    let mut region = Region::builder(backend).reserve(SMALL).build().unwrap();
    region.grow_to(SMALL).unwrap();
    let (sends, done) = mpsc::channel();
    region.on_backing_change(Released(Box::new(move || {
        let (act, (ends, ended)) = (act.clone(), mpsc::channel());
        std::thread::spawn(move || {
            act();
            _ = ends.send(());
        });
        sends.send(ended.recv_timeout(Duration::from_secs(5)).is_ok()).unwrap();
    })));
    region.release_later();
    done
}

/// A resume that frees deferred memory calls observers, which may wait for a thread that needs the same shared memory.
#[test]
fn resume_locks_nothing_during_observers() {
    // For the prefix and a page of each of four regions.
    let host = HostConfig::new().granularity(SMALL).memory(SMALL * (PREFIX + 4)).open().unwrap();
    let faults = FaultInject::new(host);
    let store = BackingStore::pinned(&faults, SMALL * 8).unwrap();
    let list = pages(&faults, PREFIX + 2);
    let mut both = sequences(&faults, &list, 2);
    list.set_budget(Bytes::ZERO).unwrap();
    let (last, mut first) = (both.pop().unwrap(), both.pop().unwrap());
    let last = Arc::new(Mutex::new((last, Vec::new())));
    let suspend = {
        let (last, store) = (Arc::clone(&last), store.clone());
        move || {
            let (region, list) = &mut *last.lock().unwrap();
            // SAFETY: no device uses the region.
            region.suspend_into(&store, unsafe { WaitFor::nothing() }, list).unwrap();
        }
    };
    evict(&mut first, &store).unwrap();
    let done = [(); 2].map(|()| release_later(&faults, suspend.clone()));
    // The region's own page is created first. Then there is no memory for the prefix, which a list holds.
    faults.during(Operation::CreateMemory, suspend);
    let resumed = first.resume();
    assert_eq!(done.map(|done| done.recv().unwrap()), [true; 2], "a thread waits for the resume");
    resumed.unwrap();
    check(&first, 0);
}

/// So does the end of a copy that has failed.
#[test]
fn failed_copy_locks_nothing_during_observers() {
    let faults = FaultInject::new(HostConfig::new().granularity(SMALL).open().unwrap());
    let (pages, store) = (pages(&faults, 8), BackingStore::pinned(&faults, SMALL * 8).unwrap());
    let mut all = sequences(&faults, &pages, 3);
    let [first, second] = [0, 1].map(|_| {
        let mut region = all.remove(0);
        evict(&mut region, &store).unwrap();
        Arc::new(Mutex::new(region))
    });
    drop(all);
    let suspend = {
        let store = store.clone();
        move || _ = evict(&mut second.lock().unwrap(), &store)
    };
    let done = release_later(&faults, suspend.clone());
    faults.fail_calls(&[Operation::QueueCopyToHost]);
    let suspended = evict(&mut first.lock().unwrap(), &store);
    faults.stop();
    assert!(done.recv().unwrap(), "a thread waits for the suspend");
    suspended.unwrap_err();
    suspend();
    let done = release_later(&faults, suspend);
    faults.fail_calls(&[Operation::QueueCopyFromHost]);
    let resumed = restore(&mut first.lock().unwrap(), &pages);
    faults.stop();
    assert!(done.recv().unwrap(), "a thread waits for the resume");
    resumed.unwrap_err();
    let mut first = first.lock().unwrap();
    restore(&mut first, &pages).unwrap();
    check(&first, 0);
}

/// Whichever call fails, no contents are lost, and the same calls succeed afterwards.
#[test]
fn shared_contents_survive_each_failing_call() {
    let faults = FaultInject::new(HostConfig::new().granularity(SMALL).open().unwrap());
    let list = pages(&faults, 16);
    let store = BackingStore::pinned(&faults, SMALL * 16).unwrap();
    let mut failures = 0;
    for number in 0.. {
        let mut both = sequences(&faults, &list, 2);
        faults.fail(number, 1);
        let tried: Vec<_> = both.iter_mut().map(|region| evict(region, &store).is_ok()).collect();
        let evicted = faults.stop();
        let again: Vec<_> = both.iter_mut().map(|region| evict(region, &store)).collect();
        assert!(again.into_iter().all(|did| did.is_ok()), "{tried:?} at call {number}");
        assert_eq!(list.stats().free, list.stats().held, "all is saved, after {tried:?} at call {number}");
        faults.fail(number, 1);
        let tried: Vec<_> = both.iter_mut().map(|region| restore(region, &list).is_ok()).collect();
        let restored = faults.stop();
        for (index, region) in both.iter_mut().enumerate() {
            restore(region, &list)
                .unwrap_or_else(|error| panic!("{error}, after {tried:?} at call {number}"));
            check(region, index);
        }
        assert_eq!(list.stats().held - list.stats().free, SMALL * 4, "shared once, at call {number}");
        drop(both);
        failures += u64::from(tried.contains(&false));
        if number >= evicted.max(restored) {
            break;
        }
    }
    assert!(failures > 5, "{failures} of the calls failed");
}

/// Sequences that threads evict, restore and drop in any order keep their contents, and all memory returns to the list.
#[test]
fn threads_evict_and_restore_what_they_share() {
    const SEQUENCES: usize = 6;
    let host: HostBackend = HostConfig::new().granularity(SMALL).open().unwrap();
    let list = pages(&host, 64);
    let store = BackingStore::pinned(&host, SMALL * 64).unwrap();
    for round in 0..20 {
        let regions: Vec<_> =
            sequences(&host, &list, SEQUENCES).into_iter().map(|region| Mutex::new(Some(region))).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (regions, list, store) = (&regions, &list, &store);
                scope.spawn(move || {
                    let mut random = Random(round * 100 + thread + 1);
                    for _ in 0..100 {
                        let number = random.below(SEQUENCES);
                        let mut slot = regions[number].lock().unwrap();
                        let Some(region) = slot.as_mut() else { continue };
                        match random.below(50) {
                            0 => *slot = None,
                            1..25 => _ = evict(region, store).unwrap(),
                            _ => {
                                restore(region, list).unwrap();
                                check(region, number);
                            }
                        }
                    }
                });
            }
        });
        // Those that are left share what is there once, and once all are suspended, nothing is there.
        let mut left: Vec<_> = regions.into_iter().filter_map(|slot| slot.into_inner().unwrap()).collect();
        for _ in 0..2 {
            left.iter_mut().for_each(|region| _ = evict(region, &store).unwrap());
        }
        assert_eq!(list.stats().free, list.stats().held, "{} are suspended", left.len());
        left.iter_mut().for_each(|region| restore(region, &list).unwrap());
        let used = list.stats().held - list.stats().free;
        assert_eq!(used, SMALL * if left.is_empty() { 0 } else { left.len() as u64 + PREFIX });
    }
}
