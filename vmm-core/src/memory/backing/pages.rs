//! Ordinary memory of the host in blocks, which a store can keep for the next contents.
#![allow(unsafe_code)]

use super::store::{Store, outside};
use crate::driver::{HostPages, check_available};
use crate::types::{Bytes, Lock, Operation, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of one block. Contents need several, so that a store can keep some of them.
const BLOCK: Bytes = Bytes::mib(256);

/// The number of bytes to write at a time to new pages. The system clears such a page through the processor's cache, where copies of
/// this size leave room: on two H200s' hosts, 16 threads filled new pages at 36 to 41 GiB/s by 2 MiB, and at 28 GiB/s by 4 MiB.
const NEW: Bytes = HostPages::LARGE;

/// The memory that a store has taken from the host: the pages of the contents that it holds, and the blocks that it keeps.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    /// The largest size of the blocks that stay without contents.
    most: Bytes,
    taken: AtomicU64,
    /// Blocks without contents.
    kept: Lock<Vec<HostPages>>,
}

impl HostMemory {
    /// Keeps at most `most` bytes of blocks without contents.
    pub(super) fn keeping(most: Bytes) -> Self {
        Self { most, ..Self::default() }
    }

    /// Returns the size of all blocks, with contents or without.
    pub(super) fn taken(&self) -> Bytes {
        Bytes(self.taken.load(Ordering::Relaxed))
    }

    /// Takes pages for `length` bytes: kept blocks first, then new ones, for which the host must have enough memory.
    pub(super) fn pages(self: &Arc<Self>, operation: Operation, length: Bytes) -> Result<Pages> {
        let mut pages =
            Pages { home: Arc::clone(self), blocks: Vec::new(), length, write_size: Bytes(u64::MAX) };
        let mut left = length;
        {
            let mut kept = self.kept.lock(operation)?;
            while !left.is_zero()
                && let Some(block) = kept.pop()
            {
                left -= block.length();
                pages.blocks.push(block);
            }
        }
        if !left.is_zero() {
            check_available(operation, left)?;
            pages.write_size = NEW;
        }
        while !left.is_zero() {
            let block = HostPages::new(operation, left.min(BLOCK))?;
            self.taken.fetch_add(block.length().0, Ordering::Relaxed);
            left -= block.length();
            pages.blocks.push(block);
        }
        Ok(pages)
    }

    /// Frees all blocks without contents and returns their size.
    pub(super) fn trim(&self) -> Result<Bytes> {
        let free = std::mem::take(&mut *self.kept.lock(Operation::FreeContents)?);
        let size: Bytes = free.iter().map(|block| block.length()).sum();
        self.taken.fetch_sub(size.0, Ordering::Relaxed);
        Ok(size)
    }

    fn give_back(&self, blocks: Vec<HostPages>) {
        let mut free = Vec::new();
        // In a forked child, the kept blocks belong to the parent.
        if let Ok(mut kept) = self.kept.lock(Operation::FreeContents) {
            let mut size: Bytes = kept.iter().map(|block| block.length()).sum();
            for block in blocks {
                size += block.length();
                if size <= self.most { kept.push(block) } else { free.push(block) }
            }
        }
        let size: Bytes = free.iter().map(|block| block.length()).sum();
        self.taken.fetch_sub(size.0, Ordering::Relaxed);
    }
}

/// The pages of one region's contents. Dropping them gives them back to the store's memory.
#[derive(Debug)]
pub(super) struct Pages {
    home: Arc<HostMemory>,
    blocks: Vec<HostPages>,
    length: Bytes,
    write_size: Bytes,
}

impl Pages {
    /// Calls `copy` with the address of each run that holds a part of the range, and the part's place and length in the range.
    fn each_run(&self, at: Bytes, length: usize, copy: impl Fn(*mut u8, usize, usize)) -> Result<()> {
        let end = at.checked_add(Bytes(length as u64)).filter(|end| *end <= self.length);
        let end = end.ok_or_else(|| outside(at))?;
        let mut start = Bytes::ZERO;
        for block in &self.blocks {
            let (first, last) = (at.max(start), end.min(start + block.length()));
            if first < last {
                let place = block.start().as_ptr().wrapping_add((first - start).0 as usize);
                copy(place, (first - at).0 as usize, (last - first).0 as usize);
            }
            start += block.length();
        }
        Ok(())
    }
}

impl Store for Pages {
    fn write_size(&self) -> Bytes {
        self.write_size
    }

    fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()> {
        self.each_run(at, bytes.len(), |to, from, length| {
            // SAFETY: the run is inside a block, and no other thread uses it until the ring has finished.
            unsafe { to.copy_from_nonoverlapping(bytes[from..].as_ptr(), length) };
        })
    }

    fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()> {
        let (into, all) = (bytes.as_mut_ptr(), bytes.len());
        self.each_run(at, all, |from, to, length| {
            // SAFETY: as above; no thread writes to a range that is being read, and `to + length` is at most `all`.
            unsafe { from.copy_to_nonoverlapping(into.wrapping_add(to), length) };
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.blocks));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const OPERATION: Operation = Operation::Suspend;

    #[test]
    fn bytes_come_back_from_several_blocks() {
        let memory = Arc::new(HostMemory::default());
        let length = BLOCK + Bytes(100);
        let pages = memory.pages(OPERATION, length).unwrap();
        assert_eq!((pages.blocks.len(), memory.taken()), (2, length));
        // Across the border, and at the end.
        for (at, count) in [(BLOCK - Bytes(3), 7), (length - Bytes(5), 5)] {
            let bytes: Vec<u8> = (1..=count).collect();
            pages.write(at, &bytes).unwrap();
            let mut back = vec![0; bytes.len()];
            pages.read(at, &mut back).unwrap();
            assert_eq!(back, bytes);
        }
        for at in [length, length - Bytes(1), Bytes(u64::MAX)] {
            assert!(pages.write(at, &[1, 2]).is_err() && pages.read(at, &mut [0; 2]).is_err(), "{at}");
        }
        drop(pages);
        assert_eq!(memory.taken(), Bytes::ZERO);
    }

    #[test]
    fn kept_blocks_serve_again_within_limit() {
        let memory = Arc::new(HostMemory::keeping(BLOCK + Bytes::mib(1)));
        let pages = |length| memory.pages(OPERATION, length).unwrap();
        let starts = |pages: &Pages| pages.blocks.iter().map(|block| block.start()).collect::<Vec<_>>();
        let first = pages(BLOCK + Bytes::mib(2));
        let before = starts(&first);
        drop(first);
        // The second block exceeds the limit.
        assert_eq!(memory.taken(), BLOCK);
        let (again, other) = (pages(Bytes::mib(1)), pages(Bytes::mib(1)));
        assert_eq!(starts(&again), before[..1]);
        assert_eq!(memory.taken(), BLOCK + Bytes::mib(1));
        drop((again, other));
        assert_eq!(memory.taken(), BLOCK + Bytes::mib(1));
        // Memory that is kept already counts.
        drop([pages(BLOCK), pages(BLOCK)]);
        assert_eq!(memory.taken(), BLOCK + Bytes::mib(1));
        let most = pages(Bytes::gib(1));
        assert_eq!((most.blocks.len(), memory.taken()), (5, Bytes::gib(1)), "what was kept is a part of it");
        // Memory that was kept stays if the host has too little memory for the rest.
        drop(most);
        let kept = memory.taken();
        assert!(memory.pages(OPERATION, Bytes::gib(1 << 30)).is_err());
        assert_eq!(memory.taken(), kept);
        // Contents stay.
        let pages = memory.pages(OPERATION, Bytes(1)).unwrap();
        assert_eq!(memory.trim().unwrap() + pages.blocks[0].length(), kept);
        assert_eq!(memory.taken(), pages.blocks[0].length());
        assert_eq!(memory.trim().unwrap(), Bytes::ZERO);
    }
}
