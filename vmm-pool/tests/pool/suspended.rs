//! Suspensions and resumes beside the calls of other threads, which take place while contents are copied.

use gpu_vmm_core::{Access, BackingStore, Bytes, DeviceId, ErrorKind, Operation, Result, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::FaultInject;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

type Faulty = FaultInject<HostBackend>;

const LARGE: Bytes = Bytes::mib(6);
const SMALL: Bytes = Bytes(300);
const OTHER: DeviceId = DeviceId(1);
const PAGE: u64 = 2 << 20;

/// The calls that queue the copies of a suspension and of a resume.
const COPIES: [Operation; 2] = [Operation::QueueCopyToHost, Operation::QueueCopyFromHost];

struct Program {
    backend: Faulty,
    /// Without a tag.
    pool: Pool<Faulty>,
    tagged: Pool<Faulty>,
    store: BackingStore<Faulty>,
    /// Two large blocks and a small one of the tag, each with a number in all of its bytes.
    blocks: Vec<Block<Faulty>>,
}

impl Program {
    fn new() -> Self {
        let backend = FaultInject::new(HostConfig::new().devices(2).memory(Bytes::mib(128)).open().unwrap());
        let pool = Pool::builder(&backend).build().unwrap();
        let tagged = pool.tagged("kv").unwrap();
        let store = BackingStore::pinned(&backend, Bytes::mib(32)).unwrap();
        let mut blocks: Vec<_> =
            [LARGE, LARGE, SMALL].map(|size| tagged.alloc(size).unwrap()).into_iter().collect();
        for (number, block) in blocks.iter_mut().enumerate() {
            block.write(Bytes::ZERO, &vec![number as u8 + 1; block.size().0 as usize]).unwrap();
        }
        Self { backend, pool, tagged, store, blocks }
    }

    fn suspend(&self) -> Result<Bytes> {
        self.pool.suspend("kv", &self.store, WaitFor::all_devices())
    }
}

#[track_caller]
fn check(block: &Block<Faulty>, number: u8) {
    let mut bytes = vec![0; block.size().0 as usize];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == number), "{block:?}");
}

/// Runs calls in another thread, and fails if they wait for this one.
fn beside(calls: impl FnOnce() + Send + 'static) {
    let (ends, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        calls();
        drop(ends);
    });
    let waited = ended.recv_timeout(Duration::from_secs(20));
    assert_eq!(
        waited,
        Err(mpsc::RecvTimeoutError::Disconnected),
        "the calls wait for the thread that copies"
    );
    thread.join().unwrap();
}

/// Makes every call that must not wait for the copies, and frees a block of the tag.
fn all_calls(pool: &Pool<Faulty>, freed: Block<Faulty>) {
    let tagged = pool.tagged("kv").unwrap();
    assert!(pool.is_suspended("kv").unwrap());
    for size in [SMALL, LARGE] {
        assert_eq!(tagged.alloc(size).unwrap_err().kind(), ErrorKind::Suspended);
        assert!(tagged.request(size).alloc_mapped().is_none());
        let mut own = pool.alloc(size).unwrap();
        own.write(Bytes::ZERO, &[7; 300]).unwrap();
    }
    assert_eq!(freed.read(Bytes::ZERO, &mut [0]).unwrap_err().kind(), ErrorKind::Suspended);
    let address = freed.address();
    assert!(pool.find(address).is_some());
    assert!(pool.memory_at(address, Bytes(1)).is_err());
    drop(freed);
    assert!(pool.find(address).is_none());
    // The tag's memory counts, and no other call takes it away.
    pool.trim(Bytes::ZERO).unwrap();
    let (stats, usage) = (pool.stats(), pool.usage());
    assert!(stats.held >= 3 * PAGE && usage.held == stats.held, "{stats}");
    assert_eq!(pool.occupied("kv").unwrap(), Bytes::ZERO);
    let snapshot = pool.snapshot();
    assert!(snapshot.spaces.iter().filter(|space| space.tag == "kv").all(|space| space.suspended));
    drop(pool.layout());
    pool.set_budget(Bytes::gib(1)).unwrap();
    pool.allow_access(OTHER).unwrap();
}

#[test]
fn other_threads_go_on_during_the_copies() {
    for copies in COPIES {
        let mut at = Program::new();
        let (freed, pool) = (at.blocks.remove(1), at.pool.clone());
        at.backend.during(copies, move || beside(move || all_calls(&pool, freed)));
        let memory = at.suspend().unwrap();
        assert_eq!(memory, Bytes(7 * PAGE));
        assert_eq!(at.pool.stats().held, 0, "during {copies}");
        assert_eq!(at.pool.resume("kv").unwrap(), memory);
        check(&at.blocks[0], 1);
        check(&at.blocks[1], 3);
        for block in &at.blocks {
            let access = at.backend.access_at(block.address(), OTHER).unwrap();
            assert_eq!(access, Some(Access::ReadWrite), "during {copies}: {block:?}");
        }
        // The freed block's memory is free, at its addresses.
        let stats = at.pool.stats();
        assert_eq!((stats.held, stats.kept), (memory.0, LARGE.0), "during {copies}");
        let maps = stats.driver_calls.map;
        drop(at.tagged.alloc(LARGE).unwrap());
        assert_eq!(at.pool.stats().driver_calls.map, maps, "during {copies}");
        at.blocks.clear();
        at.pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(at.backend.live().handles, 0);
    }
}

/// A suspension that fails puts the memory back. It belongs to the blocks again, and is free if the block was freed meanwhile.
#[test]
fn threads_continue_during_failing_copies() {
    let mut at = Program::new();
    let (freed, pool) = (at.blocks.remove(1), at.pool.clone());
    at.backend.during(COPIES[0], move || beside(move || all_calls(&pool, freed)));
    at.backend.fail_calls(&[Operation::FinishCopies]);
    let error = at.suspend().unwrap_err();
    at.backend.stop();
    assert_eq!(error.operation(), Operation::FinishCopies, "{error}");
    assert!(!at.pool.is_suspended("kv").unwrap());
    check(&at.blocks[0], 1);
    check(&at.blocks[1], 3);
    let access = at.backend.access_at(at.blocks[0].address(), OTHER).unwrap();
    assert_eq!(access, Some(Access::ReadWrite));
    let stats = at.pool.stats();
    assert_eq!((stats.held, stats.kept), (7 * PAGE, LARGE.0));
    at.blocks.clear();
    at.pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((at.pool.stats().held, at.backend.live().handles), (0, 0));
}

/// The later call waits for the earlier one, and does the rest.
#[test]
fn suspensions_and_resumes_take_turns() {
    let memory = Bytes(7 * PAGE);
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let at = Program::new();
        if first == 1 {
            at.suspend().unwrap();
        }
        let calls = |which: usize, pool: Pool<Faulty>, store: BackingStore<Faulty>| {
            move || match which {
                0 => pool.suspend("kv", &store, WaitFor::all_devices()),
                _ => pool.resume("kv"),
            }
        };
        let store = BackingStore::pinned(&at.backend, Bytes::mib(32)).unwrap();
        let thread = at.backend.start_during(COPIES[first], calls(second, at.pool.clone(), store.clone()));
        assert_eq!(calls(first, at.pool.clone(), at.store.clone())().unwrap(), memory);
        let later = thread.recv().unwrap().join().unwrap().unwrap();
        assert_eq!(later, if first == second { Bytes::ZERO } else { memory }, "{first}, {second}");
        assert_eq!(at.pool.is_suspended("kv").unwrap(), second == 0);
        at.pool.resume("kv").unwrap();
        (1..).zip(&at.blocks).for_each(|(number, block)| check(block, number));
    }
}

/// The pool's other handles and blocks may end meanwhile.
#[test]
fn a_pool_ends_after_its_suspension() {
    let at = Program::new();
    let Program { backend, pool, tagged, store, blocks } = at;
    let ends = pool.clone();
    backend.during(COPIES[0], move || beside(move || drop((pool, tagged, blocks))));
    assert_eq!(ends.suspend("kv", &store, WaitFor::all_devices()).unwrap(), Bytes(7 * PAGE));
    drop(ends);
    assert_eq!((backend.live().handles, backend.live().reservations), (0, 0));
}

/// A copy of a block's bytes that has begun ends before the memory goes.
#[test]
fn a_suspension_waits_for_copies_of_bytes() {
    let at = Program::new();
    let thread = at.backend.start_during(Operation::CopyToHost, {
        let (pool, store) = (at.pool.clone(), at.store.clone());
        move || pool.suspend("kv", &store, WaitFor::all_devices())
    });
    check(&at.blocks[0], 1);
    thread.recv().unwrap().join().unwrap().unwrap();
    at.pool.resume("kv").unwrap();
    check(&at.blocks[0], 1);
}

/// A resume finds the tag by its name, also if a suspension has just begun.
#[test]
fn a_suspended_tag_is_not_forgotten() {
    for copies in COPIES {
        let at = Program::new();
        let is_refused = |pool: &Pool<Faulty>| {
            let error = pool.forget_tag("kv").unwrap_err();
            assert_eq!((error.kind(), error.operation()), (ErrorKind::Suspended, Operation::TagMemory));
        };
        let pool = at.pool.clone();
        at.backend.during(copies, move || beside(move || is_refused(&pool)));
        at.suspend().unwrap();
        is_refused(&at.pool);
        at.pool.resume("kv").unwrap();
        (1..).zip(&at.blocks).for_each(|(number, block)| check(block, number));
        at.pool.forget_tag("kv").unwrap();
        assert_eq!(at.suspend().unwrap_err().kind(), ErrorKind::NotFound);
    }
}

/// A resume makes room by ending a space of its own tag whose blocks were freed, and needs less memory then.
#[test]
fn resume_counts_no_ended_space() {
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(&backend).budget(Bytes(4 * PAGE)).build().unwrap();
    let tagged = pool.tagged("kv").unwrap();
    let (small, large) = (tagged.alloc(Bytes::kib(100)).unwrap(), tagged.alloc(LARGE).unwrap());
    tagged.suspend("kv", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    drop(small);
    drop(pool.alloc(Bytes(PAGE)).unwrap());
    // Waits for the frees, and keeps the free page.
    pool.trim(Bytes(PAGE)).unwrap();
    tagged.resume("kv").unwrap();
    assert_eq!(pool.stats().held, LARGE.0);
    drop(large);
    drop(pool.alloc(Bytes(4 * PAGE)).unwrap());
}
