//! Pages whose memory is lost while blocks lie in them: a call failed, and so did its rollback. A slab and a thread cache hold memory
//! next to the blocks' own, and none of it serves a later request.

use gpu_vmm_core::{BackingStore, Bytes, Detail, DeviceId, ErrorKind, Operation, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool, PoolError};
use gpu_vmm_testkit::{FaultInject, LateWork};

type Faulty = FaultInject<HostBackend>;

/// A slot, a block of a thread cache, a block of several pages.
const SIZES: [Bytes; 3] = [Bytes(300), Bytes::kib(900), Bytes::mib(6)];

fn start(size: Bytes) -> (Faulty, Pool<Faulty>, Vec<Block<Faulty>>) {
    let backend = FaultInject::new(HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap();
    let live = (0..3).map(|_| pool.alloc(size).unwrap()).collect();
    (backend, pool, live)
}

/// Allocates several blocks, all of which must have memory.
#[track_caller]
fn check(pool: &Pool<Faulty>, size: Bytes, when: &str) {
    let blocks: Vec<_> = (0..6).map(|_| pool.alloc(size).unwrap()).collect();
    for block in &blocks {
        let usable = block.check_usable(Operation::Read);
        assert!(usable.is_ok(), "{size}, {when}: {usable:?}");
    }
}

#[test]
fn memory_of_unknown_access_is_unused() {
    for size in SIZES {
        let (backend, pool, mut live) = start(size);
        backend.fail_calls(&[Operation::SetAccess]);
        pool.allow_access(DeviceId(1)).unwrap_err();
        backend.stop();
        check(&pool, size, "beside live blocks");
        live.pop();
        check(&pool, size, "after one was freed");
        let store = BackingStore::pinned(&backend, Bytes::mib(32)).unwrap();
        let error = pool.suspend("", &store, WaitFor::all_devices()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{size}: {error}");
        check(&pool, size, "after it could not be suspended");
        live.clear();
        check(&pool, size, "after all were freed");
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.stats().held, 0, "{size}");
    }
}

/// The driver fails from some call of a suspension on. Some of these suspensions lose pages that they have unmapped.
#[test]
fn memory_lost_in_suspension_is_unused() {
    for size in SIZES {
        let mut lost = 0;
        for first in 0.. {
            let (backend, pool, mut live) = start(size);
            // With unused pages in between, the others are unmapped by two calls.
            let count = (Bytes::mib(10).0 / size.0).max(5) as usize;
            live.extend((live.len()..count).map(|_| pool.alloc(size).unwrap()));
            live.sort_by_key(|block| block.address());
            live.drain(count / 3..count * 2 / 3);
            let store = BackingStore::pinned(&backend, Bytes::mib(32)).unwrap();
            backend.fail(first, u64::MAX);
            let is_done = pool.suspend("", &store, WaitFor::all_devices()).is_ok();
            backend.stop();
            if is_done {
                break;
            }
            if pool.is_suspended("").unwrap() {
                pool.resume("").unwrap();
            }
            check(&pool, size, &format!("from call {first} on"));
            let usable = |block: &Block<Faulty>| block.check_usable(Operation::Read).is_ok();
            if let Some(gone) = live.iter().position(|block| !usable(block)) {
                lost += 1;
                drop(live.swap_remove(gone));
                check(&pool, size, &format!("after a free, from call {first} on"));
            }
        }
        assert!(lost > 0, "{size}: no suspension has lost memory");
    }
}

/// The driver fails from some call of a trim on. Where each handle is unmapped by a call, it may fail between two of them.
#[test]
fn memory_lost_in_trim_is_unused() {
    let size = Bytes::mib(6);
    let mut lost = 0;
    for first in 0.. {
        let host = HostConfig::new().unmapping_singly().memory(Bytes::mib(64)).open().unwrap();
        let backend = FaultInject::new(host);
        let pool = Pool::builder(&backend).build().unwrap();
        drop((0..4).map(|_| pool.alloc(size).unwrap()).collect::<Vec<_>>());
        backend.fail(first, u64::MAX);
        let trimmed = pool.trim(Bytes::ZERO);
        backend.stop();
        let is_done = trimmed.is_ok_and(|size| !size.is_zero());
        check(&pool, size, &format!("from call {first} on"));
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.stats().held, 0, "from call {first} on");
        if is_done {
            break;
        }
        lost += 1;
    }
    assert!(lost > 4, "{lost}");
}

/// Memory that was mapped at a second address belongs to the block there. If it is lost, it serves no request at the first one.
#[test]
fn lost_memory_is_unused_elsewhere() {
    let large = Bytes::mib(8);
    let (backend, pool, mut live) = start(Bytes::mib(6));
    let guard = pool.alloc(large).unwrap();
    live.sort_by_key(Block::address);
    // The addresses of the first block are free and have no memory; the third one's addresses still have theirs.
    let first = live.remove(0);
    let place = first.address();
    drop(first);
    pool.trim(Bytes::ZERO).unwrap();
    let third = live.remove(1);
    let old = third.address();
    drop(third);
    // No memory is created, so that some of the third one's is mapped at the first one's addresses.
    pool.set_budget(Bytes(pool.stats().held)).unwrap();
    let moved = pool.alloc(Bytes::mib(4)).unwrap();
    assert_eq!(moved.address(), place, "the memory of {old} is not mapped elsewhere");
    pool.set_budget(Bytes(u64::MAX)).unwrap();
    backend.fail_calls(&[Operation::SetAccess]);
    pool.allow_access(DeviceId(1)).unwrap_err();
    backend.stop();
    moved.check_usable(Operation::Read).unwrap_err();
    check(&pool, Bytes::mib(6), "while a block whose memory was mapped twice is live");
    drop((moved, guard, live));
    check(&pool, Bytes::mib(6), "after all were freed");
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
}

/// A tag has a range for small blocks and one for others. The second one fails, and with it the return of the first one's memory.
#[test]
fn half_suspension_is_reported_and_resumed() {
    let mut halves = 0;
    for first in 0.. {
        let (backend, pool, mut live) = start(Bytes(300));
        live.push(pool.alloc(Bytes::mib(6)).unwrap());
        for (number, block) in live.iter_mut().enumerate() {
            block.write(Bytes(100), &[number as u8 + 1; 100]).unwrap();
        }
        let store = BackingStore::pinned(&backend, Bytes::mib(32)).unwrap();
        backend.fail(first, u64::MAX);
        let suspended = pool.suspend("", &store, WaitFor::all_devices());
        backend.stop();
        let Err(error) = suspended else { break };
        if !pool.is_suspended("").unwrap() {
            continue;
        }
        match error.extension() {
            Some(PoolError::SuspendedInPart { tag, memory, source, undo }) => {
                assert_eq!((&**tag, error.kind()), ("", ErrorKind::Suspended));
                // The pages of small blocks are in the first range. The second one is suspended too if it has lost its addresses.
                let whole = *memory == Bytes::mib(8);
                assert!(whole || *memory == Bytes::mib(2), "{memory} from call {first} on");
                let injected =
                    [&**source, undo].map(|error| error.driver_error().map(|driver| &*driver.name));
                assert_eq!(injected, [Some("INJECTED"); 2], "from call {first} on: {error}");
                let suspended: Vec<_> = pool.snapshot().spaces.iter().map(|space| space.suspended).collect();
                assert_eq!(suspended, [true, whole], "from call {first} on");
                halves += 1;
            }
            _ if matches!(error.detail(), Detail::AddressesLost { .. }) => {}
            _ => panic!("from call {first} on: {error:?}"),
        }
        for size in [Bytes(300), Bytes::mib(6)] {
            assert_eq!(pool.alloc(size).unwrap_err().kind(), ErrorKind::Suspended, "from call {first} on");
        }
        pool.resume("").unwrap();
        check(&pool, Bytes(300), &format!("from call {first} on"));
        for (number, block) in live[..3].iter().enumerate() {
            let mut read = [0; 100];
            block.read(Bytes(100), &mut read).unwrap();
            assert_eq!(read, [number as u8 + 1; 100], "from call {first} on");
        }
    }
    assert!(halves > 0, "no suspension was left half done");
}

/// A driver call fails for memory that a stream has freed and still uses.
#[test]
fn lost_memory_waits_for_its_work() {
    let late = LateWork::new(HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap(), 2);
    let backend = FaultInject::new(late.clone());
    let size = Bytes::mib(6);
    let pool = Pool::builder(&backend).budget(size).build().unwrap();
    let block = pool.request(size).stream(late.stream(1)).alloc().unwrap();
    late.queue(1);
    drop(block);
    backend.fail_calls(&[Operation::SetAccess]);
    pool.allow_access(DeviceId(1)).unwrap_err();
    backend.stop();
    // It waits for the work, if it gets the memory.
    let block = pool.alloc(size);
    assert!(block.is_err() || late.done(1) == 1, "memory is given away that work of another stream uses");
    drop(block);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
}
