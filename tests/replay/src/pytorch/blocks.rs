//! Turns entries, which have addresses, into the events of blocks.

use super::entries::{Action, Entry};
use super::held::Held;
use super::private::{PrivatePools, is_private};
use super::{BlockAtEnd, Segment};
use crate::builder::Builder;
use crate::error::Wrong;
use crate::event::Trace;
use crate::recording::Recording;
use std::collections::{BTreeMap, HashMap};

type Answer<T = ()> = Result<T, Wrong>;

/// Returns the trace of entries and of the blocks that existed before them.
pub(super) fn replayable(entries: &[Entry], segments: &[Segment], mut recording: Recording) -> Answer<Trace> {
    let held = Held::before(entries, segments, &mut recording);
    let start = entries.iter().find_map(|entry| entry.time).unwrap_or(0);
    let timed = entries.iter().all(|entry| entry.time.is_some());
    let mut replay = Replay {
        builder: Builder::new(),
        recording,
        held,
        live: BTreeMap::new(),
        waiting: HashMap::new(),
        private: PrivatePools::default(),
        next: 0,
        now: 0,
        timed,
    };
    for block in before(entries, segments) {
        replay.recording.blocks_before += 1;
        replay.recording.bytes_before = replay.recording.bytes_before.saturating_add(block.bytes);
        replay.allocate(&block)?;
    }
    for entry in entries {
        // Threads may write their entries in another order than they have read the clock.
        replay.now = replay.now.max(entry.time.unwrap_or(0).saturating_sub(start));
        replay.entry(entry)?;
    }
    let Replay { builder, recording, .. } = replay;
    let mut trace = builder.finish();
    trace.recording = Some(recording);
    Ok(trace)
}

/// Returns the blocks that existed before the first entry, in the order of their addresses: those with a recorded free and no allocation
/// before it, and those that are in use at the end and were never allocated.
fn before(entries: &[Entry], segments: &[Segment]) -> Vec<BlockAtEnd> {
    /// What the entries have said so far about the block at an address.
    #[derive(PartialEq)]
    enum Known {
        Live,
        Waiting,
        Free,
    }
    let mut known = HashMap::new();
    let mut found = BTreeMap::new();
    for entry in entries {
        let after = match entry.action {
            Action::Alloc => Known::Live,
            Action::FreeRequested => Known::Waiting,
            Action::FreeCompleted => Known::Free,
            Action::Took | Action::Returned => continue,
        };
        if known.insert(entry.address, after).is_none() && entry.action != Action::Alloc {
            let Entry { address, bytes, stream, pool, .. } = *entry;
            found.insert(address, BlockAtEnd { address, bytes, stream, pool });
        }
    }
    for block in segments.iter().flat_map(|segment| &segment.blocks) {
        if !known.contains_key(&block.address) {
            let BlockAtEnd { address, bytes, stream, pool } = *block;
            found.insert(address, BlockAtEnd { address, bytes, stream, pool });
        }
    }
    found.into_values().collect()
}

/// A block that was allocated and not freed.
#[derive(Clone, Copy)]
struct Live {
    id: u64,
    bytes: u64,
    stream: u64,
    pool: (u64, u64),
    /// What the replay's block takes: more than `bytes` if it is one of a private pool that is used again.
    taken: u64,
}

struct Replay {
    builder: Builder,
    recording: Recording,
    held: Option<Held>,
    /// By address.
    live: BTreeMap<u64, Live>,
    /// The blocks whose free was requested and has not completed, by address.
    waiting: HashMap<u64, Live>,
    private: PrivatePools,
    next: u64,
    now: u64,
    timed: bool,
}

/// Errors of the builder name lines, which a pickle does not have.
const NO_LINE: u32 = 0;

impl Replay {
    fn entry(&mut self, entry: &Entry) -> Answer {
        match entry.action {
            Action::Alloc => {
                self.imply_frees(entry.address, entry.bytes)?;
                let Entry { address, bytes, stream, pool, .. } = *entry;
                self.allocate(&BlockAtEnd { address, bytes, stream, pool })
            }
            Action::FreeRequested => self.request_free(entry.address),
            Action::FreeCompleted => self.complete_free(entry.address),
            Action::Took | Action::Returned => {
                if let Some(held) = &mut self.held {
                    held.follow(entry, self.builder.operations(), &mut self.recording);
                }
                if entry.action == Action::Returned {
                    for id in self.private.release(entry.address, entry.bytes) {
                        self.free(id)?;
                        self.builder.ready(NO_LINE, id)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn allocate(&mut self, block: &BlockAtEnd) -> Answer {
        let BlockAtEnd { address, bytes, stream, pool } = *block;
        let private = is_private(pool);
        self.recording.private += u64::from(private);
        let kept = if private { self.private.take(pool, stream, bytes) } else { None };
        let (id, taken) = match kept {
            Some(kept) => kept,
            None => {
                self.next += 1;
                self.builder.allocate(NO_LINE, self.next, bytes, stream)?;
                self.time();
                (self.next, bytes)
            }
        };
        self.live.insert(address, Live { id, bytes, stream, pool, taken });
        Ok(())
    }

    /// Frees the blocks that a new block overlaps: `skip_actions` of PyTorch's recorder leaves out frees.
    fn imply_frees(&mut self, address: u64, bytes: u64) -> Answer {
        let end = address.saturating_add(bytes);
        let before = self.live.range(..address).next_back();
        let reaches = before
            .filter(|(start, live)| start.saturating_add(live.bytes) > address)
            .map(|(start, _)| *start);
        let within = self.live.range(address..end).map(|(start, _)| *start);
        let overlapped: Vec<u64> = reaches.into_iter().chain(within).collect();
        for start in overlapped {
            self.recording.frees_implied += 1;
            self.request_free(start)?;
            self.complete_free(start)?;
        }
        // A free that is not completed would keep its fence for ever.
        if self.waiting.contains_key(&address) {
            self.complete_free(address)?;
        }
        Ok(())
    }

    fn request_free(&mut self, address: u64) -> Answer {
        let Some(live) = self.live.remove(&address) else { return Ok(()) };
        if !is_private(live.pool) {
            self.free(live.id)?;
        }
        self.waiting.insert(address, live);
        Ok(())
    }

    fn complete_free(&mut self, address: u64) -> Answer {
        if self.live.contains_key(&address) {
            // `skip_actions` of PyTorch's recorder can leave out the request.
            self.request_free(address)?;
        }
        let Some(freed) = self.waiting.remove(&address) else { return Ok(()) };
        if is_private(freed.pool) {
            self.private.keep(freed.pool, freed.stream, freed.taken, freed.id, address);
            return Ok(());
        }
        self.builder.ready(NO_LINE, freed.id)
    }

    fn free(&mut self, id: u64) -> Answer {
        self.builder.free(NO_LINE, id)?;
        self.time();
        Ok(())
    }

    /// Records the time of the last operation.
    fn time(&mut self) {
        if self.timed {
            self.recording.times.push(self.now);
        }
    }
}
