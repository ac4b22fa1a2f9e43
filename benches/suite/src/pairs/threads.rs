//! The throughput of several threads compared with one, each of which allocates and frees its own blocks. All use one stream,
//! so that the other threads may reuse freed blocks at once.

use crate::Update;
use crate::allocator::{Allocator, DriversPool, Heap, Pooled, pairs};
use crate::row::{Row, Side, Spread, Unit};
use crate::sampling::ratios;
use crate::scene::{OURS, Scene};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_testkit::TestKit;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A small size and a medium one.
const SIZES: [Bytes; 2] = [Bytes::kib(4), Bytes::kib(512)];

/// The numbers of threads.
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The number of samples for each number of threads.
const ROUNDS: usize = 5;

/// The time for which one thread must be busy.
const LONG: Duration = Duration::from_millis(20);

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    if scene.is_host() {
        let pool = Pooled::new(scene.backend, scene.device, Stream::DEFAULT)?;
        return compare(scene, &pool, &Heap);
    }
    let drivers = DriversPool::new(&scene.raw)?;
    let pool = Pooled::new(scene.backend, scene.device, drivers.stream())?;
    compare(scene, &pool, &drivers)
}

pub(crate) fn compare<B: TestKit, P: Allocator + Sync, O: Allocator + Sync>(
    scene: &mut Scene<'_, B>,
    pool: &P,
    other: &O,
) -> StepResult {
    let cores = std::thread::available_parallelism()?;
    let rounds = scene.options.samples.unwrap_or(ROUNDS).max(1);
    for size in SIZES {
        let (many, others_many) = (many(pool, size)?, many(other, size)?);
        let (mut ours, mut others) = ([const { Vec::new() }; 7], [const { Vec::new() }; 7]);
        for _ in 0..rounds {
            for (number, threads) in THREADS.into_iter().enumerate() {
                // Some allocators let one thread work at a time.
                let each = others_many.div_ceil(threads as u64);
                others[number].push(rate(other, size, threads, each)?);
                ours[number].push(rate(pool, size, threads, many)?);
            }
        }
        let what = |threads| match threads {
            1 => format!("{size}: 1 thread, {cores} cores"),
            several => format!("{size}: {several} threads, {cores} cores"),
        };
        for (threads, rates) in THREADS.into_iter().zip(&ours).skip(1) {
            tell(scene, what(threads), "gpu-vmm, 1 thread".to_owned(), rates, &ours[0]);
        }
        for (threads, (ours, others)) in THREADS.into_iter().zip(ours.iter().zip(&others)) {
            tell(scene, what(threads), other.name(), ours, others);
        }
    }
    Ok(())
}

fn tell<B: TestKit>(scene: &mut Scene<'_, B>, what: String, baseline: String, ours: &[f64], others: &[f64]) {
    let side = |name, rates: &[f64]| Side { name, took: Spread::of(rates.iter().map(|rate| rate / 1e6)) };
    scene.tell(Update::Row(Row {
        what,
        ours: side(OURS.to_owned(), ours),
        baseline: side(baseline, others),
        unit: Unit::MillionsPerSecond,
        ratio: ratios(ours, others),
        samples: ours.len(),
        target: None,
    }));
}

/// Returns the number of pairs that keep one thread busy for long enough.
fn many<A: Allocator>(allocator: &A, size: Bytes) -> StepResult<u64> {
    pairs(allocator, size, 1000)?;
    let start = Instant::now();
    pairs(allocator, size, 1000)?;
    Ok((1000.0 * LONG.as_secs_f64() / start.elapsed().as_secs_f64()) as u64 + 1)
}

/// Returns the pairs per second of all threads together; each does `count`.
fn rate<A: Allocator + Sync>(allocator: &A, size: Bytes, threads: usize, count: u64) -> StepResult<f64> {
    let barrier = Barrier::new(threads);
    let work = || -> StepResult<[Instant; 2]> {
        let warm = allocator.enter().and_then(|()| pairs(allocator, size, count.div_ceil(10)));
        barrier.wait(); // even after a failure: the others wait
        warm?;
        let start = Instant::now();
        pairs(allocator, size, count)?;
        Ok([start, Instant::now()])
    };
    let times: Vec<[Instant; 2]> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = || Stop::Failed("a thread panicked".to_owned());
        running.into_iter().map(|thread| thread.join().map_err(|_| ended())?).collect::<StepResult<_>>()
    })?;
    let no_thread = || Stop::Failed("no thread ran".to_owned());
    let start = times.iter().map(|[start, _]| *start).min().ok_or_else(no_thread)?;
    let end = times.iter().map(|[_, end]| *end).max().ok_or_else(no_thread)?;
    Ok(threads as f64 * count as f64 / (end - start).as_secs_f64())
}
