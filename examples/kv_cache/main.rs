//! An inference server with a paged cache of keys and values. Sequences share a prefix and grow by pages. When the memory does not
//! suffice, sequences are evicted and later restored at the same address. Several threads do that at the same time.
//!
//! ```text
//! cargo run --release --example kv_cache
//! ```

#![allow(clippy::expect_used)] // locks of threads that do not panic

pub mod cache;

use cache::{PagedCache, Sequence};
use gpu_vmm::{AnyBackend, Backend, BackingStore, Bytes, DeviceId, Result, WaitFor};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

const DEVICE: DeviceId = DeviceId(0);
const PREFIX: &[u8] = b"You are a helpful assistant.";
/// The budget of the cache in pages, at the start and after half of the sequences. The oldest sequence of each thread fits, so
/// that all of them end.
const BUDGET: [usize; 2] = [40, 32];
const THREADS: usize = 4;
/// The number of sequences that run at a time, and the number of all.
const AT_A_TIME: usize = 12;
const SEQUENCES: u64 = 60;

/// The sequences that have not ended, the oldest first.
type Queue<'a, B> = Mutex<VecDeque<(u64, Sequence<'a, B>)>>;

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    let store = BackingStore::pinned(&backend, Bytes::mib(256))?;
    let cache = PagedCache::new(&backend, DEVICE, Bytes::mib(64), BUDGET[0], store)?;
    let prefix = cache.prefix(PREFIX)?.expect("the budget is larger than the prefix");
    let begin = |number| Ok((number, Sequence::new(&prefix)?));
    let queue = Queue::new((0..SEQUENCES).map(begin).collect::<Result<_>>()?);

    let threads = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| serve(&cache, &queue))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
        ended.collect::<Result<Vec<u64>>>()
    })?;

    drop((queue, prefix));
    let (held, free) = cache.held();
    let evictions: u64 = threads.iter().sum();
    println!("{SEQUENCES} sequences in {THREADS} threads, {evictions} evictions; {held} pages are left");
    assert!(held == free && held <= BUDGET[1] && evictions > 0);
    Ok(())
}

/// Serves sequences, one step of each in turn, until all have ended. Returns the number of evictions.
fn serve<B: Backend>(cache: &PagedCache<B>, queue: &Queue<'_, B>) -> Result<u64> {
    let mut evictions = 0;
    loop {
        let Some((number, mut sequence)) = queue.lock().expect("no thread panics").pop_front() else {
            return Ok(evictions);
        };
        while !(sequence.restore()? && sequence.append()?) {
            // Evict the youngest sequence that has pages.
            let mut queue = queue.lock().expect("no thread panics");
            match queue.iter_mut().take(AT_A_TIME).rev().find(|(_, one)| one.own_pages() > 0) {
                Some((_, youngest)) => youngest.evict(WaitFor::all_devices())?,
                None => {
                    drop(queue);
                    thread::yield_now();
                    continue;
                }
            }
            evictions += 1;
        }
        let last = sequence.region.end() - cache.page;
        sequence.region.write(last, &mark(number, last))?;
        if number == SEQUENCES / 2 {
            cache.set_budget(BUDGET[1]);
        }
        if sequence.region.end() > cache.page * (3 + number % 5) {
            check(cache, number, &sequence)?;
        } else {
            let mut queue = queue.lock().expect("no thread panics");
            let place = queue.len().min(AT_A_TIME);
            queue.insert(place, (number, sequence));
        }
    }
}

/// The first bytes of a page of a sequence.
fn mark(number: u64, offset: Bytes) -> [u8; 16] {
    (u128::from(number) << 64 | u128::from(offset.0)).to_le_bytes()
}

/// Checks that the prefix and all pages of the sequence have the contents that were written.
fn check<B: Backend>(cache: &PagedCache<B>, number: u64, sequence: &Sequence<'_, B>) -> Result<()> {
    for page in 0..sequence.region.end() / cache.page {
        let offset = cache.page * page;
        let expected = if page == 0 { PREFIX } else { &mark(number, offset) };
        let mut found = vec![0; expected.len()];
        sequence.region.read(offset, &mut found)?;
        assert_eq!(found, expected, "page {page} of sequence {number}");
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
