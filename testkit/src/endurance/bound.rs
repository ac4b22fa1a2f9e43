//! The bound: the most of each resource that a pool may use, as a function of what its program has needed.
//!
//! The rule is the one in the documentation of gpu-vmm-pool, `# What bounds it`: 17 L + 2 h for each group of sizes. The check divides
//! the sizes into other groups, from 512 bytes on, and does not count small ranges as h / 16, nor blocks in thread caches more than
//! once: no proof covers that, but no random program has exceeded it. All that a run checks is decided here, with the groups of sizes in `groups`.

use super::groups::{SLOT, group_of, largest_of, step};
use super::load::{Load, Part, TagLoad};

/// The most unfinished events of a stream, and for each stream, the most numbers of forgotten streams whose last event is unfinished. An
/// event that has ended serves the next one, on any stream.
const EVENTS: u64 = 64 + 16;

/// The most bytes in a thread cache, and the most thread caches.
const CACHED: u64 = 8 << 20;
const CACHES: u64 = 64;

/// The first addresses of a group with a tag, as a multiple of its largest block. The programs tag all blocks: a group without a tag
/// reserves as many addresses as the device has memory.
const FIRST: u64 = 16;

/// The amounts that a pool uses, or may use at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// The addresses with memory mapped at them.
    pub mapped: u64,
    /// The physical memory.
    pub held: u64,
    /// The reserved addresses.
    pub reserved: u64,
    /// The events.
    pub events: u64,
    /// The ranges of addresses that the pool has records of.
    pub records: u64,
}

/// The settings that the bound depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// The size of a page.
    pub(super) page: u64,
    /// The number of streams.
    pub(super) streams: u64,
    /// The number of threads that use the pool.
    pub(super) threads: u64,
    /// The number of kinds of memory, each of which keeps the memory that it needed, and has streams and thread caches of its own.
    pub(super) kinds: u64,
}

/// Returns the size of the slabs for slots of a size: 64 KiB, or 8 to 256 slots.
const fn slab(slot: u64) -> u64 {
    let slots = SLOT / slot;
    slot * if slots < 8 {
        8
    } else if slots > 256 {
        256
    } else {
        slots
    }
}

/// Returns the bytes and the number of a tag's slabs: each slot serves every stream, so a slab is added only if all slots of its size
/// are live or wait.
pub(super) fn slabs_of(tag: &TagLoad) -> (u64, u64) {
    tag.slots.iter().fold((0, 0), |(bytes, count), (slot, load)| {
        let slabs = load.peak.div_ceil(slab(*slot));
        (bytes + slabs * slab(*slot), count + slabs)
    })
}

/// Returns the extent of a group's addresses, 17 L + 2 h: at an extension, each gap is below the largest size h, or 2 h with alignments,
/// and there is at most one more gap than there are blocks.
const fn extent(load: u64, group: u32) -> u64 {
    if load == 0 { 0 } else { 17 * load + 2 * largest_of(group) }
}

/// Returns the most addresses of a tag with memory mapped at them.
pub(super) fn mapped_of(tag: &TagLoad, settings: &Settings) -> u64 {
    let cached = CACHED * settings.threads.min(CACHES);
    let mut groups = tag.groups.clone();
    // Each size of slots has slabs of its own, which are blocks of the group of their size.
    for (slot, load) in &tag.slots {
        let size = slab(*slot);
        let of_slabs = groups.entry(group_of(size)).or_default();
        of_slabs.peak += load.peak.next_multiple_of(size);
    }
    let extents: u64 = groups.iter().map(|(group, load)| extent(load.peak, *group)).sum();
    match groups.is_empty() {
        true => 0,
        // Each group begins and ends within a page.
        false => extents + cached + 2 * settings.page * groups.len() as u64,
    }
}

/// Returns the most addresses that a tag may reserve. The first ones are for 16 of the largest blocks, once for a group and once for
/// mixed sizes. Others are reserved once these are used up, each time as many as there are, or as a block needs.
pub(super) fn reserved_of(tag: &TagLoad, settings: &Settings) -> u64 {
    let first: u64 = tag.largest.iter().map(|largest| 2 * FIRST * largest).sum();
    first + 4 * mapped_of(tag, settings)
}

/// Returns the most addresses with memory mapped at them that one tag of a pool may have, whose program has at most these blocks alive or
/// waiting at one time: the size and the alignment of each.
#[must_use]
pub fn most_mapped(blocks: &[(u64, u64)], page: u64) -> u64 {
    let mut tag = TagLoad::default();
    for (size, alignment) in blocks {
        let part = Part::new(0, size.next_multiple_of(step(*alignment)), *alignment);
        tag.add(&part);
    }
    mapped_of(&tag, &Settings { page, streams: 1, threads: 1, kinds: 1 })
}

/// Returns the most that a pool may use.
///
/// `mapped`, `reserved` and `slabs` are the largest sums of [`mapped_of`], [`reserved_of`] and [`slabs_of`] over all tags that existed at
/// one time; `all` is the load of all tags, and `ranges` without slots.
pub(super) fn bound(
    [mapped, reserved]: [u64; 2],
    slabs: (u64, u64),
    [all, ranges]: [&Load; 2],
    ended: bool,
    settings: &Settings,
) -> Amounts {
    // Addresses of ended tags are returned when others need them.
    let [mapped, reserved] = [mapped, reserved].map(|tags| if ended { tags * 2 } else { tags });
    // The pages that all blocks and slabs lie in, each by itself.
    let pages = ranges.peak + slabs.0 + (ranges.peak_blocks + slabs.1) * 2 * settings.page;
    let used = pages.min(mapped);
    Amounts {
        mapped,
        // With several streams, the pool exceeds the needed memory by a fourteenth.
        // The load of each kind is at most the load of all, at another time.
        held: (used + used / 14 + CACHED * settings.threads.min(CACHES) + 8 * settings.page) * settings.kinds,
        reserved,
        events: EVENTS * settings.streams * settings.kinds,
        records: (4 * all.peak_blocks + 256 * settings.streams * settings.threads) * settings.kinds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_have_the_size_of_the_pools() {
        assert_eq!([256, 1024, 8192, 65_536].map(slab), [65_536, 65_536, 65_536, 524_288]);
    }
}
