//! How much more several threads get done than one. All are on one stream, so that what one frees the others may have at once.

use crate::patterns::{Allocator, Failed, pairs};
use crate::setting;
use gpu_vmm::Bytes;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A small size and a medium one.
pub(crate) const SIZES: [Bytes; 2] = [Bytes::kib(4), Bytes::kib(512)];

const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

/// Of so many rounds the median is taken; in each, every number of threads has its turn.
const ROUNDS: usize = 5;

pub(crate) fn compare<P: Allocator + Sync, O: Allocator + Sync>(pool: &P, other: &O) -> Result<(), Failed> {
    let cores = std::thread::available_parallelism()?;
    println!(
        "threads that allocate and free by themselves, on {cores} cores; million pairs a second, median of {ROUNDS}"
    );
    println!(
        "{:>8} {:>7} {:<17} {:>9} {:>9} {:>9} {:>9} {:>11}",
        "size", "threads", "beside", "beside", "of one", "pool", "of one", "pool/beside"
    );
    for size in SIZES {
        let (ours, others) = (many(pool, size)?, many(other, size)?);
        let (mut our_rates, mut other_rates) = ([const { Vec::new() }; 5], [const { Vec::new() }; 5]);
        for _ in 0..ROUNDS {
            for (number, threads) in THREADS.into_iter().enumerate() {
                other_rates[number].push(rate(other, size, threads, others)?);
                our_rates[number].push(rate(pool, size, threads, ours)?);
            }
        }
        let [other_rates, our_rates] = [other_rates, our_rates].map(|rates| rates.map(median));
        for ((threads, beside), ours) in THREADS.into_iter().zip(other_rates).zip(our_rates) {
            println!(
                "{size:>8} {threads:>7} {:<17} {:>9.3} {:>8.2}x {:>9.3} {:>8.2}x {:>11.3}",
                O::NAME,
                beside / 1e6,
                beside / other_rates[0],
                ours / 1e6,
                ours / our_rates[0],
                ours / beside,
            );
        }
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// How many pairs keep one thread at work for the time that was set.
fn many<A: Allocator>(allocator: &A, size: Bytes) -> Result<u64, Failed> {
    pairs(allocator, size, 1000)?;
    let start = Instant::now();
    pairs(allocator, size, 1000)?;
    let wanted = Duration::from_millis(setting("POOL_THREAD_MS", 20));
    Ok((1000.0 * wanted.as_secs_f64() / start.elapsed().as_secs_f64()) as u64 + 1)
}

/// Pairs a second, of all threads together.
fn rate<A: Allocator + Sync>(allocator: &A, size: Bytes, threads: usize, count: u64) -> Result<f64, Failed> {
    let barrier = Barrier::new(threads);
    let work = || -> Result<[Instant; 2], Failed> {
        allocator.enter();
        let warm = pairs(allocator, size, count.div_ceil(10));
        barrier.wait(); // also where it failed: the others wait
        warm?;
        let start = Instant::now();
        pairs(allocator, size, count)?;
        Ok([start, Instant::now()])
    };
    let times: Vec<[Instant; 2]> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a thread panicked")?)
            .collect::<Result<_, _>>()
    })?;
    let start = times.iter().map(|[start, _]| *start).min().ok_or("no thread ran")?;
    let end = times.iter().map(|[_, end]| *end).max().ok_or("no thread ran")?;
    Ok(threads as f64 * count as f64 / (end - start).as_secs_f64())
}
