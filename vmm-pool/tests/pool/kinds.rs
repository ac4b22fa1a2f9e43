//! Several kinds of memory in one pool: their properties, the budget that they share, and what gives way to what.

use crate::fence::OnlyWaits;
use gpu_vmm_core::{
    Access, Backend, BackingStore, Bytes, DeviceId, ErrorKind, HandleTypes, Location, Operation, Properties,
    WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Pool, PoolError};
use gpu_vmm_testkit::{FaultInject, Random};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Faulty = FaultInject<HostBackend>;

const DEVICE: DeviceId = DeviceId(0);
const OWN: Properties = Properties::on(DEVICE);
const HOST: Properties = OWN.located(Location::Host);
const SHAREABLE: Properties = OWN.shareable();
const PAGE: u64 = 2 << 20;

fn backend() -> Faulty {
    FaultInject::new(HostConfig::new().devices(2).memory(Bytes::gib(1)).open().unwrap())
}

fn pool(backend: &Faulty, budget: u64) -> Pool<Faulty> {
    Pool::builder(backend).budget(Bytes(budget)).build().unwrap()
}

/// Returns what each kind holds.
fn held<B: Backend>(pool: &Pool<B>) -> Vec<u64> {
    pool.kinds().iter().map(|(_, stats)| stats.held / PAGE).collect()
}

#[test]
fn each_kind_has_its_properties() {
    let backend = backend();
    let pool = pool(&backend, 64 * PAGE);
    for wanted in [OWN, HOST, SHAREABLE, HOST.shareable()] {
        for of_kind in [pool.with_memory(wanted).unwrap(), pool.with_memory(wanted).unwrap()] {
            assert_eq!(of_kind.memory(), wanted);
            let mut block = of_kind.alloc(Bytes(3 * PAGE)).unwrap();
            // Any handle finds the block.
            let (memory, _) = pool.memory_at(block.address(), block.size()).unwrap();
            assert!(memory.iter().all(|one| one.properties() == wanted), "{wanted}");
            let found = pool.find(block.address()).unwrap();
            assert_eq!((found.memory, found.base), (wanted, block.address()));
            block.write(Bytes(5), b"bytes").unwrap();
            let mut bytes = [0; 5];
            block.read(Bytes(5), &mut bytes).unwrap();
            assert_eq!(&bytes, b"bytes");
        }
    }
    let kinds: Vec<_> = pool.kinds().into_iter().map(|(properties, _)| properties).collect();
    assert_eq!(kinds, [OWN, HOST, SHAREABLE, HOST.shareable()]);
    let small = pool.request(Bytes(3000)).memory(HOST).tag("one").alloc().unwrap();
    assert_eq!(pool.find(small.address()).unwrap().tag.as_ref(), "one");
}

#[test]
fn pool_of_other_memory_has_it_first() {
    let backend = backend();
    let pool = Pool::builder(&backend).memory(HOST).build().unwrap();
    let block = pool.alloc(Bytes(PAGE)).unwrap();
    assert_eq!(pool.find(block.address()).unwrap().memory, HOST);
    assert!(pool.snapshot().device.ends_with("; host memory of device 0"), "{}", pool.snapshot().device);
    assert_eq!(pool.with_memory(OWN).unwrap().memory(), OWN);
    assert_eq!(pool.kinds().len(), 2);
}

#[test]
fn missing_kinds_are_refused_at_once() {
    let backend = backend();
    let pool = pool(&backend, 8 * PAGE);
    for (wanted, text) in [
        (OWN.exported_as(HandleTypes::FABRIC), "within one machine only"),
        (OWN.located(Location::HostNode(0)), "node"),
        (Properties::on(DeviceId(1)), "device 0, not of device 1"),
    ] {
        let error = pool.with_memory(wanted).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(pool.kinds().len(), 1);
    let plain = HostConfig::new().memory(Bytes::mib(64)).without_virtual_memory().open().unwrap();
    let error = Pool::builder(&plain).build().unwrap().with_memory(HOST).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(Pool::builder(&plain).memory(HOST).build().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn kinds_share_one_budget() {
    let backend = backend();
    let pool = pool(&backend, 8 * PAGE);
    let host = pool.with_memory(HOST).unwrap();
    let _live = [pool.alloc(Bytes(5 * PAGE)).unwrap(), host.alloc(Bytes(3 * PAGE)).unwrap()];
    for full in [&pool, &host] {
        let error = full.alloc(Bytes(PAGE)).unwrap_err();
        let Some(PoolError::OutOfMemory { kinds, .. }) = error.extension() else { panic!("{error}") };
        assert_eq!(
            kinds.iter().map(|(of, stats)| (*of, stats.held)).collect::<Vec<_>>(),
            [(OWN, 5 * PAGE), (HOST, 3 * PAGE)]
        );
        let text = error.to_string();
        assert!(text.contains("of device memory of device 0: 10 MiB held, 10 MiB live"), "{text}");
        assert!(text.contains("of host memory of device 0: 6 MiB held, 6 MiB live"), "{text}");
    }
    pool.set_budget(Bytes(9 * PAGE)).unwrap();
    host.alloc(Bytes(PAGE)).unwrap();
}

#[test]
fn free_memory_of_other_kinds_gives_way() {
    let backend = backend();
    let pool = pool(&backend, 12 * PAGE);
    let [host, shared] = [HOST, SHAREABLE].map(|kind| pool.with_memory(kind).unwrap());
    [&pool, &host, &shared].into_iter().for_each(|kind| drop(kind.alloc(Bytes(4 * PAGE)).unwrap()));
    assert_eq!(held(&pool), [4, 4, 4]);
    // The kind that was added last gives way first.
    let _two = pool.alloc(Bytes(6 * PAGE)).unwrap();
    let now = held(&pool);
    assert_eq!((now[0], now[1]), (6, 4), "{now:?}");
    let _all = pool.alloc(Bytes(6 * PAGE)).unwrap();
    assert_eq!(held(&pool), [12, 0, 0]);
    assert_eq!(host.alloc(Bytes(PAGE)).unwrap_err().kind(), ErrorKind::OutOfMemory);
    drop((_two, _all));
    let _host = host.alloc(Bytes(10 * PAGE)).unwrap();
    assert_eq!(held(&pool)[1], 10);
    assert!(held(&pool).iter().sum::<u64>() <= 12);
}

#[test]
fn oversized_request_takes_nothing_from_others() {
    let backend = backend();
    let pool = pool(&backend, 8 * PAGE);
    drop(pool.with_memory(HOST).unwrap().alloc(Bytes(4 * PAGE)).unwrap());
    assert_eq!(pool.alloc(Bytes(9 * PAGE)).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(held(&pool), [0, 4]);
}

/// The driver's memory is short, not the budget: kinds elsewhere keep theirs.
#[test]
fn full_device_reclaims_its_own_kinds() {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes(8 * PAGE)).open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap();
    let shared = pool.with_memory(SHAREABLE).unwrap();
    drop(shared.alloc(Bytes(6 * PAGE)).unwrap());
    let _block = pool.alloc(Bytes(5 * PAGE)).unwrap();
    assert_eq!(held(&pool)[0], 5);
    assert!(held(&pool)[1] <= 3);
}

#[test]
fn request_waits_for_other_kinds_memory() {
    let backend = backend();
    let pool = pool(&backend, 8 * PAGE);
    let host = pool.with_memory(HOST).unwrap();
    let fence = Arc::<OnlyWaits>::default();
    host.alloc(Bytes(6 * PAGE)).unwrap().free_after(Arc::<OnlyWaits>::clone(&fence));
    let _small = pool.alloc(Bytes(2 * PAGE)).unwrap();
    assert!(!fence.0.load(Ordering::Relaxed));
    let _large = pool.alloc(Bytes(4 * PAGE)).unwrap();
    assert!(fence.0.load(Ordering::Relaxed));
    assert_eq!(held(&pool)[0], 6);
}

#[test]
fn trims_and_budgets_reach_all_kinds() {
    let backend = backend();
    let pool = pool(&backend, 64 * PAGE);
    let host = pool.with_memory(HOST).unwrap();
    let fill = || [&pool, &host].into_iter().for_each(|kind| drop(kind.alloc(Bytes(4 * PAGE)).unwrap()));
    fill();
    assert_eq!(host.trim(Bytes(5 * PAGE)).unwrap(), Bytes(3 * PAGE));
    assert_eq!(held(&pool), [4, 1]);
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes(5 * PAGE));
    fill();
    pool.set_budget(Bytes(6 * PAGE)).unwrap();
    assert_eq!(held(&pool), [4, 2]);
    pool.set_budget(Bytes(PAGE)).unwrap();
    assert_eq!(held(&pool), [1, 0]);
    pool.set_budget(Bytes(u64::MAX)).unwrap();
    let live = [&pool, &host].map(|kind| kind.alloc(Bytes(4 * PAGE)).unwrap());
    host.set_budget(Bytes(3 * PAGE)).unwrap();
    assert_eq!(held(&pool), [4, 4]);
    drop(live);
    assert!(held(&pool).iter().sum::<u64>() <= 3, "{:?}", held(&pool));
}

#[test]
fn tags_of_two_kinds_are_two() {
    let backend = backend();
    let pool = pool(&backend, 8 * PAGE);
    let kv = pool.tagged("kv").unwrap();
    let host = kv.with_memory(HOST).unwrap();
    let mut block = host.alloc(Bytes(4 * PAGE)).unwrap();
    block.write(Bytes::ZERO, b"kept").unwrap();
    let store = BackingStore::pinned(&backend, Bytes(4 * PAGE)).unwrap();
    assert_eq!(host.suspend("kv", &store, WaitFor::all_devices()).unwrap(), Bytes(4 * PAGE));
    assert!(host.is_suspended("kv").unwrap() && !kv.is_suspended("kv").unwrap());
    // The memory serves the other kind, and its free memory gives way to the resume.
    drop(kv.alloc(Bytes(8 * PAGE)).unwrap());
    assert_eq!(held(&pool), [8, 0]);
    assert_eq!(host.resume("kv").unwrap(), Bytes(4 * PAGE));
    assert_eq!(held(&pool)[1], 4);
    let mut bytes = [0; 4];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    let (_, memory) = (block.address(), pool.find(block.address()).unwrap().memory);
    assert_eq!(memory, HOST);
}

#[test]
fn resume_without_room_fails_with_its_contents_safe() {
    let backend = backend();
    let pool = pool(&backend, 8 * PAGE);
    let host = pool.with_memory(HOST).unwrap().tagged("kv").unwrap();
    let _block = host.alloc(Bytes(4 * PAGE)).unwrap();
    let store = BackingStore::pinned(&backend, Bytes(4 * PAGE)).unwrap();
    host.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    let live = pool.alloc(Bytes(6 * PAGE)).unwrap();
    assert_eq!(host.resume("kv").unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert!(host.is_suspended("kv").unwrap());
    drop(live);
    assert_eq!(host.resume("kv").unwrap(), Bytes(4 * PAGE));
    assert!(held(&pool).iter().sum::<u64>() <= 8);
}

#[test]
fn access_belongs_to_a_kind() {
    let backend = backend();
    let pool = pool(&backend, 64 * PAGE);
    let host = pool.with_memory(HOST).unwrap();
    let [own, before] = [&pool, &host].map(|kind| kind.alloc(Bytes(PAGE)).unwrap());
    host.allow_access(DeviceId::HOST).unwrap();
    host.allow_access_as(DeviceId(1), Access::Read).unwrap();
    // A device that has more keeps it.
    host.allow_access_as(DEVICE, Access::Read).unwrap();
    host.allow_access_as(DeviceId(1), Access::None).unwrap();
    // The CPU writes too, or not at all: a driver's copies may be made by the CPU.
    let read_only = host.allow_access_as(DeviceId::HOST, Access::Read).unwrap_err();
    assert_eq!(read_only.kind(), ErrorKind::Unsupported);
    let after = host.alloc(Bytes(PAGE)).unwrap();
    let access = |at, device| backend.access_at(at, device).unwrap();
    for block in [&before, &after] {
        for (device, expected) in [(DEVICE, Access::ReadWrite), (DeviceId(1), Access::Read)] {
            assert_eq!(access(block.address(), device), Some(expected), "{device}");
        }
    }
    assert_eq!(access(own.address(), DeviceId(1)), Some(Access::None));
    // More access cannot be given while work may use the memory.
    let calls = backend.made(Operation::SetAccess);
    assert_eq!(host.allow_access(DeviceId(1)).unwrap_err().kind(), ErrorKind::Unsupported);
    host.allow_access_as(DeviceId(1), Access::Read).unwrap();
    assert_eq!(backend.made(Operation::SetAccess), calls);
    let tagged = host.tagged("kv").unwrap();
    let block = tagged.alloc(Bytes(2 * PAGE)).unwrap();
    tagged.suspend("kv", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    tagged.resume("kv").unwrap();
    assert_eq!(access(block.address(), DeviceId(1)), Some(Access::Read));
}

#[test]
fn any_handle_knows_kept_blocks() {
    let backend = backend();
    let pool = pool(&backend, 64 * PAGE);
    let host = pool.with_memory(HOST).unwrap();
    let address = pool.keep(host.alloc(Bytes(PAGE)).unwrap()).unwrap();
    host.free_at(address).unwrap();
    let error = pool.free_at(address).unwrap_err();
    assert!(matches!(error.extension(), Some(PoolError::FreedTwice { .. })), "{error}");
    // A handle of one kind keeps all of them, and its blocks outlive it.
    drop(pool);
    let own = host.with_memory(OWN).unwrap();
    let left = [own.alloc(Bytes(PAGE)).unwrap(), host.alloc(Bytes(PAGE)).unwrap()];
    host.keep(host.alloc(Bytes(PAGE)).unwrap()).unwrap();
    drop((own, host));
    drop(left);
    assert_eq!(backend.live().handles, 0);
}

#[test]
fn left_blocks_of_all_kinds_are_reported() {
    let backend = backend();
    let reported = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reported);
    let report = move |left: &[gpu_vmm_pool::Unfreed]| {
        count.fetch_add(left.len() as u64, Ordering::Relaxed);
    };
    let pool = Pool::builder(&backend).on_unfreed(report).build().unwrap();
    let host = pool.with_memory(HOST).unwrap();
    let left = [pool.alloc(Bytes(PAGE)).unwrap(), host.alloc(Bytes(PAGE)).unwrap()];
    host.keep(host.alloc(Bytes(PAGE)).unwrap()).unwrap();
    assert_eq!(pool.unfreed().len(), 3);
    drop((pool, host));
    assert_eq!(reported.load(Ordering::Relaxed), 3);
    drop(left);
}

#[test]
fn refused_creation_returns_the_budget() {
    let backend = backend();
    let pool = pool(&backend, 8 * PAGE);
    let host = pool.with_memory(HOST).unwrap();
    for number in 1..40 {
        backend.fail(number, 1);
        let failed = host.alloc(Bytes(6 * PAGE)).map(drop);
        let calls = backend.stop();
        drop(pool.alloc(Bytes(8 * PAGE)).unwrap());
        drop(host.alloc(Bytes(8 * PAGE)).unwrap());
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(held(&pool), [0, 0], "call {number}: {failed:?}");
        if calls < number {
            return;
        }
    }
}

/// Random calls of several threads in several kinds: the driver never has more of its memory out than the budget, and no request that
/// fits beside the live blocks fails.
fn random_threads(seed: u64, steps: u64) {
    const BUDGET: u64 = 24;
    let backend = HostConfig::new().memory(Bytes::gib(1)).open().unwrap();
    let free = || backend.memory_info(DEVICE).unwrap().free.0;
    let before = free();
    let pool = Pool::builder(&backend).budget(Bytes(BUDGET * PAGE)).build().unwrap();
    // Each thread has at most 6 pages live, and each of its blocks touches one page more.
    let thread = |number: u64| {
        let mut random = Random(seed * 31 + number);
        let mut blocks = Vec::new();
        for step in 0..steps {
            let kind = [OWN, HOST, SHAREABLE][random.below(3)];
            match random.below(8) {
                0 => drop(pool.trim(Bytes(random.below(8) as u64 * PAGE)).unwrap()),
                1..4 if !blocks.is_empty() => drop(blocks.swap_remove(random.below(blocks.len()))),
                _ => {
                    let size = 1 + random.next() % (3 * PAGE);
                    let live: u64 = blocks.iter().map(|block: &gpu_vmm_pool::Block<_>| block.size().0).sum();
                    if live + size <= 6 * PAGE && blocks.len() < 2 {
                        let of_kind = pool.with_memory(kind).unwrap().tagged("random").unwrap();
                        let block = of_kind.alloc(Bytes(size));
                        blocks.push(block.unwrap_or_else(|error| panic!("step {step}: {error}")));
                    }
                }
            }
            let out = before - free();
            assert!(out <= BUDGET * PAGE, "{out} bytes of {}", BUDGET * PAGE);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..3).map(|number| scope.spawn(move || thread(number))).collect();
        thread(0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(held(&pool), [0, 0, 0]);
    assert_eq!(free(), before);
}

/// `GPU_VMM_KINDS_SECONDS` makes it last that long.
#[test]
fn random_calls_in_kinds_stay_within_the_budget() {
    let seconds = std::env::var("GPU_VMM_KINDS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let begin = std::time::Instant::now();
    let mut seed = 1;
    random_threads(seed, 300);
    while begin.elapsed().as_secs() < seconds {
        seed += 1;
        random_threads(seed, 2000);
    }
}

/// Threads of two kinds that need more than half of the budget each: they take it from each other.
#[test]
fn kinds_take_the_budget_from_each_other() {
    let backend = backend();
    let pool = pool(&backend, 10 * PAGE);
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for kind in [OWN, HOST, SHAREABLE] {
            let (pool, failed) = (pool.with_memory(kind).unwrap(), &failed);
            scope.spawn(move || {
                for _ in 0..100 {
                    match pool.alloc(Bytes(6 * PAGE)) {
                        Ok(block) => drop(block),
                        Err(error) => {
                            assert!(matches!(error.extension(), Some(PoolError::OutOfMemory { .. })));
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    // The others' blocks may be live when one asks, so some fail, but never all.
    assert!(failed.into_inner() < 300);
    let own = pool.alloc(Bytes(10 * PAGE)).unwrap();
    assert_eq!(held(&pool).iter().sum::<u64>(), 10);
    drop(own);
    assert!(matches!(
        pool.alloc(Bytes(11 * PAGE)).unwrap_err().extension(),
        Some(PoolError::OutOfMemory { .. })
    ));
}
