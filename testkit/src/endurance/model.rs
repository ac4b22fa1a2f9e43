//! The model of a pool: which blocks are live, which freed blocks wait for work, and what the pool may use because of that.
//!
//! A freed block waits until the streams that used it have reached the position at which it was freed. A later block at the same
//! addresses, which the pool may place there in the order of the stream, takes the addresses out of the waiting block: no byte
//! counts twice.

use super::bound::{Amounts, Settings, bound, mapped_of, reserved_of, slabs_of};
use super::load::{Load, Part, TagLoad};
use std::collections::BTreeMap;

/// A point in the work of a stream: the number of the stream, and of the units of work that were queued before.
pub(super) type Position = (usize, u64);

/// A freed block whose work is not done.
#[derive(Debug)]
struct Waiting {
    end: u64,
    part: Part,
    after: Vec<Position>,
}

/// The model of a pool.
#[derive(Debug)]
pub(super) struct Model {
    settings: Settings,
    tags: BTreeMap<u64, TagLoad>,
    all: Load,
    /// The load without slots of slabs.
    ranges: Load,
    /// Freed blocks by address.
    waiting: BTreeMap<u64, Waiting>,
    /// The largest sums of the tags' bounds at one time: mapped and reserved addresses.
    mapped: u64,
    reserved: u64,
    /// The largest bytes and number of all slabs at one time.
    slabs: (u64, u64),
    /// True if a tag has ended.
    ended: bool,
    /// The bytes of all blocks that are live.
    pub(super) live: u64,
}

impl Model {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            tags: BTreeMap::new(),
            all: Load::default(),
            ranges: Load::default(),
            waiting: BTreeMap::new(),
            mapped: 0,
            reserved: 0,
            slabs: (0, 0),
            ended: false,
            live: 0,
        }
    }

    /// Notes that a request begins. If other threads free blocks meanwhile, the request counts from now on.
    pub(super) fn request(&mut self, tag: u64, capacity: u64, alignment: u64) -> Part {
        let part = Part::new(tag, capacity, alignment);
        if self.settings.threads > 1 {
            self.add(&part);
        }
        part
    }

    fn add(&mut self, part: &Part) {
        let tag = self.tags.entry(part.tag).or_default();
        tag.blocks += 1;
        tag.add(part);
        self.all.add(part.bytes);
        if !part.is_slot() {
            self.ranges.add(part.bytes);
        }
    }

    fn remove(&mut self, part: &Part, blocks: u64) {
        if let Some(tag) = self.tags.get_mut(&part.tag) {
            tag.at(part).remove(part.bytes, blocks);
            tag.blocks -= blocks;
            if tag.ended && tag.blocks == 0 {
                self.tags.remove(&part.tag);
            }
        }
        self.all.remove(part.bytes, blocks);
        if !part.is_slot() {
            self.ranges.remove(part.bytes, blocks);
        }
    }

    /// Notes that a request failed.
    pub(super) fn failed(&mut self, part: &Part) {
        if self.settings.threads > 1 {
            self.remove(part, 1);
        }
    }

    /// Returns the address of a block that waits at these addresses for work after which a stream's own work does not come. `stream` is
    /// none for a stream that captures.
    pub(super) fn unfinished(
        &self,
        address: u64,
        capacity: u64,
        stream: Option<usize>,
        done: impl Fn(usize) -> u64,
    ) -> Option<u64> {
        let is_over = |(after, position): &Position| Some(*after) == stream || done(*after) >= *position;
        let met = self.waiting.range(..address + capacity).rev();
        let mut met = met.take_while(|(_, waiting)| waiting.end > address);
        met.find(|(_, waiting)| !waiting.after.iter().all(is_over)).map(|(at, _)| *at)
    }

    /// Notes the addresses of the block that a request has returned, with its real capacity.
    pub(super) fn served(&mut self, request: &Part, address: u64, capacity: u64) -> Part {
        self.take_from_waiting(address, address + capacity);
        self.failed(request);
        let part = Part::new(request.tag, capacity, request.alignment);
        self.add(&part);
        self.live += capacity;
        part
    }

    /// Takes addresses out of the blocks that wait there.
    fn take_from_waiting(&mut self, from: u64, to: u64) {
        let met = self.waiting.range(..to).rev().take_while(|(_, waiting)| waiting.end > from);
        let met: Vec<u64> = met.map(|(at, _)| *at).collect();
        for at in met {
            let Some(mut waiting) = self.waiting.remove(&at) else { continue };
            let taken = waiting.end.min(to) - at.max(from);
            let gone = Part { bytes: waiting.part.bytes.min(taken), ..waiting.part };
            let (before, behind) = (from.saturating_sub(at), waiting.end.saturating_sub(to));
            if before == 0 && behind == 0 {
                self.remove(&waiting.part, 1);
                continue;
            }
            self.remove(&gone, 0);
            waiting.part.bytes -= gone.bytes;
            // The larger rest stays for both.
            if before >= behind {
                waiting.end = from;
                self.waiting.insert(at, waiting);
            } else {
                self.waiting.insert(to, waiting);
            }
        }
    }

    /// Notes that a block is about to be freed, and which work it then waits for.
    pub(super) fn free(&mut self, address: u64, part: Part, after: Vec<Position>) {
        self.live -= part.capacity;
        self.waiting.insert(address, Waiting { end: address + part.capacity, part, after });
    }

    /// Removes the blocks whose work is done.
    pub(super) fn settle(&mut self, done: impl Fn(usize) -> u64) {
        let mut over = Vec::new();
        self.waiting.retain(|_, waiting| {
            let is_over = waiting.after.iter().all(|(stream, position)| done(*stream) >= *position);
            if is_over {
                over.push(waiting.part);
            }
            !is_over
        });
        over.iter().for_each(|part| self.remove(part, 1));
    }

    /// Returns the number of blocks that wait for work.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Notes that no handle of a tag is left.
    pub(super) fn end_tag(&mut self, tag: u64) {
        self.ended = true;
        if let Some(load) = self.tags.get_mut(&tag) {
            load.ended = true;
            if load.blocks == 0 {
                self.tags.remove(&tag);
            }
        }
    }

    /// Returns the most that the pool may use now.
    pub(super) fn bound(&mut self) -> Amounts {
        let tags = self.tags.values().map(|tag| mapped_of(tag, &self.settings)).sum();
        self.mapped = self.mapped.max(tags);
        let tags = self.tags.values().map(|tag| reserved_of(tag, &self.settings)).sum();
        self.reserved = self.reserved.max(tags);
        let slabs = self.tags.values().map(slabs_of);
        let (bytes, count) = slabs.fold((0, 0), |sum, slabs| (sum.0 + slabs.0, sum.1 + slabs.1));
        self.slabs = (self.slabs.0.max(bytes), self.slabs.1.max(count));
        bound([self.mapped, self.reserved], self.slabs, [&self.all, &self.ranges], self.ended, &self.settings)
    }

    /// Returns the largest number of bytes that were live or waited at one time.
    pub(super) fn peak(&self) -> u64 {
        self.all.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { page: 1 << 21, streams: 1, threads: 1, kinds: 1 };
    const MIB: u64 = 1 << 20;

    fn alloc(model: &mut Model, address: u64, size: u64) -> Part {
        let request = model.request(0, size, 256);
        model.served(&request, address, size)
    }

    #[test]
    fn bytes_of_the_same_addresses_count_once() {
        let mut model = Model::new(SETTINGS);
        let first = alloc(&mut model, 0, 4 * MIB);
        model.free(0, first, vec![(0, 1)]);
        assert_eq!((model.all.bytes, model.live), (4 * MIB, 0));
        // The beginning of the freed block, then the rest of it.
        let second = alloc(&mut model, 0, MIB);
        assert_eq!((model.all.bytes, model.all.blocks), (4 * MIB, 2));
        let third = alloc(&mut model, MIB, 3 * MIB);
        assert_eq!((model.all.bytes, model.all.blocks, model.waiting()), (4 * MIB, 2, 0));
        model.free(0, second, vec![(0, 2)]);
        model.free(MIB, third, vec![(0, 2), (1, 1)]);
        model.settle(|stream| [2, 0][stream]);
        assert_eq!((model.all.bytes, model.waiting()), (3 * MIB, 1));
        model.settle(|_| 2);
        assert_eq!((model.all.bytes, model.all.blocks, model.waiting()), (0, 0, 0));
        assert_eq!(model.peak(), 4 * MIB);
    }

    #[test]
    fn work_of_other_streams_is_unfinished() {
        let mut model = Model::new(SETTINGS);
        let part = alloc(&mut model, MIB, MIB);
        model.free(MIB, part, vec![(0, 3), (1, 2)]);
        let unfinished = |stream, done: [u64; 2]| model.unfinished(0, 2 * MIB, stream, |stream| done[stream]);
        assert_eq!(unfinished(Some(0), [0, 1]), Some(MIB));
        assert_eq!(unfinished(Some(0), [0, 2]), None);
        assert_eq!(unfinished(None, [2, 2]), Some(MIB));
        assert_eq!(unfinished(None, [3, 2]), None);
        assert_eq!(model.unfinished(2 * MIB, MIB, None, |_| 0), None);
    }

    #[test]
    fn ended_tags_do_not_add_up() {
        let mut model = Model::new(SETTINGS);
        let mut most = 0;
        for tag in 0..100 {
            let request = model.request(tag, MIB, 256);
            let part = model.served(&request, tag * MIB, MIB);
            model.end_tag(tag);
            let bound = model.bound().mapped;
            assert!(most == 0 || tag == 1 || bound == most, "{bound} after {tag} tags, {most} before");
            most = bound;
            model.free(tag * MIB, part, Vec::new());
            model.settle(|_| 0);
        }
        assert!(model.tags.is_empty());
    }
}
