//! While a thread creates, maps or unmaps memory, other threads are served from mapped memory.
#![allow(unsafe_code)]

use gpu_vmm_core::testkit::TestKit;
use gpu_vmm_core::{BackingStore, Bytes, DeviceId, Operation, Stream, SyncCalls, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::FaultInject;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

type Faulty = FaultInject<HostBackend>;

const PAGE: u64 = 2 << 20;
const MAPPED: Bytes = Bytes(3 * PAGE);
const LARGE: Bytes = Bytes(5 * PAGE);
const SMALL: Bytes = Bytes(304);

/// Returns a pool with mapped memory that is free: a small block's, and [`MAPPED`] bytes in one piece.
fn start(slack: u32) -> (Faulty, Pool<Faulty>) {
    let backend = FaultInject::new(HostConfig::new().devices(2).memory(Bytes::mib(128)).open().unwrap());
    let pool = Pool::builder(&backend).slack(slack).build().unwrap();
    drop([SMALL, MAPPED].map(|size| pool.alloc(size).unwrap()));
    // Not the block that was freed last, which serves the next request without any lock of the pool.
    assert_eq!(pool.stats().kept, MAPPED.0);
    (backend, pool)
}

/// Runs calls in another thread, and fails if they wait for this one.
fn beside<T: Send + 'static>(calls: impl FnOnce() -> T + Send + 'static) -> T {
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || ends.send(calls()));
    ended.recv_timeout(Duration::from_secs(20)).expect("the calls wait for the thread that maps memory")
}

/// Makes the calls that need no memory to be mapped.
fn all_calls(pool: &Pool<Faulty>, freed: Block<Faulty>, sizes: &[Bytes]) {
    for size in sizes.iter().copied() {
        let mut block = pool.alloc(size).unwrap();
        block.write(Bytes::ZERO, &[7; 304]).unwrap();
        assert!(pool.find(block.address()).is_some());
    }
    drop(freed);
    drop((pool.stats(), pool.usage(), pool.snapshot(), pool.layout(), pool.occupied("").unwrap()));
}

#[track_caller]
fn check(block: &Block<Faulty>, number: u8) {
    let mut bytes = vec![0; block.size().0 as usize];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == number), "{block:?}");
}

#[test]
fn other_threads_go_on() {
    for call in
        [Operation::CreateMemory, Operation::Reserve, Operation::Map, Operation::SetAccess, Operation::Unmap]
    {
        // Requests get new memory, and leave free memory to others.
        let (backend, pool) = start(1000);
        let (tagged, freed) = (pool.tagged("kv").unwrap(), pool.alloc(SMALL).unwrap());
        // Free pages of another tag.
        drop(pool.tagged("other").unwrap().alloc(LARGE).unwrap());
        // The unmapped memory may be the free memory.
        let sizes: &[Bytes] = if call == Operation::Unmap { &[SMALL] } else { &[SMALL, MAPPED] };
        let calls = pool.clone();
        backend.during(call, move || beside(move || all_calls(&calls, freed, sizes)));
        match call {
            Operation::Unmap => drop(pool.trim(Bytes(MAPPED.0 + PAGE)).unwrap()),
            _ => drop(tagged.alloc(Bytes(3 * LARGE.0)).unwrap()),
        }
        drop((pool, tagged));
        // The calls were made: their handle of the pool is gone.
        assert_eq!(backend.live().handles, 0, "during {call}");
    }
}

#[test]
fn requests_that_map_take_turns() {
    let (backend, pool) = start(0);
    let other = backend.start_during(Operation::Map, {
        let pool = pool.clone();
        move || pool.alloc(LARGE).unwrap()
    });
    let mut first = pool.alloc(LARGE).unwrap();
    let mut other = other.recv().unwrap().join().unwrap();
    for (number, block) in [&mut first, &mut other].into_iter().enumerate() {
        block.write(Bytes::ZERO, &vec![number as u8 + 1; LARGE.0 as usize]).unwrap();
    }
    check(&first, 1);
    check(&other, 2);
    assert_eq!(pool.stats().held, 2 * LARGE.0, "free memory serves one of the requests");
}

/// Neither a failed call nor one that panics changes what other threads have, and both can be made again.
#[test]
fn what_fails_is_undone() {
    const CALLS: [&[Operation]; 3] = [&[Operation::CreateMemory], &[Operation::Map], &[Operation::SetAccess]];
    for calls in CALLS {
        let call = calls[0];
        for panics in [false, true] {
            let (backend, pool) = start(0);
            let mut kept = pool.alloc(MAPPED).unwrap();
            kept.write(Bytes::ZERO, &vec![9; MAPPED.0 as usize]).unwrap();
            let (before, freed) = (pool.stats(), pool.alloc(SMALL).unwrap());
            let other = pool.clone();
            backend.during(call, move || {
                drop(freed);
                drop(other.alloc(SMALL).unwrap());
                assert!(!panics, "as a subscriber of `tracing` may");
            });
            backend.fail_calls(calls);
            let failed = catch_unwind(AssertUnwindSafe(|| pool.alloc(LARGE).unwrap_err()));
            assert_eq!(failed.is_err(), panics);
            backend.stop();
            let after = pool.stats();
            let amounts =
                |stats: &gpu_vmm_pool::PoolStats| (stats.held, stats.kept, stats.mapped, stats.peak_live);
            if !panics {
                assert_eq!(amounts(&after), amounts(&before), "{call}");
            }
            let again = pool.alloc(LARGE).unwrap();
            again.check_usable(Operation::Read).unwrap();
            check(&kept, 9);
            drop((again, kept, pool));
            assert_eq!(backend.live().handles, 0, "{call}");
        }
    }
}

#[test]
fn a_suspension_waits_for_the_mapping() {
    let (backend, pool) = start(0);
    let store = BackingStore::pinned(&backend, Bytes::mib(32)).unwrap();
    let suspends = backend.start_during(Operation::Map, {
        let pool = pool.clone();
        move || pool.suspend("", &store, WaitFor::all_devices()).unwrap()
    });
    let block = pool.alloc(LARGE).unwrap();
    assert_eq!(suspends.recv().unwrap().join().unwrap(), LARGE);
    assert!(pool.is_suspended("").unwrap());
    assert_eq!(pool.resume("").unwrap(), LARGE);
    block.check_usable(Operation::Read).unwrap();
}

/// The number of the stream may serve another stream when the memory is there.
#[test]
fn a_stream_is_forgotten_meanwhile() {
    for size in [SMALL, LARGE] {
        let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(128)).open().unwrap());
        let pool = Pool::builder(&backend).build().unwrap();
        let [own, other] = [(); 2].map(|()| backend.own_stream(DeviceId(0)).unwrap());
        // SAFETY: the streams live longer than the pool's blocks.
        let [stream, second]: [Stream<'static>; 2] =
            [&own, &other].map(|own| unsafe { Stream::from_raw(own.stream().as_raw()) });
        let calls = pool.clone();
        let raw = (stream.as_raw().addr(), second.as_raw().addr());
        backend.during(Operation::Map, move || {
            let [stream, second] = [raw.0, raw.1].map(std::ptr::without_provenance_mut);
            // SAFETY: as above.
            let [stream, second] = [stream, second].map(|raw| unsafe { Stream::from_raw(raw) });
            calls.forget_stream(stream).unwrap();
            drop(calls.request(SMALL).stream(second).alloc_mapped());
        });
        let block = pool.request(size).stream(stream).alloc().unwrap();
        assert_eq!(pool.find(block.address()).unwrap().stream, stream);
        // SAFETY: the block is mapped.
        unsafe { backend.start_pattern_on(DeviceId(0), stream, block.address(), block.size(), 1, 2) }
            .unwrap();
        let address = block.address();
        drop(block);
        let next = pool.request(size).stream(second).alloc().unwrap();
        assert!(next.address() != address || own.is_done().unwrap(), "memory was taken from a stream");
        backend.synchronize(DeviceId(0)).unwrap();
    }
}

/// A page that has another block's memory at other addresses, and must be unmapped first.
#[test]
fn memory_that_stays_mapped_serves_one_block() {
    let (backend, pool) = start(0);
    pool.set_budget(Bytes(MAPPED.0 + PAGE)).unwrap();
    let mut other = pool.tagged("other").unwrap().alloc(MAPPED).unwrap();
    other.write(Bytes::ZERO, &vec![5; MAPPED.0 as usize]).unwrap();
    pool.set_budget(Bytes::mib(64)).unwrap();
    for failing in [&[Operation::Unmap][..], &[Operation::Map], &[Operation::Map, Operation::Unmap]] {
        backend.fail_calls(failing);
        pool.alloc(MAPPED).unwrap_err();
        backend.stop();
        check(&other, 5);
    }
    let mut block = pool.alloc(MAPPED).unwrap();
    block.write(Bytes::ZERO, &vec![6; MAPPED.0 as usize]).unwrap();
    check(&other, 5);
    check(&block, 6);
    drop((block, other));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
    drop(pool);
    assert_eq!(backend.live().handles, 0);
}
