//! An inference server with a paged cache of keys and values. Sequences share a prefix and grow by pages. When the memory does not
//! suffice, sequences are evicted and later restored at the same address. Several threads do that at the same time. Another
//! process changes the budget meanwhile: the cache shrinks and grows.
//!
//! ```text
//! cargo run --release --example kv_cache
//! ```

#![allow(clippy::expect_used)] // locks of threads that do not panic

pub mod budget;
pub mod cache;

use budget::BudgetFile;
use cache::PagedCache;
use gpu_vmm::{AnyBackend, Backend, BackingStore, Bytes, DeviceId, PageList, Properties, Region, Result};
use std::process::{self, Command};
use std::{collections::VecDeque, env, path::Path, sync::Mutex, thread};

const PREFIX: &[u8] = b"You are a helpful assistant.";
/// The budget of the cache in pages: at the start, after half of the sequences, and after three quarters of them.
const BUDGET: [u64; 3] = [40, 32, 48];
/// The pages with which the oldest sequence of each thread fits, so that all of them end.
const LEAST: u64 = 30;
const THREADS: usize = 4;
/// The number of sequences that run at a time, and the number of all.
const AT_A_TIME: usize = 12;
const SEQUENCES: u64 = 60;
const HALF: u64 = SEQUENCES / 2;
const THREE_QUARTERS: u64 = SEQUENCES * 3 / 4;

/// The sequences that have not ended, the oldest first.
type Queue<B> = Mutex<VecDeque<(u64, Region<B>)>>;

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    let page = backend.granularity().bytes();
    let pages = PageList::new(&backend, page, Properties::on(DeviceId(0)), page * BUDGET[0])?;
    let store = BackingStore::pinned(&backend, Bytes::mib(256))?;
    let cache = PagedCache { backend, pages, longest: page * 32, store };
    let path = env::temp_dir().join(format!("kv_cache-budget-{}", process::id()));
    let budget = BudgetFile::create(path, page * BUDGET[0], page * LEAST).expect("the file can be created");
    let server = Server { cache, budget, ended: Mutex::new(0) };
    let prefix = server.cache.prefix(PREFIX)?;
    let begin = |number| Ok((number, server.cache.begin(&prefix)?));
    let queue = Queue::new((0..SEQUENCES).map(begin).collect::<Result<_>>()?);

    let evictions = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| serve(&server, &queue))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum::<Result<u64>>()
    })?;

    drop(prefix);
    let left = server.cache.pages.stats();
    println!("{SEQUENCES} sequences in {THREADS} threads, {evictions} evictions; {} are left", left.held);
    assert!(left.held == left.free && left.held <= left.budget && evictions > 0);
    assert_eq!(left.budget, page * BUDGET[2]);
    Ok(())
}

/// What the threads share.
struct Server<B: Backend> {
    cache: PagedCache<B>,
    budget: BudgetFile,
    /// The number of sequences that have ended.
    ended: Mutex<u64>,
}

impl<B: Backend> Server<B> {
    /// Counts a sequence that has ended. After some of them, another process changes the budget.
    fn ended(&self) -> Result<()> {
        let mut ended = self.ended.lock().expect("no thread panics");
        *ended += 1;
        let pages = match *ended {
            HALF => BUDGET[1],
            THREE_QUARTERS => BUDGET[2],
            _ => return Ok(()),
        };
        another_process_sets(self.budget.path(), self.cache.pages.page_size() * pages);
        self.budget.apply(&self.cache.pages)
    }
}

/// Serves sequences, one step of each in turn, until all have ended. Returns the number of evictions.
fn serve<B: Backend>(server: &Server<B>, queue: &Queue<B>) -> Result<u64> {
    let Server { cache, budget, .. } = server;
    let (page, mut evictions) = (cache.pages.page_size(), 0);
    let locked = || queue.lock().expect("no thread panics");
    while let Some((number, mut sequence)) = { locked().pop_front() } {
        budget.apply(&cache.pages)?;
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
        if sequence.end() > page * (3 + number % 5) {
            check(page, number, &sequence)?;
            server.ended()?;
        } else {
            let mut queue = locked();
            let place = queue.len().min(AT_A_TIME);
            queue.insert(place, (number, sequence));
        }
    }
    Ok(evictions)
}

/// Replaces the budget's file as a controller would: whole, so that a reader finds either the old number or the new one.
fn another_process_sets(path: &Path, budget: Bytes) {
    if !cfg!(unix) {
        return std::fs::write(path, budget.0.to_string()).expect("the budget can be changed");
    }
    let script = r#"printf %s "$1" > "$2.new" && mv "$2.new" "$2""#;
    let done = Command::new("sh").args(["-c", script, "sh", &budget.0.to_string()]).arg(path).status();
    assert!(done.is_ok_and(|status| status.success()), "the budget can be changed");
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
