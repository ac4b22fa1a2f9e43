//! The paged cache of the example `kv_cache` under load. Kernels write and check its contents.

#[path = "../../../examples/kv_cache/cache.rs"]
#[allow(unreachable_pub)] // a program's own
mod cache;

use crate::case::cases;
use crate::library::tools::{idle, setting};
use crate::subject::{Subject, note};
use cache::{PagedCache, Prefix, Sequence};
use gpu_vmm_core::{BackingStore, Bytes, DeviceId};
use gpu_vmm_testkit::{PATTERN_WORD, TestKit, write_pattern_words};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;

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
const BUDGET: usize = (2 * PREFIXES + THREADS * LONGEST) as usize;

struct Load<'a, B: TestKit> {
    cache: &'a PagedCache<B>,
    device: DeviceId,
    sequences: u64,
    queue: Mutex<VecDeque<(u64, Sequence<'a, B>)>>,
    /// The numbers of the sequences that have not started yet.
    arriving: Mutex<std::ops::Range<u64>>,
    prefixes: Vec<Arc<Prefix<'a, B>>>,
    seen: Mutex<Seen>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    evictions: u64,
    /// The maximum number of pages that sequences and prefixes had at one time, and that the cache had.
    needed: usize,
    held: usize,
}

fn under_load<B: TestKit>(subject: &Subject<B>) {
    let sequences = setting("GPU_VMM_STRESS_SEQUENCES", 200);
    // Drivers allocate memory of their own when kernels first run on several threads.
    load(subject, 4 * THREADS);
    let before = subject.free_here();
    let Seen { evictions, needed, held } = load(subject, sequences);
    assert!(sequences < 100 || evictions > 0, "nothing was evicted");
    assert!(held as f64 <= 1.02 * needed as f64 + 1.0, "{held} pages were held, and {needed} needed");
    note(format!(
        "{sequences} sequences, {evictions} evictions, {held} pages held and {needed} needed at most"
    ));
    assert_eq!(subject.free_here(), before);
}

/// Serves sequences until all have ended.
fn load<B: TestKit>(subject: &Subject<B>, sequences: u64) -> Seen {
    let store =
        BackingStore::pinned(&subject.backend, subject.granules((AT_A_TIME as u64 + THREADS) * LONGEST))
            .unwrap();
    let longest = subject.granules(LONGEST + 2);
    let cache =
        PagedCache::new(&subject.backend, subject.device, longest, BUDGET + BUDGET / 4, store).unwrap();
    let prefix = |number| {
        let mut words = vec![0; (2 * cache.page.0 / PATTERN_WORD.0) as usize];
        write_pattern_words(&mut words, seed_of_prefix(number), 0);
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        cache.prefix(bytes).unwrap().expect("room for a prefix")
    };
    let mut load = Load {
        cache: &cache,
        device: subject.device,
        sequences,
        queue: Mutex::default(),
        arriving: Mutex::new(0..sequences),
        prefixes: (0..PREFIXES).map(prefix).collect(),
        seen: Mutex::default(),
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| load.serve())).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    load.prefixes.clear();
    let (held, free) = cache.held();
    assert!(held == free && held <= BUDGET, "{held} pages are left, {free} of them free");
    load.seen.into_inner().unwrap()
}

fn seed_of_prefix(number: u64) -> u64 {
    (number % PREFIXES) << 20
}

impl<'a, B: TestKit> Load<'a, B> {
    fn serve(&self) {
        while let Some((number, sequence)) = self.next() {
            let sequence = self.step(number, sequence);
            if sequence.region.end() < self.cache.page * (2 + 1 + number % LONGEST) {
                let mut queue = self.queue.lock().unwrap();
                let place = queue.len().min(AT_A_TIME);
                queue.insert(place, (number, sequence));
            } else {
                self.check(number, &sequence);
                self.sample();
            }
        }
    }

    /// Notes how many pages the cache has, and how many of them are in use. The number in use is at its maximum before pages are
    /// returned, by an eviction or by a sequence that ends.
    fn sample(&self) {
        let (held, free) = self.cache.held();
        let mut seen = self.seen.lock().unwrap();
        (seen.held, seen.needed) = (seen.held.max(held), seen.needed.max(held - free));
    }

    /// Takes the oldest sequence that no thread is serving. Starts a new one if fewer than [`AT_A_TIME`] run.
    fn next(&self) -> Option<(u64, Sequence<'a, B>)> {
        let mut queue = self.queue.lock().unwrap();
        if queue.len() < AT_A_TIME
            && let Some(number) = self.arriving.lock().unwrap().next()
        {
            let prefix = &self.prefixes[(number % PREFIXES) as usize];
            queue.push_back((number, Sequence::new(prefix).unwrap()));
            if number == self.sequences / 2 {
                self.cache.set_budget(BUDGET);
            }
        }
        queue.pop_front()
    }

    /// Appends a page, which a kernel writes. If there is no room, evicts the youngest sequences.
    fn step(&self, number: u64, mut sequence: Sequence<'a, B>) -> Sequence<'a, B> {
        while !(sequence.restore().unwrap() && sequence.append().unwrap()) {
            let mut queue = self.queue.lock().unwrap();
            match queue.iter_mut().rev().find(|(_, one)| one.own_pages() > 0) {
                Some((_, youngest)) => {
                    self.sample();
                    youngest.evict(idle()).unwrap();
                    self.seen.lock().unwrap().evictions += 1;
                }
                None => {
                    drop(queue);
                    thread::yield_now();
                }
            }
        }
        self.sample();
        let (page, end) = (self.cache.page, sequence.region.end());
        let seed = seed_of_page(number, (end - page) / PATTERN_WORD);
        sequence.region.write_pattern(self.device, end - page, page, seed).unwrap();
        sequence
    }

    /// Checks that the prefix and the pages behind it are as they were written.
    fn check(&self, number: u64, sequence: &Sequence<'a, B>) {
        let (prefix, end) = (self.cache.page * 2, sequence.region.end());
        let parts = [
            (Bytes(0), prefix, seed_of_prefix(number)),
            (prefix, end - prefix, seed_of_page(number, prefix / PATTERN_WORD)),
        ];
        for (offset, length, seed) in parts {
            let wrong = sequence.region.count_wrong(self.device, offset, length, seed).unwrap();
            assert_eq!(wrong, 0, "sequence {number} from {offset} on");
        }
    }
}

/// The seed of a sequence's pattern for the pages that begin with this word.
fn seed_of_page(number: u64, word: u64) -> u64 {
    ((number + 1) << 32) + word
}
