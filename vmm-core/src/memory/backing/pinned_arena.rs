//! An allocator of pinned memory. An allocation can consist of several extents, so that all free memory can be used.

use crate::driver::{Backend, Pinned, check_available};
use crate::types::{Bytes, Detail, Error, Lock, Operation, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of one pinned allocation. A single large allocation of the whole capacity may fail or take very long.
const PIECE: Bytes = Bytes::mib(256);

/// A range of one pinned allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    piece: usize,
    offset: Bytes,
    length: Bytes,
}

/// Pinned memory and its free extents.
#[derive(Debug)]
pub(super) struct PinnedArena {
    pieces: Vec<Box<dyn Pinned>>,
    /// The free extents in ascending order; adjacent ones are merged.
    extents: Lock<Vec<Extent>>,
    /// The number of free bytes, which can be read without the lock. Changed only while `extents` is locked.
    free: AtomicU64,
}

impl PinnedArena {
    pub(super) fn new(backend: &impl Backend, capacity: Bytes) -> Result<Self> {
        if capacity.is_zero() {
            return Err(Error::new(Operation::PinMemory, Detail::ZeroSize));
        }
        check_available(Operation::PinMemory, capacity)?;
        let mut pieces = Vec::new();
        let mut free = Vec::new();
        let mut left = capacity;
        while !left.is_zero() {
            let length = left.min(PIECE);
            free.push(Extent { piece: pieces.len(), offset: Bytes::ZERO, length });
            pieces.push(backend.pin(length)?);
            left -= length;
        }
        Ok(Self { pieces, extents: Lock::new(free), free: AtomicU64::new(capacity.0) })
    }

    pub(super) fn capacity(&self) -> Bytes {
        self.pieces.iter().map(|piece| piece.size()).sum()
    }

    pub(super) fn free(&self) -> Bytes {
        Bytes(self.free.load(Ordering::Relaxed))
    }

    /// Allocates `needed` bytes, or returns [`Detail::BackingStoreFull`].
    pub(super) fn extent(self: &Arc<Self>, operation: Operation, needed: Bytes) -> Result<PinnedExtent> {
        let mut free = self.extents.lock(operation)?;
        let there = self.free();
        if there < needed {
            return Err(Error::new(
                operation,
                Detail::BackingStoreFull { needed, free: there, capacity: self.capacity() },
            ));
        }
        let mut left = needed;
        let mut extents = Vec::new();
        free.retain_mut(|extent| {
            let length = extent.length.min(left);
            if length.is_zero() {
                return true;
            }
            extents.push(Extent { length, ..*extent });
            left -= length;
            extent.offset += length;
            extent.length -= length;
            !extent.length.is_zero()
        });
        self.free.fetch_sub(needed.0, Ordering::Relaxed);
        Ok(PinnedExtent { locked: Arc::clone(self), extents })
    }

    fn take_back(&self, extents: &[Extent]) {
        // In a forked child, the memory belongs to the parent.
        let Ok(mut free) = self.extents.lock(Operation::FreeContents) else { return };
        let size: Bytes = extents.iter().map(|extent| extent.length).sum();
        self.free.fetch_add(size.0, Ordering::Relaxed);
        free.extend_from_slice(extents);
        free.sort_unstable();
        free.dedup_by(|next, last| {
            let touch = last.piece == next.piece && last.offset + last.length == next.offset;
            if touch {
                last.length += next.length;
            }
            touch
        });
    }
}

/// An allocation of pinned memory: extents that form a stream of bytes. Dropping it frees them.
#[derive(Debug)]
pub(super) struct PinnedExtent {
    locked: Arc<PinnedArena>,
    extents: Vec<Extent>,
}

impl PinnedExtent {
    /// Returns the runs of contiguous memory that hold a range of the stream.
    pub(super) fn runs(&self, from: Bytes, length: Bytes) -> impl Iterator<Item = (*mut u8, Bytes)> {
        let to = from + length;
        let mut at = Bytes::ZERO;
        self.extents.iter().filter_map(move |extent| {
            let begin = at;
            at += extent.length;
            let (first, last) = (begin.max(from), at.min(to));
            (first < last).then(|| {
                let start = self.locked.pieces[extent.piece].start().as_ptr();
                // The address is inside the pinned allocation.
                let place = start.wrapping_add((extent.offset + (first - begin)).0 as usize);
                (place, last - first)
            })
        })
    }
}

impl Drop for PinnedExtent {
    fn drop(&mut self) {
        self.locked.take_back(&self.extents);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, unsafe_code)] // `Pinned` promises memory
mod tests {
    use super::*;
    use std::ptr::NonNull;

    /// Memory at an address that no test accesses.
    #[derive(Debug)]
    struct FakePinned(NonNull<u8>, Bytes);

    // SAFETY: the tests access no byte of it.
    unsafe impl Send for FakePinned {}
    // SAFETY: as above.
    unsafe impl Sync for FakePinned {}

    // SAFETY: the tests access no byte of it.
    unsafe impl Pinned for FakePinned {
        fn start(&self) -> NonNull<u8> {
            self.0
        }

        fn size(&self) -> Bytes {
            self.1
        }
    }

    fn arena(sizes: &[u64]) -> Arc<PinnedArena> {
        let piece = |(number, size): (usize, &u64)| {
            let start = std::ptr::without_provenance_mut((number + 1) * 1000);
            Box::new(FakePinned(NonNull::new(start).unwrap(), Bytes(*size))) as Box<dyn Pinned>
        };
        let pieces = sizes.iter().enumerate().map(piece).collect();
        let whole =
            |(piece, size): (usize, &u64)| Extent { piece, offset: Bytes::ZERO, length: Bytes(*size) };
        let extents = Lock::new(sizes.iter().enumerate().map(whole).collect());
        Arc::new(PinnedArena { pieces, extents, free: AtomicU64::new(sizes.iter().sum()) })
    }

    #[test]
    fn free_extents_merge_only_within_allocations() {
        let arena = arena(&[8, 16]);
        let take = |size| arena.extent(Operation::Suspend, Bytes(size)).unwrap();
        let (first, second, between, third) = (take(5), take(3), take(8), take(8));
        assert_eq!(arena.free(), Bytes::ZERO);
        // The last bytes of the first allocation, and bytes of the second that begin at the offset behind them.
        drop((third, second));
        let free = |length, offset, piece| Extent { piece, offset: Bytes(offset), length: Bytes(length) };
        assert_eq!(*arena.extents.lock(Operation::Suspend).unwrap(), [free(3, 5, 0), free(8, 8, 1)]);
        drop(between);
        assert_eq!(*arena.extents.lock(Operation::Suspend).unwrap(), [free(3, 5, 0), free(16, 0, 1)]);
        let third = take(3 + 8);
        drop(first);
        assert_eq!(*arena.extents.lock(Operation::Suspend).unwrap(), [free(5, 0, 0), free(8, 8, 1)]);
        drop(third);
        assert_eq!(*arena.extents.lock(Operation::Suspend).unwrap(), [free(8, 0, 0), free(16, 0, 1)]);
        assert_eq!(arena.free(), arena.capacity());
    }

    #[test]
    fn each_stream_byte_has_own_place() {
        let arena = arena(&[8, 16]);
        let take = |size| arena.extent(Operation::Suspend, Bytes(size)).unwrap();
        let (first, rest) = (take(5), take(19));
        let runs = |extent: &PinnedExtent, from, length| {
            let runs = extent.runs(Bytes(from), Bytes(length));
            runs.map(|(place, length)| (place.addr(), length.0)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&first, 1, 3), [(1001, 3)]);
        assert_eq!(runs(&rest, 0, 19), [(1005, 3), (2000, 16)]);
        assert_eq!(runs(&rest, 2, 4), [(1007, 1), (2000, 3)]);
        assert_eq!(runs(&rest, 3, 2), [(2000, 2)]);
        assert_eq!(runs(&rest, 5, 0), []);
        let full = arena.extent(Operation::Suspend, Bytes(1)).unwrap_err();
        let Detail::BackingStoreFull { needed, free, capacity } = full.detail() else { panic!("{full}") };
        assert_eq!((*needed, *free, *capacity), (Bytes(1), Bytes::ZERO, Bytes(24)));
    }
}
