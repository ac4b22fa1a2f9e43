//! The paged cache of the example `kv_cache` under load. Kernels write and check its contents.
//!
//! `GPU_VMM_STRESS_SEQUENCES` is the number of sequences; the default is 200.

// A link to the example's file: Cargo puts the file itself into the package.
#[allow(unreachable_pub)] // a program's own
mod cache;

use crate::case::cases;
use crate::library::tools::setting;
use crate::subject::{Subject, note};
use cache::PagedCache;
use gpu_vmm_core::{BackingStore, Bytes, DeviceId, PageList, PageListStats, Region, Result};
use gpu_vmm_testkit::{FaultInject, PATTERN_WORD, TestKit, time_in_driver};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

cases! { "kv_cache":
    /// Sequences of a paged cache keep what kernels wrote while 8 threads serve, evict and restore them, and the cache holds
    /// at most 1.02 times the pages that they need at one time.
    under_load,
}

const THREADS: u64 = 8;
/// The number of sequences that run at the same time. They have 2.8 pages each on average behind the prefixes, so they exceed
/// the budget even if the threads run one after another.
const AT_A_TIME: usize = 32;
/// The number of prefixes, each of two pages.
const PREFIXES: u64 = 4;
/// The maximum number of pages of a sequence behind its prefix.
const LONGEST: u64 = 8;
/// The budget of the cache in pages during the second half: the oldest sequence of each thread fits.
const BUDGET: u64 = 2 * PREFIXES + THREADS * LONGEST;

/// The backend that measures the time of the driver's calls.
type Timed<B> = FaultInject<B>;

struct Load<B: TestKit> {
    cache: PagedCache<Timed<B>>,
    device: DeviceId,
    sequences: u64,
    queue: Mutex<VecDeque<(u64, Region<Timed<B>>)>>,
    /// The numbers of the sequences that have not started yet.
    arriving: Mutex<std::ops::Range<u64>>,
    prefixes: Vec<Mutex<Region<Timed<B>>>>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    evictions: u64,
    /// The maximum size of the pages that sequences and prefixes had at one time, and that the cache had.
    needed: Bytes,
    held: Bytes,
    /// The time of each step, without the driver's calls.
    bookkeeping: Vec<Duration>,
}

fn under_load<B: TestKit>(subject: &Subject<B>) {
    let sequences = setting("GPU_VMM_STRESS_SEQUENCES", 200);
    // Drivers allocate memory of their own when kernels first run on several threads.
    load(subject, 4 * THREADS);
    let before = subject.free_here();
    let Seen { evictions, needed, held, mut bookkeeping } = load(subject, sequences);
    assert!(sequences < 100 || evictions > 0, "nothing was evicted");
    let ratio = held.0 as f64 / needed.0 as f64;
    let page = subject.granularity().0 as f64;
    assert!(held.0 as f64 <= 1.02 * needed.0 as f64 + page, "{held} were held, and {needed} needed");
    bookkeeping.sort_unstable();
    let [median, slow] = [50, 99].map(|percent| bookkeeping[(bookkeeping.len() - 1) * percent / 100]);
    note(format!(
        "{sequences} sequences, {evictions} evictions; at most {held} held and {needed} needed: {ratio:.3}; \
         {} steps, bookkeeping per step {:.2} µs (99 %: {:.2} µs)",
        bookkeeping.len(),
        median.as_secs_f64() * 1e6,
        slow.as_secs_f64() * 1e6,
    ));
    assert_eq!(subject.free_here(), before);
}

/// Serves sequences until all have ended.
fn load<B: TestKit>(subject: &Subject<B>, sequences: u64) -> Seen {
    let backend = FaultInject::new(subject.backend.clone());
    let store =
        BackingStore::pinned(&backend, subject.granules((AT_A_TIME as u64 + THREADS) * LONGEST)).unwrap();
    let page = subject.granularity();
    let pages = PageList::new(&backend, page, subject.properties(), page * (BUDGET + BUDGET / 4)).unwrap();
    let cache = PagedCache { backend, pages, longest: page * (LONGEST + 2), stores: vec![store] };
    let prefix = |number| {
        let mut prefix = cache.begin().unwrap();
        prefix.grow_with(&cache.pages.take(page * 2).unwrap()).unwrap();
        prefix.write_pattern(subject.device, Bytes(0), page * 2, seed_of_prefix(number)).unwrap();
        Mutex::new(prefix)
    };
    let prefixes = (0..PREFIXES).map(prefix).collect();
    let mut load = Load {
        cache,
        device: subject.device,
        sequences,
        queue: Mutex::default(),
        arriving: Mutex::new(0..sequences),
        prefixes,
        seen: Mutex::default(),
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| load.serve())).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    load.prefixes.clear();
    let PageListStats { held, free, budget } = load.cache.pages.stats();
    assert!(
        held == free && held <= budget,
        "{held} are left, {free} of them free, with a budget of {budget}"
    );
    load.seen.into_inner().unwrap()
}

fn seed_of_prefix(number: u64) -> u64 {
    (number % PREFIXES) << 20
}

impl<B: TestKit> Load<B> {
    fn serve(&self) {
        while let Some((number, mut sequence)) = self.next() {
            self.step(number, &mut sequence);
            if sequence.end() < self.page() * (2 + 1 + number % LONGEST) {
                let mut queue = self.queue.lock().unwrap();
                let place = queue.len().min(AT_A_TIME);
                queue.insert(place, (number, sequence));
            } else {
                self.check(number, &sequence);
                self.sample();
            }
        }
    }

    fn page(&self) -> Bytes {
        self.cache.pages.page_size()
    }

    /// Notes the size of the cache's pages, and of those in use. The latter is at its maximum before pages are returned, by an
    /// eviction or by a sequence that ends.
    fn sample(&self) {
        let PageListStats { held, free, .. } = self.cache.pages.stats();
        let mut seen = self.seen.lock().unwrap();
        (seen.held, seen.needed) = (seen.held.max(held), seen.needed.max(held - free));
    }

    /// Takes the oldest sequence that no thread is serving. Starts a new one if fewer than [`AT_A_TIME`] run.
    fn next(&self) -> Option<(u64, Region<Timed<B>>)> {
        let mut queue = self.queue.lock().unwrap();
        if queue.len() < AT_A_TIME
            && let Some(number) = self.arriving.lock().unwrap().next()
        {
            let mut prefix = self.prefixes[(number % PREFIXES) as usize].lock().unwrap();
            queue.push_back((number, self.cache.fork(&mut prefix).unwrap()));
            if number == self.sequences / 2 {
                self.cache.pages.set_budget(self.page() * BUDGET).unwrap();
            }
        }
        queue.pop_front()
    }

    /// Appends a page, which a kernel writes. If there is no room, evicts the youngest sequences.
    fn step(&self, number: u64, sequence: &mut Region<Timed<B>>) {
        while let Err(error) = self.cache.restore(sequence).and_then(|()| self.append(sequence)) {
            assert!(error.is_out_of_memory(), "{error}");
            let mut queue = self.queue.lock().unwrap();
            match queue.iter_mut().rev().find(|(_, one)| one.mapped() > self.page() * 2) {
                Some((_, youngest)) => {
                    self.sample();
                    self.cache.evict(youngest).unwrap();
                    self.seen.lock().unwrap().evictions += 1;
                }
                None => {
                    drop(queue);
                    thread::yield_now();
                }
            }
        }
        self.sample();
        let (page, end) = (self.page(), sequence.end());
        let seed = seed_of_page(number, (end - page) / PATTERN_WORD);
        sequence.write_pattern(self.device, end - page, page, seed).unwrap();
    }

    /// Appends a page and notes the time outside of the driver.
    fn append(&self, sequence: &mut Region<Timed<B>>) -> Result<()> {
        let (start, driver) = (Instant::now(), time_in_driver());
        self.cache.make_writable(sequence, sequence.end())?;
        let bookkeeping = start.elapsed().saturating_sub(time_in_driver() - driver);
        self.seen.lock().unwrap().bookkeeping.push(bookkeeping);
        Ok(())
    }

    /// Checks that the prefix and the pages behind it are as they were written.
    fn check(&self, number: u64, sequence: &Region<Timed<B>>) {
        let (prefix, end) = (self.page() * 2, sequence.end());
        let parts = [
            (Bytes(0), prefix, seed_of_prefix(number)),
            (prefix, end - prefix, seed_of_page(number, prefix / PATTERN_WORD)),
        ];
        for (offset, length, seed) in parts {
            let wrong = sequence.count_wrong(self.device, offset, length, seed).unwrap();
            assert_eq!(wrong, 0, "sequence {number} from {offset} on");
        }
    }
}

/// The seed of a sequence's pattern for the pages that begin with this word.
fn seed_of_page(number: u64, word: u64) -> u64 {
    ((number + 1) << 32) + word
}
