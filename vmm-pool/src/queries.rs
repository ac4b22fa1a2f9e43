//! Queries: the block at an address, statistics and snapshots.

use crate::block_memory::Origin;
use crate::core::Core;
use crate::owner::Owner;
use crate::snapshot::{
    BlockSnapshot, BlockState, FramesSnapshot, PagesSnapshot, PoolSnapshot, SpaceSnapshot,
};
use crate::space::{RangeInfo, Space};
use crate::{BinStats, BlockInfo, Pool, PoolStats, Unfreed};
use gpu_vmm_core::extend::BlockOwner;
use gpu_vmm_core::{Address, AddressRange, Backend, BlockAt, Bytes, Operation, Properties};
use std::collections::{BTreeMap, HashSet};

impl<B: Backend> Pool<B> {
    /// Returns the backend of the pool's memory.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.owner.backend
    }

    /// Returns the live block that contains an address, of any [kind](Pool::with_memory) of the pool. Meant for occasional use: it
    /// searches every thread cache.
    #[must_use]
    pub fn find(&self, address: Address) -> Option<BlockInfo> {
        self.owner.inner.process.check(Operation::FindBlock).ok()?;
        self.kinds.all().iter().find_map(|owner| owner.find(address))
    }

    /// Returns the pool's statistics, of this handle's [kind](Pool::with_memory) of memory alone: [`kinds`](Pool::kinds) has those of each
    /// kind. It delays other threads no longer than an allocation does.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.owner.stats()
    }

    /// Returns a snapshot of the pool's memory of this handle's [kind](Pool::with_memory). `gpu-vmm report` draws its JSON form.
    #[must_use]
    pub fn snapshot(&self) -> PoolSnapshot {
        let stats = self.owner.stats();
        if !self.owner.inner.process.is_this() {
            return PoolSnapshot { version: PoolSnapshot::VERSION, stats, ..PoolSnapshot::default() };
        }
        let mut cached = HashSet::new();
        for thread_cache in self.owner.thread_caches() {
            cached.extend(thread_cache.lock().pieces().map(|piece| piece.address));
        }
        match self.owner.inner.core(Operation::QueryPool) {
            Ok(core) => core.snapshot(stats, &cached),
            Err(_) => PoolSnapshot { version: PoolSnapshot::VERSION, stats, ..PoolSnapshot::default() },
        }
    }

    /// Returns the live blocks of all [kinds](Pool::with_memory) with the place of their allocation, by address; none if the pool was
    /// built without [`debug`](crate::PoolBuilder::debug).
    #[must_use]
    pub fn unfreed(&self) -> Vec<Unfreed> {
        if !self.owner.inner.process.is_this() {
            return Vec::new();
        }
        let mut all: Vec<_> = self.kinds.all().iter().flat_map(|owner| owner.unfreed()).collect();
        all.sort_by_key(|one| one.address);
        all
    }
}

/// For [`gpu_vmm_core::at`].
impl<B: Backend> BlockOwner for Owner<B> {
    fn block_at(&self, address: Address) -> Option<BlockAt> {
        let BlockInfo { base, capacity: size, tag, suspended, .. } = self.find(address)?;
        Some(BlockAt { range: AddressRange { base, size }, tag: (&*tag).into(), suspended })
    }
}

impl<B: Backend> Owner<B> {
    fn find(&self, address: Address) -> Option<BlockInfo> {
        let info = self.inner.core(Operation::FindBlock).ok()?.find_block(address)?;
        let cached = self.thread_caches().any(|thread_cache| thread_cache.lock().holds(info.base.0));
        (!cached).then_some(info)
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let mut stats = PoolStats::default();
        if !self.inner.process.is_this() {
            return stats;
        }
        // Moves the block that was freed last into the core: until then it counts as live.
        drop(self.inner.core(Operation::QueryPool));
        let mut ready = BTreeMap::<u64, u64>::new();
        for thread_cache in self.thread_caches() {
            let cache = thread_cache.lock();
            stats.live = stats.live.wrapping_add(cache.live);
            stats.live_blocks += cache.live_blocks;
            stats.allocations += cache.allocations;
            stats.cached += cache.bytes;
            for piece in cache.pieces().filter(|piece| matches!(piece.origin, Origin::Slot(..))) {
                *ready.entry(piece.size).or_default() += 1;
            }
        }
        let served = self.inner.last.served();
        stats.allocations += served.requests;
        // Below zero if other threads freed and allocated while the thread caches were read.
        stats.live = (stats.live.wrapping_add(served.growth) as i64).max(0) as u64;
        if let Ok(core) = self.inner.core(Operation::QueryPool) {
            core.add_to(&mut stats, &ready);
        }
        stats
    }
}

impl<B: Backend> Core<B> {
    fn add_to(&self, stats: &mut PoolStats, ready: &BTreeMap<u64, u64>) {
        stats.pending = self.pending.bytes();
        stats.kept = self.frames.free() as u64 * self.page;
        stats.held = self.held();
        stats.mapped = self.spaces.iter().map(|space| space.mapped * self.page).sum();
        stats.reserved = self.reserved();
        stats.peak_live = self.peak_taken;
        stats.peak_held = self.peak_held;
        stats.driver_calls = self.calls;
        stats.driver_calls.other += self.streams.calls;
        let mut bins = BTreeMap::<u64, BinStats>::new();
        for slab in self.slabs.iter() {
            let size = slab.slot_size();
            let bin = bins.entry(size).or_insert(BinStats { size, ..BinStats::default() });
            bin.free += u64::from(slab.free());
            bin.live += u64::from(slab.slots() - slab.free());
        }
        for (size, count) in ready {
            if let Some(bin) = bins.get_mut(size) {
                bin.free += count;
                bin.live = bin.live.saturating_sub(*count);
            }
        }
        stats.bins = bins.into_values().collect();
    }

    /// Returns the live or cached block that contains an address.
    pub(crate) fn find_block(&self, address: Address) -> Option<BlockInfo> {
        let space = self.space_at(address.0)?;
        let seen = space.at(address.0 - space.base)?;
        let slab = self.slabs.in_range(space.index, seen.range);
        let (base, size, stream) = match slab {
            None => (space.base + seen.offset, seen.size, seen.stream),
            Some(slab) => {
                let slot = (address.0 - slab.base) / slab.slot_size();
                if slot >= u64::from(slab.slots()) || slab.is_free(slot as u16) {
                    return None;
                }
                (slab.base + slot * slab.slot_size(), slab.slot_size(), slab.stream_of(slot as u16))
            }
        };
        if self.pending.iter().any(|waiting| waiting.piece.address == base) {
            return None;
        }
        let tag = self.tags.get(space.tag);
        Some(BlockInfo {
            base: Address(base),
            capacity: Bytes(size),
            offset: Bytes(address.0 - base),
            device: self.settings.memory.device,
            memory: self.settings.memory,
            stream: self.streams.stream(stream),
            tag: tag.name.clone(),
            suspended: tag.is_suspended() || space.is_suspended(),
        })
    }

    fn snapshot(&self, stats: PoolStats, cached: &HashSet<u64>) -> PoolSnapshot {
        let memory = self.settings.memory;
        let device = self.backend.devices().get(memory.device.0 as usize);
        let kind = match memory == Properties::on(memory.device) {
            true => String::new(),
            false => format!("; {memory}"),
        };
        let device =
            device.map(|device| format!("{} {}: {}{kind}", self.backend.vendor(), device.id, device.name));
        PoolSnapshot {
            version: PoolSnapshot::VERSION,
            device: device.unwrap_or_default(),
            at: self.history.now(),
            page: self.page,
            stats,
            spaces: self.reserved_spaces().map(|space| self.snapshot_of(space, cached)).collect(),
            unmapped: self.unmapped(),
            timeline: self.history.moments().to_vec(),
        }
    }

    /// Returns the spaces that have addresses: all of them, except for chunks that were released.
    fn reserved_spaces(&self) -> impl Iterator<Item = &Space<B>> {
        self.spaces.iter().filter(|space| space.reserved > 0)
    }

    /// Returns the frames that are mapped nowhere, in runs.
    fn unmapped(&self) -> Vec<FramesSnapshot> {
        let mut runs: Vec<FramesSnapshot> = Vec::new();
        for frame in self.frames.free_ones().filter(|frame| self.frames.get(*frame).mapped.is_empty()) {
            match runs.last_mut() {
                Some(run) if u64::from(run.frame) + run.count == u64::from(frame) => run.count += 1,
                _ => runs.push(FramesSnapshot { frame, count: 1 }),
            }
        }
        runs
    }

    fn snapshot_of(&self, space: &Space<B>, cached: &HashSet<u64>) -> SpaceSnapshot {
        let tag = self.tags.get(space.tag);
        let pending: HashSet<_> = self.pending.iter().map(|waiting| waiting.piece.address).collect();
        let bins: HashSet<_> =
            self.slabs.iter().filter(|slab| slab.space == space.index).map(|slab| slab.base).collect();
        let block = |seen: RangeInfo| {
            let address = space.base + seen.offset;
            let state = match seen.taken {
                false => BlockState::Free,
                true if bins.contains(&address) => BlockState::Bins,
                true if cached.contains(&address) => BlockState::Cached,
                true if pending.contains(&address) => BlockState::Pending,
                true => BlockState::Live,
            };
            let stream = self.streams.stream(seen.stream).as_raw().addr() as u64;
            BlockSnapshot { offset: seen.offset, size: seen.size, state, stream }
        };
        SpaceSnapshot {
            tag: tag.name.to_string(),
            base: space.base,
            reserved: space.reserved,
            suspended: space.is_suspended(),
            blocks: space.seen().map(block).collect(),
            pages: pages_of(space),
        }
    }
}

/// Returns the mapped pages of a space, in runs.
fn pages_of<B: Backend>(space: &Space<B>) -> Vec<PagesSnapshot> {
    let mut runs: Vec<PagesSnapshot> = Vec::new();
    for (index, page) in space.pages.iter().enumerate() {
        if !page.is_mapped() {
            continue;
        }
        let (offset, used) = (space.offset_of(index).0, page.live > 0);
        match runs.last_mut() {
            Some(run)
                if run.offset + run.count * space.page == offset
                    && u64::from(run.frame) + run.count == u64::from(page.frame)
                    && run.used == used =>
            {
                run.count += 1;
            }
            _ => runs.push(PagesSnapshot { offset, count: 1, frame: page.frame, used }),
        }
    }
    runs
}
