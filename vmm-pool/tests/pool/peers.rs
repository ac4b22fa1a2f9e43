//! The access of other devices to a pool's memory: blocks from before and after, suspended tags, and calls that fail.

use gpu_vmm_core::{Access, BackingStore, Bytes, DeviceId, ErrorKind, Operation, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::FaultInject;

type Faulty = FaultInject<HostBackend>;

const PAGE: Bytes = Bytes::mib(2);
const SIZE: Bytes = Bytes::mib(6);
const OWNER: DeviceId = DeviceId(0);
const PEER: DeviceId = DeviceId(1);

fn host() -> Faulty {
    FaultInject::new(HostConfig::new().devices(3).memory(Bytes::mib(64)).open().unwrap())
}

/// Requires this access of a device to every page of a block.
#[track_caller]
fn has(backend: &Faulty, block: &Block<Faulty>, device: DeviceId, access: Access) {
    for page in 0..block.size().0.div_ceil(PAGE.0) {
        let at = block.address() + Bytes(page * PAGE.0);
        assert_eq!(backend.access_at(at, device).unwrap(), Some(access), "{device} at page {page}");
    }
}

#[test]
fn peer_keeps_access_after_suspension() {
    let backend = host();
    let pool = Pool::builder(&backend).build().unwrap();
    let (kv, weights) = (pool.tagged("kv").unwrap(), pool.tagged("weights").unwrap());
    let before = [kv.alloc(SIZE).unwrap(), weights.alloc(SIZE).unwrap()];
    before.iter().for_each(|block| has(&backend, block, PEER, Access::None));
    pool.allow_access(PEER).unwrap();
    let calls = backend.made(Operation::SetAccess);
    pool.allow_access(PEER).unwrap();
    assert_eq!(backend.made(Operation::SetAccess), calls, "it has the access already");
    let after = [kv.alloc(SIZE).unwrap(), weights.alloc(SIZE).unwrap()];
    let all = || before.iter().chain(&after);
    let check = || {
        for block in all() {
            has(&backend, block, OWNER, Access::ReadWrite);
            has(&backend, block, PEER, Access::ReadWrite);
            has(&backend, block, DeviceId(2), Access::None);
        }
    };
    check();
    let store = BackingStore::pinned(&backend, pool.occupied("kv").unwrap()).unwrap();
    pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    pool.resume("kv").unwrap();
    check();
}

#[test]
fn peer_added_while_suspended_gets_access() {
    let backend = host();
    let pool = Pool::builder(&backend).build().unwrap();
    let (kv, other) = (pool.tagged("kv").unwrap(), pool.alloc(SIZE).unwrap());
    let block = kv.alloc(SIZE).unwrap();
    let store = BackingStore::pinned(&backend, pool.occupied("kv").unwrap()).unwrap();
    pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    pool.allow_access(PEER).unwrap();
    has(&backend, &other, PEER, Access::ReadWrite);
    pool.resume("kv").unwrap();
    has(&backend, &block, PEER, Access::ReadWrite);
}

#[test]
fn refused_peer_changes_nothing() {
    let backend = host();
    let pool = Pool::builder(&backend).build().unwrap();
    let block = pool.alloc(SIZE).unwrap();
    backend.fail(0, 1);
    pool.allow_access(PEER).unwrap_err();
    backend.stop();
    block.check_usable(Operation::Read).unwrap();
    let later = pool.alloc(SIZE).unwrap();
    for block in [&block, &later] {
        has(&backend, block, OWNER, Access::ReadWrite);
        has(&backend, block, PEER, Access::None);
    }
    pool.allow_access(PEER).unwrap();
    [block, later].iter().for_each(|block| has(&backend, block, PEER, Access::ReadWrite));
}

/// If the access cannot be set back either, the access of the blocks there is unknown: they are out of use.
#[test]
fn blocks_of_unknown_access_are_unused() {
    let backend = host();
    let pool = Pool::builder(&backend).build().unwrap();
    let mut block = pool.alloc(SIZE).unwrap();
    backend.fail_calls(&[Operation::SetAccess]);
    pool.allow_access(PEER).unwrap_err();
    backend.stop();
    let error = block.check_usable(Operation::Read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert_eq!(block.write(Bytes::ZERO, &[1]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(block.read(SIZE - Bytes(1), &mut [0]).unwrap_err().kind(), ErrorKind::Poisoned);
    let other = Pool::builder(&backend).build().unwrap();
    other.alloc(SIZE).unwrap().write(Bytes::ZERO, &[1]).unwrap();
}

/// Neither the memory that was free then nor the memory of blocks that are freed later serves another request.
#[test]
fn pages_of_unknown_access_are_unused() {
    let backend = host();
    let pool = Pool::builder(&backend).build().unwrap();
    let [free, live] = [(); 2].map(|()| pool.alloc(SIZE).unwrap());
    drop(free);
    backend.fail_calls(&[Operation::SetAccess]);
    pool.allow_access(PEER).unwrap_err();
    backend.stop();
    let check = || pool.alloc(SIZE).unwrap().check_usable(Operation::Read).unwrap();
    check();
    drop(live);
    pool.trim(Bytes::ZERO).unwrap();
    check();
    pool.allow_access(PEER).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
}

/// A resume that could not give a peer access is repeated, and gives it.
#[test]
fn peer_added_while_suspended_waits_second_resume() {
    let backend = host();
    let pool = Pool::builder(&backend).build().unwrap();
    let (kv, store) = (pool.tagged("kv").unwrap(), BackingStore::pinned(&backend, Bytes::mib(32)).unwrap());
    let block = kv.alloc(SIZE).unwrap();
    pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    pool.allow_access(PEER).unwrap();
    let mut failed = 0;
    while {
        backend.fail(failed, 1);
        pool.resume("kv").is_err()
    } {
        failed += 1;
    }
    backend.stop();
    assert!(failed > 0);
    has(&backend, &block, PEER, Access::ReadWrite);
}

#[test]
fn plain_allocation_has_no_peer() {
    let backend = HostConfig::new().devices(2).without_virtual_memory().open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    // Before the first block as well.
    for _ in 0..2 {
        let error = pool.allow_access(PEER).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Unsupported, Operation::SetAccess));
        drop(pool.alloc(SIZE).unwrap());
    }
    pool.allow_access(OWNER).unwrap();
}
