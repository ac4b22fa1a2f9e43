//! An inference server with a paged cache of keys and values. Sequences share a prefix and grow by pages. When the memory does not
//! suffice, sequences are evicted and later restored at the same address. Several threads do that at the same time.
//!
//! ```text
//! cargo run --release --example kv_cache
//! ```

#![allow(clippy::expect_used)] // locks of threads that do not panic

pub mod cache;

use cache::PagedCache;
use gpu_vmm::{AnyBackend, Backend, BackingStore, Bytes, DeviceId, PageList, Properties, Region, Result};
use std::{collections::VecDeque, sync::Mutex, thread};

const PREFIX: &[u8] = b"You are a helpful assistant.";
/// The budget of the cache in pages, at the start and after half of the sequences. The oldest sequence of each thread fits, so
/// that all of them end.
const BUDGET: [u64; 2] = [40, 32];
const THREADS: usize = 4;
/// The number of sequences that run at a time, and the number of all.
const AT_A_TIME: usize = 12;
const SEQUENCES: u64 = 60;

/// The sequences that have not ended, the oldest first.
type Queue<B> = Mutex<VecDeque<(u64, Region<B>)>>;

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    let page = backend.granularity().bytes();
    let pages = PageList::new(&backend, page, Properties::on(DeviceId(0)), page * BUDGET[0])?;
    let store = BackingStore::pinned(&backend, Bytes::mib(256))?;
    let cache = PagedCache { backend, pages, longest: page * 32, store };
    let prefix = cache.prefix(PREFIX)?;
    let begin = |number| Ok((number, cache.begin(&prefix)?));
    let queue = Queue::new((0..SEQUENCES).map(begin).collect::<Result<_>>()?);

    let evictions = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| serve(&cache, &queue))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum::<Result<u64>>()
    })?;

    drop(prefix);
    let left = cache.pages.stats();
    println!("{SEQUENCES} sequences in {THREADS} threads, {evictions} evictions; {} are left", left.held);
    assert!(left.held == left.free && left.held <= left.budget && evictions > 0);
    Ok(())
}

/// Serves sequences, one step of each in turn, until all have ended. Returns the number of evictions.
fn serve<B: Backend>(cache: &PagedCache<B>, queue: &Queue<B>) -> Result<u64> {
    let (page, mut evictions) = (cache.pages.page_size(), 0);
    let locked = || queue.lock().expect("no thread panics");
    while let Some((number, mut sequence)) = { locked().pop_front() } {
        while let Err(error) = cache.restore(&mut sequence).and_then(|()| cache.append(&mut sequence)) {
            if !error.is_out_of_memory() {
                return Err(error);
            }
            // Evict the youngest sequence that has pages of its own.
            if let Some((_, youngest)) =
                locked().iter_mut().take(AT_A_TIME).rev().find(|(_, one)| one.mapped() > page)
            {
                cache.evict(youngest)?;
                evictions += 1;
            } else {
                thread::yield_now();
            }
        }
        let last = sequence.end() - page;
        sequence.write(last, &mark(number, last))?;
        if number == SEQUENCES / 2 {
            cache.pages.set_budget(page * BUDGET[1])?;
        }
        if sequence.end() > page * (3 + number % 5) {
            check(page, number, &sequence)?;
        } else {
            let mut queue = locked();
            let place = queue.len().min(AT_A_TIME);
            queue.insert(place, (number, sequence));
        }
    }
    Ok(evictions)
}

/// The first bytes of a page of a sequence.
fn mark(number: u64, offset: Bytes) -> [u8; 16] {
    (u128::from(number) << 64 | u128::from(offset.0)).to_le_bytes()
}

/// Checks that the prefix and all pages of the sequence have the contents that were written.
fn check<B: Backend>(page: Bytes, number: u64, sequence: &Region<B>) -> Result<()> {
    for offset in (0..sequence.end() / page).map(|count| page * count) {
        let expected = if offset.is_zero() { PREFIX } else { &mark(number, offset) };
        let mut found = vec![0; expected.len()];
        sequence.read(offset, &mut found)?;
        assert_eq!(found, expected, "at {offset} of sequence {number}");
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
