//! What other threads do while one thread maps memory.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs, unsafe_code)]

use gpu_vmm_core::testkit::TestKit;
use gpu_vmm_core::{Access, BackingStore, Bytes, DeviceId, Operation, Stream, SyncCalls, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::FaultInject;
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

/// The addresses of two tags are released for a third one, and a request of the second tag is served before its turn comes.
#[test]
fn addresses_of_a_later_block_are_not_released() {
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

/// A trim returns so much memory that the new budget is kept when the turn of the call that sets it comes.
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
