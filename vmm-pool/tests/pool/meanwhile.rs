//! What other threads do while one thread maps memory.
#![allow(unsafe_code)]

use gpu_vmm_core::testkit::TestKit;
use gpu_vmm_core::{Access, BackingStore, Bytes, DeviceId, Operation, Stream, SyncCalls, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{FaultInject, LateWork};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

type Faulty = FaultInject<HostBackend>;

const PAGE: u64 = 2 << 20;
const LARGE: Bytes = Bytes(5 * PAGE);

fn backend() -> Faulty {
    FaultInject::new(HostConfig::new().memory(Bytes::mib(128)).open().unwrap())
}

/// Fails if a page of a block has no memory according to the driver.
#[track_caller]
fn check_mapped(backend: &Faulty, block: &Block<Faulty>) {
    for page in 0..block.size().0.div_ceil(PAGE) {
        let at = block.address() + Bytes(page * PAGE);
        let access = backend.access_at(at, DeviceId(0)).unwrap();
        assert_eq!(access, Some(Access::ReadWrite), "page {page} of {block:?}");
    }
}

/// Returns a handle whose tag has free addresses at which the memory of a block of another tag is mapped, too, and that block.
fn aliased(pool: &Pool<Faulty>) -> (Pool<Faulty>, Block<Faulty>) {
    let [own, other] = ["own", "other"].map(|tag| pool.tagged(tag).unwrap());
    drop(other.alloc(LARGE).unwrap());
    assert_eq!(pool.stats().kept, LARGE.0);
    let block = own.alloc(LARGE).unwrap();
    assert_eq!(pool.stats().held, LARGE.0);
    (other, block)
}

/// A block is freed, and its memory serves a request at other addresses, which the suspension is about to unmap.
#[test]
fn a_suspension_unmaps_no_later_block() {
    let backend = backend();
    let pool = Pool::builder(&backend).slack(0).build().unwrap();
    let (other, block) = aliased(&pool);
    let store = BackingStore::pinned(&backend, Bytes::mib(32)).unwrap();
    let (sends, later) = mpsc::channel();
    backend.during(Operation::Unmap, move || {
        drop(block);
        let _ = other.stats();
        sends.send(other.request(LARGE).alloc_mapped()).unwrap();
    });
    pool.suspend("own", &store, WaitFor::all_devices()).unwrap();
    if let Some(block) = later.recv().unwrap() {
        check_mapped(&backend, &block);
    }
}

/// The addresses of two tags are released for a third one, and a request of the second tag is served before its turn comes.
#[test]
fn later_blocks_addresses_are_kept() {
    let backend = backend();
    let pool = Pool::builder(&backend).slack(1000).addresses(Bytes::mib(128)).build().unwrap();
    let [first, second, third] = ["1", "2", "3"].map(|tag| pool.tagged(tag).unwrap());
    let blocks = [&first, &second].map(|pool| pool.alloc(LARGE).unwrap());
    drop(blocks);
    assert_eq!(pool.stats().kept, 2 * LARGE.0);
    let (sends, later) = mpsc::channel();
    let handles = [first, second];
    backend.during(Operation::Unmap, move || {
        let blocks = handles.map(|pool| pool.request(LARGE).alloc_mapped());
        sends.send(blocks).unwrap();
    });
    let block = third.alloc(Bytes::mib(40)).unwrap();
    check_mapped(&backend, &block);
    for block in later.recv().unwrap().into_iter().flatten() {
        check_mapped(&backend, &block);
    }
}

/// A trim returns enough memory for the new budget before the call that sets it has its turn.
#[test]
fn a_budget_is_kept_before_its_turn() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    drop(pool.alloc(LARGE).unwrap());
    assert_eq!(pool.stats().kept, LARGE.0);
    let sets = backend.start_during(Operation::Unmap, {
        let pool = pool.clone();
        move || pool.set_budget(Bytes(PAGE)).unwrap()
    });
    pool.trim(Bytes::ZERO).unwrap();
    let sets = sets.recv().unwrap();
    let since = Instant::now();
    while !sets.is_finished() {
        assert!(since.elapsed() < Duration::from_secs(20), "the call waits for itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pool.usage().held, 0);
}

/// Pages with another frame's memory cannot be unmapped, nor mapped again.
#[test]
fn lost_pages_stay_lost() {
    let mut lost = 0;
    for first in 0.. {
        let backend = backend();
        let pool = Pool::builder(&backend).slack(0).build().unwrap();
        let (other, block) = aliased(&pool);
        backend.fail(first, u64::MAX);
        let failed = other.alloc(LARGE);
        backend.stop();
        if failed.is_ok() {
            break;
        }
        check_mapped(&backend, &block);
        drop(block);
        lost += u32::from(failed.unwrap_err().to_string().contains("roll"));
        let [one, two] = [LARGE; 2].map(|size| other.alloc(size).unwrap());
        check_mapped(&backend, &one);
        check_mapped(&backend, &two);
    }
    assert!(lost > 0, "no call lost a page");
}

/// A driver call panics after pages have been unmapped that had another frame's memory.
#[test]
fn panicking_call_leaves_pages_unmapped() {
    for call in [Operation::CreateMemory, Operation::Unmap, Operation::Map, Operation::SetAccess] {
        let backend = backend();
        let pool = Pool::builder(&backend).slack(0).build().unwrap();
        let (other, block) = aliased(&pool);
        let held = pool.usage().held;
        backend.during(call, || panic!("as a subscriber of `tracing` may"));
        catch_unwind(AssertUnwindSafe(|| other.alloc(LARGE))).unwrap_err();
        check_mapped(&backend, &block);
        drop(block);
        assert_eq!(pool.usage().held, held, "{call}");
        let [one, two] = [LARGE; 2].map(|size| other.alloc(size).unwrap());
        check_mapped(&backend, &one);
        check_mapped(&backend, &two);
    }
}

/// A trim that panics leaves no frame out of reach.
#[test]
fn a_trim_that_panics_keeps_the_accounts() {
    let backend = backend();
    let pool = Pool::builder(&backend).slack(0).build().unwrap();
    drop(pool.alloc(LARGE).unwrap());
    assert_eq!(pool.stats().kept, LARGE.0);
    backend.during(Operation::Unmap, || panic!("as a subscriber of `tracing` may"));
    catch_unwind(AssertUnwindSafe(|| pool.trim(Bytes::ZERO))).unwrap_err();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.usage().held, 0);
}

/// The stream of a request is forgotten, and its number serves another stream, whose work uses free memory.
#[test]
fn reused_stream_number_takes_no_memory() {
    let backend = backend();
    let pool = Pool::builder(&backend).slack(0).build().unwrap();
    let [own, other] = [(); 2].map(|()| backend.own_stream(DeviceId(0)).unwrap());
    // SAFETY: the streams live longer than the pool's blocks.
    let [stream, second]: [Stream<'static>; 2] =
        [&own, &other].map(|own| unsafe { Stream::from_raw(own.stream().as_raw()) });
    let [first_tag, second_tag] = ["1", "2"].map(|tag| pool.tagged(tag).unwrap());
    drop(second_tag.alloc(Bytes(3 * PAGE)).unwrap());
    pool.trim(Bytes(u64::MAX)).unwrap();
    let raw = (stream.as_raw().addr(), second.as_raw().addr());
    let (calls, works) = (second_tag.clone(), backend.clone());
    backend.during(Operation::CreateMemory, move || {
        let [stream, second] = [raw.0, raw.1].map(std::ptr::without_provenance_mut);
        // SAFETY: as above.
        let [stream, second] = [stream, second].map(|raw| unsafe { Stream::from_raw(raw) });
        calls.forget_stream(stream).unwrap();
        let block = calls.request(Bytes(3 * PAGE)).stream(second).alloc_mapped().unwrap();
        // SAFETY: the block is mapped.
        unsafe { works.start_pattern_on(DeviceId(0), second, block.address(), block.size(), 1, 2) }.unwrap();
        drop(block);
    });
    let block = first_tag.request(LARGE).stream(stream).alloc().unwrap();
    let is_done = other.is_done().unwrap();
    let held = pool.stats().held;
    backend.synchronize(DeviceId(0)).unwrap();
    assert!(is_done || held > LARGE.0, "memory was taken from a stream: {is_done} {held}");
    drop(block);
}

/// The stream of a request is forgotten while memory is mapped for a slab. Its earlier work may still use the memory.
#[test]
fn forgotten_streams_slots_wait() {
    let late = LateWork::new(HostConfig::new().memory(Bytes::mib(128)).open().unwrap(), 3);
    let backend = FaultInject::new(late.clone());
    let pool = Pool::builder(&backend).slack(0).build().unwrap();
    let [own, other] = [1, 2].map(|index| late.stream(index));
    let used = pool.request(Bytes(PAGE)).stream(own).alloc().unwrap();
    late.queue(1);
    drop(used);
    let (calls, raw) = (pool.clone(), own.as_raw().addr());
    backend.during(Operation::Map, move || {
        // SAFETY: the stream lives longer than the pool's blocks.
        let own = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(raw)) };
        calls.forget_stream(own).unwrap();
    });
    let first = pool.request(Bytes(256)).stream(own).alloc().unwrap();
    assert_eq!(pool.stats().held, PAGE);
    let second = pool.request(Bytes(256)).stream(other).alloc().unwrap();
    assert!(pool.stats().held > PAGE, "{second:?} has memory of {first:?}, which work still uses");
    late.finish(1, 1);
}

/// The budget becomes smaller while memory is mapped for a slab, of whose slots the thread cache would keep some.
#[test]
fn a_smaller_budget_leaves_no_slots_cached() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let calls = pool.tagged("before").unwrap();
    let before = calls.alloc(Bytes(300)).unwrap();
    let (sends, sets) = mpsc::channel();
    backend.during(Operation::Map, move || {
        drop(calls.alloc(Bytes(300)).unwrap());
        assert!(calls.stats().cached > 0);
        let sets = calls.clone();
        sends.send(std::thread::spawn(move || sets.set_budget(Bytes::ZERO).unwrap())).unwrap();
        // It empties the thread caches, and waits for its turn then.
        let since = Instant::now();
        while calls.stats().cached > 0 {
            assert!(since.elapsed() < Duration::from_secs(20), "the thread caches are not emptied");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let block = pool.alloc(Bytes(256)).unwrap();
    sets.recv().unwrap().join().unwrap();
    drop((before, block));
    assert_eq!((pool.stats().held, pool.stats().cached), (0, 0));
}

/// Another thread's call loses pages that are being overwritten for a request.
#[test]
fn overwritten_lost_pages_serve_nothing() {
    for size in [Bytes(300), Bytes::kib(512), LARGE] {
        let config = HostConfig::new().devices(2).memory(Bytes::mib(128));
        let backend = FaultInject::new(config.open().unwrap());
        let pool = Pool::builder(&backend).scrub().slack(0).build().unwrap();
        drop(pool.tagged("before").unwrap().alloc(Bytes(10 * PAGE)).unwrap());
        let tagged = pool.tagged("after").unwrap();
        let (calls, fails) = (pool.clone(), backend.clone());
        backend.during(Operation::Fill, move || {
            fails.fail_calls(&[Operation::SetAccess]);
            calls.allow_access(DeviceId(1)).unwrap_err();
            fails.stop();
        });
        let blocks: Vec<_> = (0..6).map(|_| tagged.alloc(size).unwrap()).collect();
        for block in &blocks {
            block.check_usable(Operation::Read).unwrap();
        }
    }
}
