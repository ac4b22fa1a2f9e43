//! Each driver call fails once: statistics and bytes stay right, a second attempt succeeds, and nothing leaks.

use super::stats::is_consistent;
use super::waits::named;
use super::{adds_up, is_empty, write_at, wrong_at};
use crate::case::cases;
use crate::library::failures::injected;
use crate::library::flights::own;
use crate::library::moved::two;
use crate::library::tools::idle;
use crate::report::FAILURE_POINTS;
use crate::subject::{Subject, note};
use gpu_vmm_core::{BackingStore, Bytes, Detail, MovePath, Operation, Result, Stream};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "pool":
    /// Whichever driver call fails while a pool allocates its first block, the pool is unchanged and a retry succeeds.
    failing_first,
    /// Whichever driver call fails while a block gets new memory, the pool is unchanged and a retry succeeds.
    failing_growth,
    /// Whichever driver call fails while a block's memory is remapped from elsewhere, the pool is unchanged and a retry
    /// succeeds.
    failing_remapping,
    /// Whichever driver call fails while memory of another tag is scrubbed for a block, the pool is unchanged and a retry
    /// succeeds.
    failing_scrub,
    /// Whichever driver call fails while a block of another stream is allocated, live blocks keep their bytes and a retry
    /// succeeds.
    failing_on_another_stream,
    /// Whichever driver call fails while memory is trimmed, live blocks keep their bytes and a retry succeeds.
    failing_trim,
    /// Whichever driver call fails while memory is suspended, live blocks keep their bytes and a retry succeeds.
    failing_suspend,
    /// Whichever driver call fails while memory is resumed, live blocks keep their bytes and a retry succeeds.
    failing_resume,
    /// Whichever driver call fails while a pool of two kinds of memory moves to another device, live blocks keep their bytes on the old
    /// device, and a retry succeeds.
    failing_move,
    /// If a driver call fails while a free releases memory beyond the kept limit, the error is recorded in the drop log.
    failing_free,
    /// If a driver call fails while a block that another stream has used is freed, the error is recorded in the drop log.
    failing_free_after_use,
    /// If the driver has no addresses at all, its error is returned, and the pool works again when there are some.
    failing_every_reservation,
    /// If undoing a mapping fails too, its addresses are no longer used, and the tag gets others.
    undoing_a_mapping,
}

type Faulty<B> = FaultInject<B>;

/// A pool on a backend with fault injection, and blocks with their patterns.
struct Bench<'a, B: TestKit> {
    subject: &'a Subject<B>,
    backend: Faulty<B>,
    pool: Pool<Faulty<B>>,
    /// Absent until it is used.
    store: Option<BackingStore<Faulty<B>>>,
    blocks: Vec<Block<Faulty<B>>>,
    other: Stream<'static>,
}

impl<'a, B: TestKit> Bench<'a, B> {
    fn new(subject: &'a Subject<B>, other: Stream<'static>, keep: Bytes) -> Self {
        let backend = FaultInject::new(subject.backend.clone());
        let builder = Pool::builder(&backend).device(subject.device).keep(keep).scrub();
        let pool = builder.build().unwrap();
        Self { subject, pool, store: None, blocks: Vec::new(), backend, other }
    }

    fn store(&mut self) -> BackingStore<Faulty<B>> {
        let size = self.pages(16);
        let Self { store, backend, .. } = self;
        store.get_or_insert_with(|| BackingStore::pinned(backend, size).unwrap()).clone()
    }

    fn pages(&self, count: u64) -> Bytes {
        Bytes(self.pool.snapshot().page * count)
    }

    /// Allocates a block and writes its pattern.
    fn add(&mut self, pool: &Pool<Faulty<B>>, size: Bytes) -> Result<()> {
        let block = pool.alloc(size)?;
        write_at(&self.subject.backend, self.subject.device, block.address(), size, block.address().0);
        self.blocks.push(block);
        Ok(())
    }

    fn check(&self) {
        for block in &self.blocks {
            let at = block.address();
            assert_eq!(
                wrong_at(&self.subject.backend, self.subject.device, at, block.size(), at.0),
                0,
                "{at}"
            );
        }
        adds_up(&self.pool);
        is_consistent(&self.pool);
    }

    /// Frees every second block.
    fn thin(&mut self) {
        let mut index = 0;
        self.blocks.retain(|_| {
            index += 1;
            index % 2 == 0
        });
    }
}

/// The state that is allowed after a failed call.
#[derive(Clone, Copy, PartialEq)]
enum After {
    /// An error, and everything is as before.
    AsBefore,
    /// An error, and part of the operation is done.
    SomeDone,
    /// No error; it is recorded in the drop log.
    Logged,
}

/// Makes each driver call of `act` fail in turn.
fn sweep<B: TestKit>(
    subject: &Subject<B>,
    keep: Bytes,
    after: After,
    prepare: impl Fn(&mut Bench<'_, B>),
    act: impl Fn(&mut Bench<'_, B>) -> Result<()>,
) {
    let mut points = 0;
    let own = own(subject);
    for failing in 0.. {
        let mut bench = Bench::new(subject, named(&*own), keep);
        prepare(&mut bench);
        bench.check();
        let before = bench.pool.stats();
        bench.backend.fail(failing, 1);
        let answer = act(&mut bench);
        let calls = bench.backend.stop();
        let log = subject.backend.drop_log().take_last();
        if calls <= failing {
            answer.unwrap();
        } else {
            points += 1;
            // Some calls have a fallback, so `act` can succeed.
            if let Err(error) = answer {
                assert_eq!(injected(&error), Some(failing), "{error}");
                assert!(after != After::Logged, "{error}");
                let now = bench.pool.stats();
                assert_eq!((now.live, now.live_blocks), (before.live, before.live_blocks));
                if after == After::AsBefore {
                    assert_eq!(now.allocations, before.allocations);
                    assert_eq!(now.held - now.kept, before.held - before.kept, "after call {failing}");
                    assert_eq!(now.held, before.held, "after call {failing}");
                    bench.check();
                }
                act(&mut bench).unwrap_or_else(|error| panic!("again after call {failing}: {error}"));
            } else if after == After::Logged {
                assert!(
                    log.is_some_and(|error| injected(&error) == Some(failing)),
                    "the drop log does not have the error"
                );
            }
        }
        bench.check();
        bench.pool.resume("").unwrap();
        bench.blocks.clear();
        is_empty(&bench.pool);
        let backend = bench.backend.clone();
        drop(bench);
        assert_eq!(backend.live(), Default::default(), "after driver call {failing} failed");
        assert!(subject.backend.drop_log().take_last().is_none_or(|_| after == After::Logged));
        if calls <= failing {
            break;
        }
    }
    assert!(points > 0);
    note(format!("{FAILURE_POINTS}{points}"));
}

const ALL: Bytes = Bytes(u64::MAX);

fn failing_first<B: TestKit>(subject: &Subject<B>) {
    sweep(subject, ALL, After::AsBefore, |_| {}, |bench| bench.add(&bench.pool.clone(), Bytes(5000)));
}

fn failing_growth<B: TestKit>(subject: &Subject<B>) {
    let prepare = |bench: &mut Bench<'_, B>| bench.add(&bench.pool.clone(), bench.pages(3)).unwrap();
    sweep(subject, ALL, After::AsBefore, prepare, |bench| bench.add(&bench.pool.clone(), bench.pages(4)));
}

fn holes<B: TestKit>(bench: &mut Bench<'_, B>) {
    holes_among(bench, 8);
}

fn holes_among<B: TestKit>(bench: &mut Bench<'_, B>, blocks: usize) {
    let pool = bench.pool.clone();
    for _ in 0..blocks {
        bench.add(&pool, Bytes(bench.pages(3).0 / 2)).unwrap();
    }
    bench.thin();
}

fn failing_remapping<B: TestKit>(subject: &Subject<B>) {
    sweep(subject, ALL, After::AsBefore, holes, |bench| bench.add(&bench.pool.clone(), bench.pages(4)));
}

fn failing_scrub<B: TestKit>(subject: &Subject<B>) {
    let act = |bench: &mut Bench<'_, B>| {
        let other = bench.pool.tagged("other").unwrap();
        bench.add(&other, bench.pages(3))
    };
    sweep(subject, ALL, After::AsBefore, holes, act);
}

fn failing_on_another_stream<B: TestKit>(subject: &Subject<B>) {
    let act = |bench: &mut Bench<'_, B>| {
        let block = bench.pool.request(bench.pages(3)).stream(bench.other).alloc()?;
        bench.pool.alloc(bench.pages(2))?;
        drop(block);
        Ok(())
    };
    sweep(subject, ALL, After::SomeDone, holes, act);
}

fn failing_trim<B: TestKit>(subject: &Subject<B>) {
    let act = |bench: &mut Bench<'_, B>| bench.pool.trim(Bytes::ZERO).map(drop);
    sweep(subject, ALL, After::SomeDone, holes, act);
}

fn failing_suspend<B: TestKit>(subject: &Subject<B>) {
    let prepare = |bench: &mut Bench<'_, B>| {
        holes(bench);
        bench.add(&bench.pool.clone(), Bytes(5000)).unwrap();
        bench.store();
    };
    let act = |bench: &mut Bench<'_, B>| {
        let store = bench.store();
        bench.pool.suspend("", &store, idle())?;
        let calls = bench.backend.stop();
        bench.pool.resume("").map(|_| calls)
    };
    sweep_suspended(subject, prepare, act);
}

/// Like [`sweep`], but `act` has two halves, and only calls of the first half fail. `act` returns their number.
fn sweep_suspended<B: TestKit>(
    subject: &Subject<B>,
    prepare: impl Fn(&mut Bench<'_, B>),
    act: impl Fn(&mut Bench<'_, B>) -> Result<u64>,
) {
    let mut points = 0;
    for failing in 0.. {
        let mut bench = Bench::new(subject, Stream::DEFAULT, ALL);
        prepare(&mut bench);
        let before = bench.pool.stats();
        bench.backend.fail(failing, 1);
        let answer = act(&mut bench);
        bench.backend.stop();
        subject.backend.drop_log().take_last();
        // A stream that could not be queried is not an error.
        let ended = answer.as_ref().is_ok_and(|calls| *calls <= failing);
        if let Err(error) = answer {
            points += 1;
            assert!(!matches!(error.detail(), Detail::RollbackFailed { .. }), "{error}");
            assert_eq!(injected(&error), Some(failing), "{error}");
            let now = is_consistent(&bench.pool).stats;
            assert_eq!((now.live, now.live_blocks), (before.live, before.live_blocks));
            act(&mut bench).unwrap_or_else(|error| panic!("again after call {failing}: {error}"));
        }
        bench.check();
        let pool = bench.pool.clone();
        bench.add(&pool, bench.pages(2)).unwrap();
        bench.check();
        bench.blocks.clear();
        is_empty(&pool);
        drop(pool);
        let backend = bench.backend.clone();
        drop(bench);
        assert_eq!(backend.live(), Default::default(), "after driver call {failing} failed");
        if ended {
            break;
        }
    }
    assert!(points > 3, "{points} points");
    note(format!("{FAILURE_POINTS}{points}"));
}

fn failing_resume<B: TestKit>(subject: &Subject<B>) {
    let prepare = |bench: &mut Bench<'_, B>| {
        holes(bench);
        bench.add(&bench.pool.clone(), Bytes(5000)).unwrap();
        let store = bench.store();
        bench.pool.suspend("", &store, idle()).unwrap();
    };
    let act = |bench: &mut Bench<'_, B>| bench.pool.resume("").map(|_| bench.backend.stop());
    sweep_suspended(subject, prepare, act);
}

fn failing_move<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let prepare = |bench: &mut Bench<'_, B>| {
        // Few, since each of the many calls of a move fails once.
        holes_among(bench, 3);
        bench.add(&bench.pool.clone(), Bytes(5000)).unwrap();
        // A driver that exports no memory has one kind.
        if let Ok(other) = bench.pool.with_memory(bench.pool.memory().shareable()) {
            bench.add(&other, bench.pages(1)).unwrap();
        }
    };
    let act = |bench: &mut Bench<'_, B>| {
        assert_eq!(bench.pool.memory().device, a);
        bench.pool.move_to_device(b, MovePath::Fastest(None), idle())?;
        let calls = bench.backend.stop();
        bench.pool.move_to_device(a, MovePath::Fastest(None), idle()).map(|_| calls)
    };
    sweep_suspended(subject, prepare, act);
}

fn failing_free<B: TestKit>(subject: &Subject<B>) {
    let prepare = |bench: &mut Bench<'_, B>| {
        let pool = bench.pool.clone();
        bench.add(&pool, bench.pages(2)).unwrap();
        bench.add(&pool, bench.pages(4)).unwrap();
    };
    let act = |bench: &mut Bench<'_, B>| {
        drop(bench.blocks.pop());
        Ok(())
    };
    sweep(subject, Bytes::mib(2), After::Logged, prepare, act);
}

fn failing_free_after_use<B: TestKit>(subject: &Subject<B>) {
    let prepare = |bench: &mut Bench<'_, B>| {
        let pool = bench.pool.clone();
        bench.add(&pool, bench.pages(2)).unwrap();
        bench.add(&pool, bench.pages(4)).unwrap();
    };
    let act = |bench: &mut Bench<'_, B>| {
        if let Some(mut block) = bench.blocks.pop() {
            block.record_use(bench.other).unwrap();
        }
        Ok(())
    };
    sweep(subject, ALL, After::Logged, prepare, act);
}

fn failing_every_reservation<B: TestKit>(subject: &Subject<B>) {
    for size in [5000, 8 << 20] {
        let mut bench = Bench::new(subject, Stream::DEFAULT, ALL);
        let pool = bench.pool.clone();
        bench.backend.fail_calls(&[Operation::Reserve]);
        let error = bench.add(&pool, Bytes(size)).unwrap_err();
        bench.backend.stop();
        assert!(injected(&error).is_some(), "{error}");
        assert_eq!(adds_up(&pool).reserved, 0);
        bench.add(&pool, Bytes(size)).unwrap();
        bench.check();
        bench.blocks.clear();
        is_empty(&pool);
    }
}

fn undoing_a_mapping<B: TestKit>(subject: &Subject<B>) {
    let mut bench = Bench::new(subject, Stream::DEFAULT, ALL);
    let pool = bench.pool.clone();
    for pages in [1, 3, 2] {
        bench.add(&pool, bench.pages(2)).unwrap();
        let before = pool.stats();
        bench.backend.fail_calls(&[Operation::SetAccess, Operation::Unmap]);
        let error = bench.add(&pool, bench.pages(pages)).unwrap_err();
        let is_undo = matches!(error.detail(), Detail::RollbackFailed { .. });
        assert!(is_undo, "{error}");
        bench.backend.stop();
        let now = pool.stats();
        assert_eq!((now.live, now.held, now.mapped), (before.live, before.held, before.mapped));
        bench.check();
        bench.add(&pool, bench.pages(pages)).unwrap();
        bench.check();
    }
    bench.blocks.clear();
    is_empty(&pool);
    let backend = bench.backend.clone();
    drop((pool, bench));
    // Addresses with mappings in an unknown state are not released.
    #[allow(unsafe_code)]
    // SAFETY: no pool is left, and no device is working.
    let left = unsafe { backend.reclaim() }.unwrap();
    assert_eq!((left, backend.live()), (1, Default::default()));
}
