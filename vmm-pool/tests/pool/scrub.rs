//! Memory that passes from one tag to another is overwritten without the pool's lock, before any request gets it.

use gpu_vmm_core::{BackingStore, Bytes, Operation, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::FaultInject;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

type Faulty = FaultInject<HostBackend>;

const PAGE: u64 = 2 << 20;
/// A slot of a slab, and a quarter of a page.
const SIZES: [Bytes; 2] = [Bytes(300), Bytes::kib(512)];

/// Returns a pool with `pages` free pages, in which another tag has left its bytes, and a tag without memory.
fn start(pages: u64) -> (Faulty, Pool<Faulty>) {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let pool = Pool::builder(&backend).scrub().budget(Bytes(pages * PAGE)).build().unwrap();
    let mut block = pool.tagged("before").unwrap().alloc(Bytes(pages * PAGE)).unwrap();
    block.write(Bytes::ZERO, &vec![7; block.size().0 as usize]).unwrap();
    drop(block);
    let tagged = pool.tagged("after").unwrap();
    (backend, tagged)
}

#[track_caller]
fn check(block: &Block<Faulty>) {
    let mut bytes = vec![1; block.size().0 as usize];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "{block:?} has bytes of another tag");
}

/// Runs calls in another thread, and fails if they wait for this one.
fn beside<T: Send + 'static>(calls: impl FnOnce() -> T + Send + 'static) -> T {
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || ends.send(calls()));
    ended.recv_timeout(Duration::from_secs(20)).expect("the calls wait for the thread that overwrites memory")
}

#[test]
fn other_threads_go_on_during_a_fill() {
    for size in SIZES {
        let (backend, pool) = start(2);
        let (sends, other) = mpsc::channel();
        let calls = pool.clone();
        backend.during(Operation::Fill, move || {
            // The first page is being overwritten, and the second one serves the other thread.
            let block = beside(move || {
                let block = calls.alloc(size).unwrap();
                check(&block);
                assert_eq!(calls.stats().held, 2 * PAGE);
                drop((calls.snapshot(), calls.layout(), calls.usage()));
                assert_eq!(calls.trim(Bytes::ZERO).unwrap(), Bytes::ZERO);
                block
            });
            sends.send(block).unwrap();
        });
        let first = pool.alloc(size).unwrap();
        let other = other.recv().unwrap();
        check(&first);
        let page = |block: &Block<Faulty>| block.address().0 / PAGE;
        assert_ne!(
            page(&first),
            page(&other),
            "{size}: a request got a part of a page that was being overwritten"
        );
        // Now the rest of both pages serves requests.
        let more: Vec<_> = (0..2).map(|_| pool.alloc(size).unwrap()).collect();
        more.iter().for_each(check);
        assert_eq!(pool.stats().held, 2 * PAGE);
        assert_eq!(backend.made(Operation::Fill), 2, "{size}");
    }
}

/// A request that finds memory nowhere else gets the rest of the page afterwards.
#[test]
fn a_request_waits_for_the_page() {
    for size in SIZES {
        let (backend, pool) = start(1);
        let other = backend.start_during(Operation::Fill, {
            let pool = pool.clone();
            move || pool.alloc(size)
        });
        let first = pool.alloc(size).unwrap();
        let other = other.recv().unwrap().join().unwrap().unwrap();
        [&first, &other].into_iter().for_each(check);
        assert_eq!((pool.stats().held, backend.made(Operation::Fill)), (PAGE, 1));
    }
}

#[test]
fn a_suspension_waits_for_the_page() {
    for size in SIZES {
        let (backend, pool) = start(2);
        let store = BackingStore::pinned(&backend, Bytes::mib(4)).unwrap();
        let suspends = backend.start_during(Operation::Fill, {
            let pool = pool.clone();
            move || pool.suspend("after", &store, WaitFor::all_devices())
        });
        let block = pool.alloc(size).unwrap();
        suspends.recv().unwrap().join().unwrap().unwrap();
        assert!(pool.is_suspended("after").unwrap());
        pool.resume("after").unwrap();
        check(&block);
        drop(block);
        check(&pool.alloc(size).unwrap());
    }
}

/// The memory keeps the bytes of the earlier tag, so that the next request overwrites it.
#[test]
fn memory_that_was_not_overwritten_is_later() {
    for size in SIZES {
        let (backend, pool) = start(1);
        backend.fail_calls(&[Operation::Fill]);
        pool.alloc(size).unwrap_err();
        backend.stop();
        let stats = pool.stats();
        assert_eq!((stats.held, stats.kept), (PAGE, PAGE), "{size}");
        check(&pool.alloc(size).unwrap());
    }
}
