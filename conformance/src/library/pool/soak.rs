//! Random operations of many threads, with failures.
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_VMM_SOAK_OPERATIONS` | 20000 | the number of operations, over all threads |
//! | `GPU_VMM_STRESS_SEED` | 1 | the seed of the random operations |

use super::random::{Random, check_stamp, stamp};
use super::waits::named;
use super::{Hand, MIN, is_empty};
use crate::case::cases;
use crate::library::failures::injected;
use crate::library::flights::own;
use crate::library::tools::{idle, setting};
use crate::subject::{Subject, note};
use gpu_vmm_core::{BackingStore, Bytes, Error, Result, Stream};
use gpu_vmm_pool::{Block, Pool, PoolError};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

cases! { "pool":
    /// While eight threads allocate, free, pass on blocks, trim, suspend and resume, and driver calls fail now and then, no
    /// byte is lost and nothing leaks.
    soak,
}

const THREADS: u64 = 8;

/// The maximum size of each thread's blocks.
const MAX: u64 = 8 << 20;

/// The minimum number of driver calls between two failures, more than any rollback needs.
const APART: u64 = 400;

/// Longer soaks make no more driver calls than one of this length: slow operations become rarer, and so do blocks whose bytes
/// are checked.
const FULL: u64 = 50_000;

/// The maximum number of rounds.
const ROUNDS: u64 = 3;

/// The maximum number of blocks that wait for another thread.
const MAX_PASSED: usize = 256;

type Held<B> = Block<FaultInject<B>>;

/// The state that the threads share.
struct Soak<'a, B: TestKit> {
    subject: &'a Subject<B>,
    backend: FaultInject<B>,
    pool: Pool<FaultInject<B>>,
    /// The tag that is suspended now and then. Threads that use its blocks lock `gate` for reading, the thread that suspends
    /// it for writing.
    parked: Pool<FaultInject<B>>,
    gate: RwLock<()>,
    store: BackingStore<FaultInject<B>>,
    streams: [Stream<'static>; 3],
    /// One in `rarity` blocks is checked, and slow operations are rarer by this factor.
    rarity: u64,
    /// Blocks that one thread passes to another.
    passed: Mutex<Vec<(Held<B>, u64)>>,
    failed: AtomicU64,
    /// The fence of blocks that are freed behind a fence.
    hand: Hand,
}

/// The value of a call, or none if the call failed because of an injected failure.
fn came<T, B: TestKit>(soak: &Soak<'_, B>, answer: Result<T>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(error) if injected(&error).is_some() => {
            soak.failed.fetch_add(1, Ordering::Relaxed);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

impl<B: TestKit> Soak<'_, B> {
    fn passed(&self) -> MutexGuard<'_, Vec<(Held<B>, u64)>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a block to another thread, or frees it if too many are waiting.
    fn pass(&self, block: Held<B>, seed: u64) {
        let mut passed = self.passed();
        if passed.len() < MAX_PASSED {
            passed.push((block, seed));
        }
    }

    fn alloc(&self, pool: &Pool<FaultInject<B>>, size: Bytes, stream: usize, seed: u64) -> Option<Held<B>> {
        let block = came(self, pool.request(size).stream(self.streams[stream]).alloc())?;
        if self.is_looked_at(seed) {
            stamp(self.subject, &block, seed);
        }
        Some(block)
    }

    #[track_caller]
    fn check(&self, block: &Held<B>, seed: u64) {
        if self.is_looked_at(seed) {
            check_stamp(self.subject, block, seed);
        }
    }

    fn is_looked_at(&self, seed: u64) -> bool {
        seed.is_multiple_of(self.rarity)
    }

    /// The operations of one thread.
    fn work(&self, thread: u64, seed: u64, operations: u64) {
        let mut random = Random::new(seed ^ thread << 32);
        let (mut own, mut live): (Vec<(Held<B>, u64)>, u64) = (Vec::new(), 0);
        // Blocks of the tag that is suspended now and then.
        let mut parked: Vec<(Held<B>, u64)> = Vec::new();
        for operation in 0..operations {
            let seed = thread << 40 | operation;
            match random.below(1000) {
                0..500 if live < MAX => {
                    let size = if random.below(16) == 0 { random.size(22) } else { random.size(16) };
                    let stream = random.below(3) as usize;
                    let Some(block) = self.alloc(&self.pool, size, stream, seed) else { continue };
                    live += size.0;
                    own.push((block, seed));
                }
                0..900 => {
                    if own.is_empty() {
                        continue;
                    }
                    let (mut block, seed) = own.swap_remove(random.below(own.len() as u64) as usize);
                    live -= block.size().0;
                    self.check(&block, seed);
                    match random.below(20) {
                        0..4 => block.record_use(self.streams[random.below(3) as usize]).unwrap(),
                        4 => {
                            block.free_after(self.hand.fence());
                            // The next wait for this fence succeeds at once, although the fence does not report that it is
                            // done.
                            self.hand.set(Hand::WAITED);
                        }
                        5..8 => self.pass(block, seed),
                        _ => {}
                    }
                }
                900..940 => {
                    if random.below(16) == 0 {
                        self.hand.set(Hand::DONE);
                    }
                    let taken = self.passed().pop();
                    if let Some((block, seed)) = taken {
                        self.check(&block, seed);
                    }
                }
                940..990 => {
                    let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
                    if parked.len() < 6 {
                        let size = random.size(18);
                        let Some(block) = self.alloc(&self.parked, size, 0, seed) else { continue };
                        parked.push((block, seed));
                    } else {
                        let (block, seed) = parked.swap_remove(random.below(6) as usize);
                        self.check(&block, seed);
                    }
                }
                _ if random.below(self.rarity) > 0 => {}
                990..996 => {
                    came(self, self.pool.trim(random.size(24)));
                }
                _ => self.park(),
            }
            if operation % (512 * self.rarity) == thread * 64 {
                self.fail(&mut random);
            }
        }
        let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        own.iter().chain(&parked).for_each(|(block, seed)| self.check(block, *seed));
    }

    /// Suspends the tag, and resumes it until that succeeds.
    fn park(&self) {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if came(self, self.pool.suspend("parked", &self.store, idle())).is_some() {
            let refused = self.parked.alloc(MIN);
            assert!(
                matches!(refused.as_ref().map_err(Error::extension), Err(Some(PoolError::Suspended { .. }))),
                "{refused:?}"
            );
        }
        while came(self, self.pool.resume("parked")).is_none() {}
    }

    /// Makes some of the next driver calls fail.
    fn fail(&self, random: &mut Random) {
        let mut at = 0;
        let numbers: Vec<_> = (0..16)
            .map(|_| {
                at += APART + random.below(APART);
                at
            })
            .collect();
        let first = random.below(64);
        self.backend.fail_each(&[&[first], &*numbers].concat());
    }
}

/// Drivers keep some memory: on an H200, the first two streams took 2 MiB and the first handle another 2 MiB, and tables of
/// many addresses came and went in pieces of 2 MiB. A leak of the pool would recur in each round, so one round must end with
/// the free memory with which it began.
fn soak<B: TestKit>(subject: &Subject<B>) {
    let operations = setting("GPU_VMM_SOAK_OPERATIONS", 20_000);
    let seed = setting("GPU_VMM_STRESS_SEED", 1);
    let first = subject.free_here();
    let mut free = first;
    for turn in 0..ROUNDS {
        let failed = round(subject, operations, seed + turn);
        let before = std::mem::replace(&mut free, subject.free_here());
        note(format!(
            "seed {}, {operations} operations, {failed} of them failed, free memory {before} before, {free} after, {first} at the start",
            seed + turn
        ));
        if free == before {
            return;
        }
    }
    panic!(
        "each of {ROUNDS} rounds of {operations} operations left less memory free: {first} at the start, {free} now"
    );
}

/// Runs one soak with a pool of its own. Returns the number of operations that failed.
fn round<B: TestKit>(subject: &Subject<B>, operations: u64, seed: u64) -> u64 {
    let owns = [(); 2].map(|()| own(subject));
    let backend = FaultInject::new(subject.backend.clone());
    let pool = Pool::builder(&backend).device(subject.device).keep(Bytes::mib(16)).build().unwrap();
    let soak = Soak {
        subject,
        parked: pool.tagged("parked").unwrap(),
        pool,
        gate: RwLock::new(()),
        store: BackingStore::pinned(&backend, Bytes::mib(96)).unwrap(),
        streams: [Stream::DEFAULT, named(&*owns[0]), named(&*owns[1])],
        rarity: operations.div_ceil(FULL).max(1),
        passed: Mutex::default(),
        failed: AtomicU64::new(0),
        hand: Hand::new(),
        backend,
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let soak = &soak;
            scope.spawn(move || soak.work(thread, seed, operations / THREADS));
        }
    });
    soak.backend.stop();
    soak.hand.set(Hand::DONE);
    soak.passed().drain(..).for_each(|(block, seed)| soak.check(&block, seed));
    super::stats::is_consistent(&soak.pool);
    // Streams that have advanced release the memory that waited for them.
    soak.pool.trim(Bytes::ZERO).unwrap();
    let stats = soak.pool.stats();
    assert!(stats.pending == 0 || stats.live == 0, "{stats}");
    let Soak { backend, pool, parked, store, failed, .. } = soak;
    drop((parked, store));
    // Failures during a drop are recorded there.
    subject.backend.drop_log().take_last();
    is_empty(&pool);
    drop(pool);
    assert_eq!(backend.live(), Default::default(), "something has leaked");
    failed.into_inner()
}
