//! The memory of a pool as frameworks account for it: amounts, peaks, the limit, and which memory is where.

use crate::classes::MEDIUM;
use crate::core::Core;
use crate::space::Space;
use crate::{Pool, PoolError};
use gpu_vmm_core::extend::check_reach;
use gpu_vmm_core::{
    Access, Address, Backend, Bytes, Capability, Detail, DeviceId, Error, Feature, Grant, Operation,
    PhysicalMemory, Result,
};

/// Amounts of a pool's memory that can be read often: [`Pool::usage`] visits no thread cache. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// All physical memory.
    pub held: u64,
    /// The most physical memory since the pool was created, or since [`Pool::reset_peak`].
    pub peak_held: u64,
    /// The physical memory that contains blocks of up to 1 MiB.
    pub held_small: u64,
    /// Freed memory of up to 1 MiB each that waits for a stream or a fence.
    pub pending_small: WaitingBlocks,
    /// Larger freed memory that waits for a stream or a fence.
    pub pending_large: WaitingBlocks,
    /// The number of pages of physical memory that the pool has ever created.
    pub created: u64,
    /// The number of pages that the pool has returned to the driver, for [suspension](Pool::suspend) as well.
    pub released: u64,
    /// The size of a page.
    pub page: u64,
}

/// The number and the size of freed blocks that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingBlocks {
    /// The number of blocks.
    pub blocks: u64,
    /// The bytes that they occupy.
    pub bytes: u64,
}

/// All physical memory of a pool, each part at one address, and the freed blocks that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLayout {
    /// The memory, by address.
    pub runs: Vec<MemoryRun>,
    /// The first address and the size of each freed block that waits for a stream or a fence.
    pub pending: Vec<(Address, Bytes)>,
}

/// A run of mapped pages that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRun {
    /// The first address; zero if the memory is mapped nowhere.
    pub address: Address,
    /// The size.
    pub size: Bytes,
    /// True if blocks lie in the run. Memory without blocks may be mapped at several addresses, of which this is one.
    pub used: bool,
    /// True if the blocks are of up to 1 MiB each.
    pub small: bool,
}

impl<B: Backend> Pool<B> {
    /// Returns the amounts of the pool's memory of this handle's [kind](Pool::with_memory); all zeros in a forked child.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        self.owner.inner.core(Operation::QueryPool).map_or_else(|_| PoolUsage::default(), |core| core.usage())
    }

    /// Sets the peak of the held memory to what the pool holds now, of this handle's [kind](Pool::with_memory).
    /// [`PoolStats::peak_held`](crate::PoolStats::peak_held) follows.
    ///
    /// # Errors
    ///
    /// [`Forked`](gpu_vmm_core::Detail::Forked) in a forked child.
    pub fn reset_peak(&self) -> Result<()> {
        let mut core = self.owner.inner.core(Operation::QueryPool)?;
        core.peak_held = core.held();
        Ok(())
    }

    /// Gives another device, or [the host](DeviceId::HOST), read and write access to all memory of this handle's
    /// [kind](Pool::with_memory), present and future. Each such device costs time whenever memory is mapped. A device that has access
    /// keeps it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](gpu_vmm_core::Detail::Unsupported) if the pool's device or the other one has no virtual memory management, or if
    /// it is the host, and the driver gives the host no access to memory of the device;
    /// [`PeerUnreachable`](gpu_vmm_core::Detail::PeerUnreachable), [`NoSuchDevice`](gpu_vmm_core::Detail::NoSuchDevice) or the driver's error: memory that
    /// is mapped later is then out of the device's reach. [`Forked`](gpu_vmm_core::Detail::Forked) in a forked child.
    pub fn allow_access(&self, device: DeviceId) -> Result<()> {
        self.allow_access_as(device, Access::ReadWrite)
    }

    /// Gives another device access to all memory as [`allow_access`](Pool::allow_access) does, for instance to read it only. A device
    /// that has this access or more keeps what it has, also if `access` is [`Access::None`]. A device that has less keeps it too: work may
    /// use the memory while a driver changes it.
    ///
    /// # Errors
    ///
    /// Those of [`allow_access`](Pool::allow_access); [`Unsupported`](gpu_vmm_core::Detail::Unsupported) if the driver has no
    /// [read-only access](Feature::ReadOnlyAccess), if the device has less access already, and for the host with [`Access::Read`]:
    /// CUDA's driver writes with the CPU what the CPU may read.
    pub fn allow_access_as(&self, device: DeviceId, access: Access) -> Result<()> {
        let operation = Operation::SetAccess;
        if device.is_host() && access == Access::Read {
            // CUDA's driver writes with a CPU that may read: Block::write would end the process.
            let reason = "the host reads and writes memory of a pool, or has no access to it".to_owned();
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        // Without the core: it may try the access.
        self.check_access(operation, access)?;
        let mapping = self.owner.inner.mapping(operation)?;
        let mut core = mapping.core()?;
        let has = core.settings.access.iter().find(|grant| grant.device == device);
        let has = has.map_or(Access::None, |grant| grant.access);
        if access.is_within(has) {
            return Ok(());
        }
        if has != Access::None {
            // The driver removes the access for a moment, while work may use the memory.
            let reason = format!(
                "{device} has {has} access to the memory of the pool already, which cannot change to {access}"
            );
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        core.check_virtual(operation)?;
        // A pool without addresses makes no driver call here: without this check, each later allocation would fail.
        check_reach(&core.backend, operation, device, &core.settings.memory)?;
        let grant = Grant { device, access };
        for space in 0..core.spaces.len() {
            core = mapping.allow(core, space, &[grant])?;
        }
        core.settings.access.push(grant);
        Ok(())
    }

    /// Refuses read-only access if the driver has none.
    fn check_access(&self, operation: Operation, access: Access) -> Result<()> {
        if access != Access::Read {
            return Ok(());
        }
        self.owner.inner.process.check(operation)?;
        let capabilities = self.owner.backend.capabilities(self.owner.memory().device)?;
        let missing = |found: &Capability| found.feature == Feature::ReadOnlyAccess && !found.available;
        match capabilities.into_iter().find(missing) {
            None => Ok(()),
            Some(found) => {
                let reason = format!("read-only access: {}", found.note);
                Err(Error::new(operation, Detail::Unsupported { reason }))
            }
        }
    }

    /// Returns the physical memory of the pages that contain a part of a block of any [kind](Pool::with_memory), in order, and the
    /// distance of the part from the beginning of the first page. The memory outlives the block, and other blocks may lie in it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](gpu_vmm_core::Detail::Unsupported) on a device without virtual memory management;
    /// [`NotABlock`](crate::PoolError::NotABlock) if memory of the pool is not mapped in the whole part;
    /// [`Forked`](gpu_vmm_core::Detail::Forked).
    pub fn memory_at(&self, address: Address, size: Bytes) -> Result<(Vec<PhysicalMemory<B>>, Bytes)> {
        let operation = Operation::ExportMemory;
        self.owner.inner.core(operation)?.check_virtual(operation)?;
        for owner in self.kinds.all() {
            if let Some(found) = owner.inner.core(operation)?.memory_at(address.0, size.0) {
                return Ok(found);
            }
        }
        Err(Error::of_extension(operation, PoolError::NotABlock { address, inside: None }))
    }

    /// Returns where the pool's memory of this handle's [kind](Pool::with_memory) is; nothing in a forked child.
    #[must_use]
    pub fn layout(&self) -> PoolLayout {
        self.owner
            .inner
            .core(Operation::QueryPool)
            .map_or_else(|_| PoolLayout::default(), |core| core.layout())
    }
}

impl<B: Backend> Core<B> {
    fn memory_at(&self, address: u64, size: u64) -> Option<(Vec<PhysicalMemory<B>>, Bytes)> {
        let space = self.space_at(address)?;
        let offset = address - space.base;
        let pages = offset / self.page..offset.checked_add(size)?.div_ceil(self.page);
        let memory = pages.map(|page| {
            let page = space.page_at(page as usize);
            let frame = page.is_mapped().then_some(page.frame)?;
            self.frames.get(frame).memory.clone()
        });
        Some((memory.collect::<Option<Vec<_>>>()?, Bytes(offset % self.page)))
    }

    fn usage(&self) -> PoolUsage {
        let mut usage = PoolUsage {
            held: self.held(),
            peak_held: self.peak_held,
            created: self.frames.created(),
            released: self.frames.created() - self.frames.count() as u64,
            page: self.page,
            ..PoolUsage::default()
        };
        for space in self.spaces.iter().filter(|space| space.is_small()) {
            usage.held_small += space.pages.iter().filter(|page| page.is_used()).count() as u64 * self.page;
        }
        for piece in self.pending.iter().map(|one| &one.piece) {
            let of_size =
                if piece.size <= MEDIUM { &mut usage.pending_small } else { &mut usage.pending_large };
            of_size.blocks += 1;
            of_size.bytes += piece.size;
        }
        usage
    }

    fn layout(&self) -> PoolLayout {
        let mut runs: Vec<MemoryRun> = Vec::new();
        for space in &self.spaces {
            add_used(space, &mut runs);
        }
        let size = Bytes(self.page);
        for frame in self.frames.free_ones() {
            let address = self.frames.get(frame).mapped.first().map_or(Address(0), |at| {
                let space = &self.spaces[usize::from(at.space)];
                Address(space.base + space.offset_of(at.page as usize).0)
            });
            runs.push(MemoryRun { address, size, used: false, small: false });
        }
        runs.sort_unstable_by_key(|run| run.address);
        let mut merged: Vec<MemoryRun> = Vec::new();
        for run in runs {
            match merged.last_mut() {
                Some(last)
                    if !last.used
                        && !run.used
                        && run.address.0 != 0
                        && last.address.0 + last.size.0 == run.address.0 =>
                {
                    last.size += run.size;
                }
                _ => merged.push(run),
            }
        }
        let pending = self.pending.iter().map(|one| (Address(one.piece.address), Bytes(one.piece.size)));
        PoolLayout { runs: merged, pending: pending.collect() }
    }
}

/// Adds the pages of a space that contain blocks, in runs.
fn add_used<B: Backend>(space: &Space<B>, runs: &mut Vec<MemoryRun>) {
    let begin = runs.len();
    for (index, _) in space.pages.iter().enumerate().filter(|(_, page)| page.is_used()) {
        let address = Address(space.base + space.offset_of(index).0);
        match runs[begin..].last_mut() {
            Some(last) if last.address.0 + last.size.0 == address.0 => last.size += Bytes(space.page),
            _ => {
                runs.push(MemoryRun { address, size: Bytes(space.page), used: true, small: space.is_small() })
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::thread_cache::Cache;
    use gpu_vmm_core::ErrorKind;
    use gpu_vmm_host::HostConfig;
    use gpu_vmm_premap::sync::thread_number;

    const PAGE: u64 = 2 << 20;

    fn pool() -> Pool<gpu_vmm_host::HostBackend> {
        Pool::builder(&HostConfig::new().memory(Bytes::gib(4)).open().unwrap()).build().unwrap()
    }

    #[test]
    fn uncached_pieces_keep_their_bodies() {
        let pool = pool();
        let cache = |work: &mut dyn FnMut(&mut Cache<gpu_vmm_host::HostBackend>) -> usize| {
            work(&mut pool.owner.thread_cache(thread_number()).lock())
        };
        // More than a thread cache keeps of this size: the older half leaves it.
        let blocks: Vec<_> = (0..300).map(|_| pool.alloc(Bytes(256)).unwrap()).collect();
        assert_eq!(cache(&mut |cache| cache.spare()), 0);
        drop(blocks);
        let old = cache(&mut |cache| cache.spare());
        let left = cache(&mut |cache| cache.empty(|_, _| true).len());
        assert!(old > 0 && left > 0);
        assert_eq!(cache(&mut |cache| cache.spare()), old + left);
        // A request of one block takes the body of a spare one.
        let block = pool.alloc(Bytes::mib(3)).unwrap();
        assert_eq!(cache(&mut |cache| cache.spare()), old + left - 1);
        drop(block);
    }

    #[test]
    fn small_and_large_blocks_count_apart() {
        let pool = pool();
        assert_eq!(pool.usage(), PoolUsage { page: PAGE, ..PoolUsage::default() });
        let (_small, large) = (pool.alloc(Bytes::kib(3)).unwrap(), pool.alloc(Bytes::mib(5)).unwrap());
        let usage = pool.usage();
        assert_eq!((usage.held_small, usage.held, usage.created), (PAGE, 4 * PAGE, 4));
        drop(large);
        // There are few addresses for small blocks: those with an alignment of more than a page are elsewhere.
        for (alignment, held_small) in [(PAGE, 2 * PAGE), (2 * PAGE, PAGE)] {
            let _aligned = pool.request(Bytes::kib(3)).alignment(Bytes(alignment)).alloc().unwrap();
            assert_eq!(pool.usage().held_small, held_small, "with an alignment of {alignment}");
        }
        pool.trim(Bytes::ZERO).unwrap();
        let usage = pool.usage();
        assert_eq!((usage.held, usage.peak_held, usage.released), (PAGE, 4 * PAGE, 3));
        pool.reset_peak().unwrap();
        assert_eq!((pool.usage().peak_held, pool.stats().peak_held), (PAGE, PAGE));
    }

    /// Keeps its memory until the pool ends.
    #[derive(Debug)]
    struct Never;

    impl crate::Fence for Never {
        fn is_done(&self) -> Result<bool> {
            Ok(false)
        }

        fn wait(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn waiting_blocks_up_to_mebibyte_are_small() {
        let pool = pool();
        for size in [1, 1 << 20, (1 << 20) + 1] {
            pool.alloc(Bytes(size)).unwrap().free_after(std::sync::Arc::new(Never));
        }
        let PoolUsage { pending_small, pending_large, .. } = pool.usage();
        assert_eq!(pending_small, WaitingBlocks { blocks: 2, bytes: 256 + (1 << 20) });
        assert_eq!(pending_large, WaitingBlocks { blocks: 1, bytes: (1 << 20) + 512 });
    }

    #[test]
    fn all_memory_is_in_the_layout_once() {
        let pool = pool();
        let small = pool.alloc(Bytes::kib(3)).unwrap();
        let (large, other) = (pool.alloc(Bytes::mib(6)).unwrap(), pool.alloc(Bytes::mib(2)).unwrap());
        let (address, kept) = (large.address(), other.address());
        drop(large);
        let layout = pool.layout();
        assert_eq!(layout.runs.iter().map(|run| run.size.0).sum::<u64>(), pool.stats().held);
        let with = |address: Address| {
            layout.runs.iter().find(|run| (run.address.0..run.address.0 + run.size.0).contains(&address.0))
        };
        let (small, free, used) =
            (with(small.address()).unwrap(), with(address).unwrap(), with(kept).unwrap());
        assert!(small.used && small.small && used.used && !used.small && !free.used);
        assert_eq!((free.size.0, used.size.0), (3 * PAGE, PAGE));
    }

    /// Blocks of whole pages come and go: the runs are exactly their pages, as long as they can be, and the free memory.
    #[test]
    fn runs_match_the_memory_in_use() {
        let pool = pool();
        let mut blocks = Vec::new();
        let mut random = 19_u64;
        for _ in 0..120 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = random >> 33;
            if number.is_multiple_of(3) && !blocks.is_empty() {
                blocks.swap_remove(number as usize / 3 % blocks.len());
            } else {
                blocks.push(
                    pool.request(Bytes((number % 4 + 1) * PAGE)).alignment(Bytes(PAGE)).alloc().unwrap(),
                );
            }
            let mut used: Vec<(u64, u64)> = Vec::new();
            blocks.sort_by_key(|block: &crate::Block<_>| block.address());
            for block in &blocks {
                let (start, end) = (block.address().0, block.address().0 + block.capacity().0);
                match used.last_mut() {
                    Some((_, last)) if *last == start => *last = end,
                    _ => used.push((start, end)),
                }
            }
            let PoolLayout { runs, pending } = pool.layout();
            assert!(pending.is_empty());
            let end = |run: &MemoryRun| run.address.0 + run.size.0;
            let found: Vec<_> =
                runs.iter().filter(|run| run.used).map(|run| (run.address.0, end(run))).collect();
            assert_eq!(found, used);
            assert!(runs.iter().all(|run| !run.small));
            assert_eq!(runs.iter().map(|run| run.size.0).sum::<u64>(), pool.stats().held);
            assert!(runs.is_sorted_by_key(|run| run.address));
            let mapped: Vec<_> = runs.iter().filter(|run| run.address.0 > 0).collect();
            for two in mapped.windows(2).filter(|two| end(two[0]) == two[1].address.0) {
                assert_ne!(two[0].used, two[1].used, "{two:?} are one run");
            }
        }
    }

    #[test]
    fn empty_pool_refuses_unreachable_device() {
        let backend = HostConfig::new().memory(Bytes::gib(4)).devices(2).without_peers().open().unwrap();
        let pool = Pool::builder(&backend).build().unwrap();
        for (device, kind) in [(1, ErrorKind::PeerUnreachable), (7, ErrorKind::NoSuchDevice)] {
            let error = pool.allow_access(DeviceId(device)).unwrap_err();
            assert_eq!((error.operation(), error.kind()), (Operation::SetAccess, kind), "{error}");
        }
        pool.allow_access(DeviceId(0)).unwrap();
        pool.alloc(Bytes::mib(4)).unwrap();
    }
}
