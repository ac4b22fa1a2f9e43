//! Random operations against a model of every byte.

use super::stats::is_consistent;
use super::waits::named;
use super::{MIN, adds_up, is_empty, pool, write_at, wrong_at};
use crate::case::cases;
use crate::library::flights::own;
use crate::library::tools::{idle, setting};
use crate::subject::{Subject, note};
use gpu_vmm_core::{Backend, BackingStore, Bytes, Stream};
use gpu_vmm_pool::Block;
use gpu_vmm_testkit::TestKit;
use std::collections::BTreeMap;

cases! { "pool":
    /// Through random requests, frees, trims, suspends and resumes of all sizes on several streams and tags, blocks do not
    /// overlap, keep their bytes and can be found, and the statistics stay right.
    random_operations,
}

/// Pseudorandom numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A size of up to `bits` bits; each number of bits is equally likely.
    pub(super) fn size(&mut self, bits: u64) -> Bytes {
        let bits = 1 + self.below(bits);
        Bytes(1 + self.below(1 << bits))
    }
}

/// The length of the part that is checked in each page of addresses.
const STAMP: u64 = 64;

/// The parts of a block that are checked: one in each page of addresses, and the end.
fn stamps(block: &Block<impl Backend>) -> impl Iterator<Item = (gpu_vmm_core::Address, Bytes)> {
    let (at, size) = (block.address().0, block.size().0);
    let pages = (at..at + size).step_by(1 << 20);
    let last = (at + size).saturating_sub(STAMP).max(at).next_multiple_of(8);
    pages.chain([last]).map(move |from| {
        let length = (at + size - from.min(at + size)).min(STAMP);
        (gpu_vmm_core::Address(from), Bytes(length / 8 * 8))
    })
}

pub(super) fn stamp<B: TestKit>(subject: &Subject<B>, block: &Block<impl Backend>, seed: u64) {
    for (at, length) in stamps(block).filter(|(_, length)| !length.is_zero()) {
        write_at(&subject.backend, subject.device, at, length, seed ^ at.0);
    }
}

#[track_caller]
pub(super) fn check_stamp<B: TestKit>(subject: &Subject<B>, block: &Block<impl Backend>, seed: u64) {
    // In small blocks, stamps overlap; the last one was written last.
    let all: Vec<_> = stamps(block).filter(|(_, length)| !length.is_zero()).collect();
    for (index, (at, length)) in all.iter().enumerate() {
        let covered = all[index + 1..].iter().any(|(other, _)| *other < *at + *length);
        if !covered {
            let wrong = wrong_at(&subject.backend, subject.device, *at, *length, seed ^ at.0);
            assert_eq!(wrong, 0, "in {} at {}, at {at}", block.size(), block.address());
        }
    }
}

fn random_operations<B: TestKit>(subject: &Subject<B>) {
    let operations = setting("GPU_VMM_STRESS_OPERATIONS", 2000);
    let seed = setting("GPU_VMM_STRESS_SEED", 1);
    let owns = [(); 2].map(|()| own(subject));
    let streams = [Stream::DEFAULT, named(&*owns[0]), named(&*owns[1])];
    let base = pool(subject);
    let store = BackingStore::pinned(&subject.backend, Bytes::mib(160)).unwrap();
    let tags = ["", "weights", "cache"];
    let pools = tags.map(|tag| base.tagged(tag).unwrap());
    let mut random = Random::new(seed);
    let mut blocks: BTreeMap<u64, (Block<B>, u64)> = BTreeMap::new();
    let (mut live, mut suspended) = (0, None);
    for operation in 0..operations {
        let full = live > 96 << 20;
        match random.below(100) {
            0..50 if !full => {
                let tag = random.below(3) as usize;
                if Some(tag) == suspended {
                    continue;
                }
                let size = if random.below(8) == 0 { random.size(23) } else { random.size(17) };
                let alignment = if random.below(10) == 0 { Bytes(1 << random.below(23)) } else { MIN };
                let stream = streams[random.below(3) as usize];
                let block = pools[tag].request(size).alignment(alignment).stream(stream).alloc().unwrap();
                let at = block.address().0;
                assert!(at.is_multiple_of(alignment.0));
                let end = at + block.capacity().0;
                if let Some((before, (other, _))) = blocks.range(..end).next_back() {
                    assert!(
                        before + other.capacity().0 <= at,
                        "{at:#x} is inside of the block at {before:#x}"
                    );
                }
                stamp(subject, &block, operation);
                live += size.0;
                blocks.insert(at, (block, operation));
            }
            0..96 => {
                let from = blocks.keys().nth(random.below(blocks.len().max(1) as u64) as usize).copied();
                let Some((mut block, seed)) = from.and_then(|at| blocks.remove(&at)) else { continue };
                let asleep = suspended.is_some_and(|tag: usize| {
                    base.find(block.address()).is_some_and(|info| &*info.tag == tags[tag])
                });
                if !asleep {
                    check_stamp(subject, &block, seed);
                }
                live -= block.size().0;
                if random.below(6) == 0 {
                    block.record_use(streams[random.below(3) as usize]).unwrap();
                }
            }
            96 => drop(base.trim(random.size(25)).unwrap()),
            97 => match suspended.take() {
                Some(tag) => drop(base.resume(tags[tag]).unwrap()),
                None => {
                    let tag = random.below(3) as usize;
                    base.suspend(tags[tag], &store, idle()).unwrap();
                    suspended = Some(tag);
                }
            },
            _ => {
                let stats = adds_up(&base);
                assert_eq!((stats.live, stats.live_blocks), (live, blocks.len() as u64));
                if operation % 8 == 0 {
                    is_consistent(&base);
                }
                if let Some((at, (block, _))) =
                    blocks.iter().nth(random.below(1 + blocks.len() as u64) as usize)
                {
                    let info = base.find(block.address() + Bytes(block.size().0 - 1)).unwrap();
                    assert_eq!(
                        (info.base.0, info.capacity, info.stream),
                        (*at, block.capacity(), block.stream())
                    );
                }
            }
        }
    }
    if let Some(tag) = suspended {
        base.resume(tags[tag]).unwrap();
    }
    blocks.values().for_each(|(block, seed)| check_stamp(subject, block, *seed));
    is_consistent(&base);
    blocks.clear();
    is_empty(&base);
    note(format!("seed {seed}, {operations} operations"));
}
