//! Shortages: of the budget, of memory that is not in use any more, of addresses.
#![allow(unsafe_code)]

use crate::fence::OnlyWaits;
use gpu_vmm_core::{
    Backend, BackingStore, Bytes, Detail, DeviceId, Error, ErrorKind, Operation, Result, Stream, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Fence, Pool, PoolError};
use gpu_vmm_testkit::forked::alone;
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const A: Bytes = Bytes(256);
const S: Stream<'static> = Stream::DEFAULT;

fn host(memory: Bytes) -> FaultInject<HostBackend> {
    FaultInject::new(HostConfig::new().memory(memory).open().unwrap())
}

/// A fence that cannot be waited for, and at first cannot be queried.
#[derive(Debug)]
struct Mute(Arc<AtomicBool>);

impl Fence for Mute {
    fn is_done(&self) -> Result<bool> {
        let error = Error::new(Operation::QueryEvent, Detail::Unsupported { reason: "it is mute".into() });
        if self.0.load(Ordering::Relaxed) { Ok(true) } else { Err(error) }
    }

    fn wait(&self) -> Result<()> {
        self.is_done().map(drop)
    }
}

/// A request waits for no more fences than it needs, and memory behind the others stays in use.
#[test]
fn the_oldest_fence_is_waited_for_first() {
    let pool = Pool::builder(&host(Bytes::mib(64))).build().unwrap();
    let waited: [Arc<AtomicBool>; 2] = Default::default();
    for one in &waited {
        pool.alloc(Bytes::mib(24)).unwrap().free_after(Arc::new(OnlyWaits(Arc::clone(one))));
    }
    let _block = pool.alloc(Bytes::mib(32)).unwrap();
    assert_eq!(waited.map(|one| one.load(Ordering::Relaxed)), [true, false]);
    assert_eq!(pool.stats().pending, Bytes::mib(24).0);
}

/// Although the pool may hold more, and creates new memory first.
#[test]
fn free_memory_is_remapped_in_shortage() {
    let pool = Pool::builder(&host(Bytes::mib(64))).slack(100).build().unwrap();
    let all: Vec<_> = (0..16).map(|_| pool.alloc(Bytes::mib(4)).unwrap()).collect();
    // No two free blocks are neighbours.
    let _stay: Vec<_> = all.into_iter().enumerate().filter(|(index, _)| index % 2 == 0).collect();
    let _block = pool.alloc(Bytes::mib(32)).unwrap();
    assert_eq!(pool.stats().held, Bytes::mib(64).0);
}

#[test]
fn unqueryable_fence_blocks_nothing() {
    let backend = host(Bytes::mib(64));
    let called = Arc::new(AtomicBool::new(false));
    let notes = Arc::clone(&called);
    let pool = Pool::builder(&backend)
        .on_out_of_memory(move |_, _| {
            notes.store(true, Ordering::Relaxed);
            false
        })
        .build()
        .unwrap();
    let done = Arc::new(AtomicBool::new(false));
    pool.request(Bytes::mib(16))
        .alignment(A)
        .stream(S)
        .alloc()
        .unwrap()
        .free_after(Arc::new(Mute(Arc::clone(&done))));
    let block = pool.request(Bytes::mib(32)).alignment(A).stream(S).alloc().unwrap();
    let error = pool.request(Bytes::mib(32)).alignment(A).stream(S).alloc().unwrap_err();
    assert!(matches!(error.extension(), Some(PoolError::OutOfMemory { .. })), "{error}");
    assert!(called.load(Ordering::Relaxed));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().pending, Bytes::mib(16).0);
    drop(block);
    done.store(true, Ordering::Relaxed);
    pool.request(Bytes::mib(64)).alignment(A).stream(S).alloc().unwrap();
}

#[test]
fn pending_fence_memory_outlives_the_pool() {
    let backend = host(Bytes::mib(64));
    let done = Arc::new(AtomicBool::new(false));
    let pool = Pool::builder(&backend).build().unwrap();
    pool.request(Bytes::mib(16))
        .alignment(A)
        .stream(S)
        .alloc()
        .unwrap()
        .free_after(Arc::new(Mute(Arc::clone(&done))));
    drop(pool);
    assert_eq!(backend.live().handles, 8, "what may still be used was given back");
    let logged = backend.drop_log().take_last().unwrap();
    assert_eq!(logged.operation(), Operation::DropPool, "{logged}");
    assert!(logged.to_string().contains("stays until the process ends"), "{logged}");

    let backend = host(Bytes::mib(64));
    let pool = Pool::builder(&backend).build().unwrap();
    let waited: [Arc<AtomicBool>; 3] = Default::default();
    for one in &waited {
        pool.alloc(Bytes::mib(16)).unwrap().free_after(Arc::new(OnlyWaits(Arc::clone(one))));
    }
    drop(pool);
    assert_eq!(waited.map(|one| one.load(Ordering::Relaxed)), [true; 3]);
    assert_eq!(backend.live().handles, 0);
}

/// A fence that panics.
#[derive(Debug)]
struct Panics;

impl Fence for Panics {
    fn is_done(&self) -> Result<bool> {
        Ok(false)
    }

    fn wait(&self) -> Result<()> {
        resume_unwind(Box::new("the fence's own panic"))
    }
}

#[test]
fn panicking_fence_memory_outlives_the_pool() {
    let backend = host(Bytes::mib(64));
    let pool = Pool::builder(&backend).build().unwrap();
    pool.alloc(Bytes::mib(16)).unwrap().free_after(Arc::new(Panics));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(pool))).is_err());
    assert_eq!(backend.live().handles, 8, "what may still be used was given back");
}

#[test]
fn what_comes_back_stays_within_the_budget() {
    let backend = host(Bytes::mib(256));
    let pool = Pool::builder(&backend).budget(Bytes::mib(32)).build().unwrap();
    let asleep = pool.tagged("asleep").unwrap();
    let _theirs = asleep.request(Bytes::mib(16)).alignment(A).stream(S).alloc().unwrap();
    let store = BackingStore::pinned(&backend, Bytes::mib(32)).unwrap();
    pool.suspend("asleep", &store, WaitFor::all_devices()).unwrap();
    let mine = pool.request(Bytes::mib(32)).alignment(A).stream(S).alloc().unwrap();
    let error = pool.resume("asleep").unwrap_err();
    let Some(PoolError::OutOfMemory { requested, tag, .. }) = error.extension() else { panic!("{error}") };
    assert_eq!((error.operation(), *requested, &**tag), (Operation::Resume, Bytes::mib(16), "asleep"));
    assert!(matches!(
        asleep.request(A).alignment(A).stream(S).alloc().as_ref().map_err(Error::extension),
        Err(Some(PoolError::Suspended { .. }))
    ));
    drop(mine);
    assert_eq!(pool.resume("asleep").unwrap(), Bytes::mib(16));
    assert_eq!(pool.stats().held, Bytes::mib(32).0);
    asleep.request(A).alignment(A).stream(S).alloc().unwrap();
    // Awake memory needs no more, whatever the budget, and stays.
    pool.set_budget(Bytes::mib(2)).unwrap();
    assert_eq!(pool.resume("asleep").unwrap(), Bytes::ZERO);
    assert_eq!(pool.stats().held, Bytes::mib(16).0);
}

/// A stream may still use the memory that a callback frees. The pool waits for it before it calls the callback again.
#[test]
fn what_the_program_frees_is_waited_for() {
    let backend = host(Bytes::mib(64));
    let own = backend.own_stream(DeviceId(0)).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let other: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    type Cached = (Block<FaultInject<HostBackend>>, Arc<AtomicBool>);
    let cache: Arc<Mutex<Vec<Cached>>> = Arc::default();
    let of_pool = Arc::downgrade(&cache);
    let pool = Pool::builder(&backend)
        .on_out_of_memory(move |_, _| {
            let Some(cache) = of_pool.upgrade() else { return false };
            let Some((mut block, waited)) = cache.lock().unwrap().pop() else { return false };
            block.record_use(other).unwrap();
            block.free_after(Arc::new(OnlyWaits(waited)));
            true
        })
        .build()
        .unwrap();
    for _ in 0..4 {
        let block = pool.request(Bytes::mib(16)).alignment(A).stream(S).alloc().unwrap();
        cache.lock().unwrap().push((block, Arc::default()));
    }
    let _one = pool.request(Bytes::mib(16)).alignment(A).stream(S).alloc().unwrap();
    assert_eq!(cache.lock().unwrap().len(), 3, "more was freed than was needed");
    cache.lock().unwrap().clear();
}

/// A block for which too few addresses are left is refused, although it may have more than half of them.
#[test]
fn blocks_keep_within_the_addresses() {
    let backend = host(Bytes::mib(256));
    let pool = Pool::builder(&backend).addresses(Bytes::mib(64)).build().unwrap();
    let _most = pool.request(Bytes::mib(40)).alignment(A).stream(S).alloc().unwrap();
    assert_eq!(pool.stats().reserved, Bytes::mib(40).0);
    let other = pool.tagged("other").unwrap();
    let error = other.request(Bytes::mib(26)).alignment(A).stream(S).alloc().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfAddressSpace, "{error}");
    assert_eq!(pool.stats().reserved, Bytes::mib(40).0);
    let _rest = other.request(Bytes::mib(24)).alignment(A).stream(S).alloc().unwrap();
    assert_eq!(pool.stats().reserved, Bytes::mib(64).0);
}

#[test]
fn absurd_requests_are_refused() {
    let backend = host(Bytes::mib(64));
    let pool = Pool::builder(&backend).build().unwrap();
    for (size, alignment) in [
        (u64::MAX, 256),
        (u64::MAX - 511, 1 << 63),
        (1, 1 << 63),
        (1, 1 << 46),
        (Bytes::mib(64).0, 1 << 45),
        (0, 256),
        (1, 0),
        (1, 3),
    ] {
        assert!(
            pool.request(Bytes(size)).alignment(Bytes(alignment)).stream(S).alloc().is_err(),
            "{size} at {alignment}"
        );
    }
    assert_eq!(pool.stats().held, 0);
}

/// A suspension that fails during one that succeeds does not make the tag usable.
#[test]
fn a_tag_is_suspended_by_several_threads() {
    let backend = host(Bytes::mib(64));
    let pool = Pool::builder(&backend).build().unwrap();
    let tagged = pool.tagged("one").unwrap();
    let _block = tagged.request(Bytes::mib(4)).alignment(A).stream(S).alloc().unwrap();
    for _ in 0..200 {
        std::thread::scope(|scope| {
            for size in [Bytes::mib(8), Bytes(4096)] {
                let (pool, backend) = (&pool, &backend);
                scope.spawn(move || {
                    let store = BackingStore::pinned(backend, size).unwrap();
                    let _ = pool.suspend("one", &store, WaitFor::all_devices());
                });
            }
        });
        let error = tagged.request(A).alignment(A).stream(S).alloc().unwrap_err();
        assert!(matches!(error.extension(), Some(PoolError::Suspended { .. })), "{error}");
        pool.resume("one").unwrap();
    }
}

/// Addresses of which the driver has fewer than the pool wants: `refused` reservations fail before one succeeds. Returns the size
/// of the one that succeeded, or the error.
fn reserved_after(refused: u64, wanted: Bytes, size: Bytes) -> Result<(Bytes, u64), Error> {
    let backend = host(Bytes::mib(64));
    let pool = Pool::builder(&backend).addresses(Bytes(wanted.0 * 2)).build().unwrap();
    fn refuse(backend: &FaultInject<HostBackend>, left: u64) {
        let next = backend.clone();
        backend.during(
            Operation::Reserve,
            move || {
                if left > 0 { refuse(&next, left - 1) } else { _ = next.stop() }
            },
        );
    }
    if refused > 0 {
        backend.fail_calls(&[Operation::Reserve]);
        // The call in which the plan ends fails too.
        refuse(&backend, refused - 1);
    }
    let before = backend.made(Operation::Reserve);
    let block = pool.request(size).alignment(A).stream(S).alloc()?;
    let of_pool = pool.stats().reserved;
    drop(block);
    Ok((Bytes(of_pool), backend.made(Operation::Reserve) - before))
}

#[test]
fn addresses_are_halved_down_to_need() {
    let wanted = Bytes::mib(64);
    for (refused, size, served) in [
        (0, Bytes::mib(32), Some(wanted)),
        (1, Bytes::mib(32), Some(Bytes::mib(32))),
        (1, Bytes::mib(34), None),
        (2, Bytes::mib(16), Some(Bytes::mib(16))),
        (2, Bytes::mib(32), None),
        (2, Bytes::mib(18), None),
    ] {
        let answer = reserved_after(refused, wanted, size);
        match (answer, served) {
            (Ok(found), Some(served)) => assert_eq!(found, (served, 1), "{size} after {refused}"),
            (Err(error), None) => {
                assert_eq!(error.operation(), Operation::Reserve, "{size} after {refused}: {error}");
            }
            (answer, _) => panic!("{size} after {refused}: {answer:?}"),
        }
    }
}

/// The variable is the whole process's, so the test has a process of its own.
#[test]
fn environment_budget_is_named_until_replaced() {
    alone(|| {
        // SAFETY: the child has one thread.
        unsafe { std::env::set_var("GPU_VMM_BUDGET", "4MiB") };
        let backend = host(Bytes::mib(64));
        let refused = |pool: &Pool<FaultInject<HostBackend>>| {
            let error = pool.request(Bytes::mib(16)).alignment(A).stream(S).alloc().unwrap_err();
            assert!(matches!(error.extension(), Some(PoolError::OutOfMemory { .. })), "{error}");
            error.to_string()
        };
        let pool = Pool::builder(&backend).build().unwrap();
        let text = refused(&pool);
        assert!(text.contains("the pool's budget is 4 MiB, as GPU_VMM_BUDGET says"), "{text}");
        pool.set_budget(Bytes::mib(8)).unwrap();
        let own = Pool::builder(&backend).budget(Bytes::mib(8)).build().unwrap();
        for pool in [&pool, &own] {
            let text = refused(pool);
            assert!(text.contains("the pool's budget is 8 MiB") && !text.contains("GPU_VMM"), "{text}");
        }
        // SAFETY: as above.
        unsafe { std::env::set_var("GPU_VMM_BUDGET", "") };
        drop(Pool::builder(&backend).build().unwrap().alloc(Bytes::mib(16)).unwrap());
        // SAFETY: as above.
        unsafe { std::env::set_var("GPU_VMM_BUDGET", "lots") };
        let error = Pool::builder(&backend).build().unwrap_err();
        assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
        // A pool with a budget of its own does not ask.
        Pool::builder(&backend).budget(Bytes::mib(8)).build().unwrap();
    });
}

#[test]
fn shortage_accounts_have_all_numbers() {
    let backend = FaultInject::new(HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap());
    let builder = || Pool::builder(&backend).device(DeviceId(1));
    let pool = builder().budget(Bytes::mib(16)).build().unwrap().tagged("kv").unwrap();
    let _block = pool.alloc(Bytes::mib(9)).unwrap();
    drop(pool.alloc(Bytes::mib(2)).unwrap());
    let error = pool.alloc(Bytes::mib(12)).unwrap_err();
    let text = "out of memory for 12 MiB on device 1 tagged \"kv\" (the pool's budget is 16 MiB); the pool holds \
                12 MiB for 1 blocks of 9 MiB, 0 B ready in caches, 0 B pending, 2 MiB kept; 64 MiB of addresses \
                are reserved";
    assert_eq!((error.operation(), error.kind()), (Operation::Allocate, ErrorKind::OutOfMemory));
    assert!(error.to_string().contains(text), "{error}");
    let Some(PoolError::OutOfMemory { stats, .. }) = error.extension() else { panic!("{error}") };
    assert_eq!(**stats, pool.stats());
    // The driver's error is the source.
    let pool = builder().build().unwrap();
    backend.fail_calls(&[Operation::CreateMemory]);
    let error = pool.alloc(Bytes::mib(4)).unwrap_err();
    backend.stop();
    assert_eq!(error.operation(), Operation::CreateMemory, "{error}");
    let error = pool.alloc(Bytes::mib(65)).unwrap_err();
    let Detail::ExceedsDevice { requested, device, total } = error.detail() else { panic!("{error}") };
    assert_eq!((*requested, *device, *total), (Bytes::mib(65), DeviceId(1), Bytes::mib(64)));
    // The addresses of the tag, and of a tag that has none yet.
    let pool = builder().addresses(Bytes::mib(48)).build().unwrap();
    let block = pool.alloc(Bytes::mib(17)).unwrap();
    let numbers = |pool: &Pool<FaultInject<HostBackend>>, size| {
        let error = pool.alloc(size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfAddressSpace, "{error}");
        let Some(PoolError::OutOfAddresses { requested, tag, used, reserved, limit, stats }) =
            error.extension()
        else {
            panic!("{error}")
        };
        assert_eq!((*requested, **stats == pool.stats()), (size, true));
        (tag.to_string(), [*used, *reserved, *limit].map(|bytes| bytes.0 >> 20))
    };
    assert_eq!(numbers(&pool, Bytes::mib(26)), (String::new(), [17, 24, 48]));
    let other = pool.tagged("other").unwrap();
    assert_eq!(numbers(&other, Bytes::mib(26)), ("other".to_owned(), [24, 24, 48]));
    drop(block);
}

#[test]
fn a_callback_frees_addresses() {
    let backend = host(Bytes::mib(64));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let cache = Arc::downgrade(&kept);
    let evict = move |_: &_, _| {
        let block: Option<Block<_>> = cache.upgrade().and_then(|cache| cache.lock().unwrap().pop());
        block.is_some()
    };
    let pool = Pool::builder(&backend).addresses(Bytes::mib(48)).on_out_of_memory(evict).build().unwrap();
    kept.lock().unwrap().push(pool.alloc(Bytes::mib(17)).unwrap());
    // 24 MiB of addresses are left.
    pool.alloc(Bytes::mib(26)).unwrap();
    assert!(kept.lock().unwrap().is_empty());
    assert_eq!(pool.alloc(Bytes::mib(49)).unwrap_err().kind(), ErrorKind::OutOfAddressSpace);
}

/// The budget has become smaller than the tag's memory, or than that and the other memory in use.
#[test]
fn tag_above_budget_stays_suspended() {
    let backend = host(Bytes::mib(64));
    let pool = Pool::builder(&backend).build().unwrap();
    let mut block = pool.tagged("kv").unwrap().alloc(Bytes::mib(6)).unwrap();
    block.write(Bytes(5), b"contents").unwrap();
    let store = BackingStore::pinned(&backend, Bytes::mib(8)).unwrap();
    assert_eq!(pool.suspend("kv", &store, WaitFor::all_devices()).unwrap(), Bytes::mib(6));
    let mut others = Vec::new();
    for (budget, other) in [(Bytes::mib(5), Bytes::ZERO), (Bytes::mib(9), Bytes::mib(4))] {
        if !other.is_zero() {
            others.push(pool.alloc(other).unwrap());
        }
        pool.set_budget(budget).unwrap();
        let error = pool.resume("kv").unwrap_err();
        assert_eq!((error.operation(), error.kind()), (Operation::Resume, ErrorKind::OutOfMemory));
        let text = format!(
            "out of memory for 6 MiB on device 0 tagged \"kv\" (the pool's budget is {budget}); the pool holds {other}"
        );
        assert!(error.to_string().contains(&text), "{error}");
        assert!(pool.is_suspended("kv").unwrap());
        assert_eq!(pool.stats().held, other.0);
    }
    pool.set_budget(Bytes::mib(10)).unwrap();
    assert_eq!(pool.resume("kv").unwrap(), Bytes::mib(6));
    let mut read = [0; 8];
    block.read(Bytes(5), &mut read).unwrap();
    assert_eq!((&read, pool.stats().held), (b"contents", Bytes::mib(10).0));
}
