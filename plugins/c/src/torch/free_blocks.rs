//! Freed blocks that serve only requests of the same captures or of the same memory pool.

use gpu_vmm::pool::Block;
use gpu_vmm::{Address, AnyBackend, Bytes, Operation, Result, Stream};
use std::collections::BTreeMap;

/// Freed blocks, by stream and capacity.
#[derive(Default)]
pub(super) struct FreeBlocks(BTreeMap<(usize, u64), Vec<Block<AnyBackend>>>);

/// The size up to which blocks lie among small blocks: PyTorch's as well as the pool's.
const SMALL: u64 = 1 << 20;

impl FreeBlocks {
    /// Takes a block of this stream that is at most a quarter plus 4 KiB larger than `size`, and small if `size` is.
    ///
    /// # Errors
    ///
    /// Those of [`take_up_to`](Self::take_up_to).
    pub(super) fn take(&mut self, size: Bytes, stream: Stream<'static>) -> Result<Option<Block<AnyBackend>>> {
        let most = size.0.saturating_add(size.0 / 4).saturating_add(4096);
        self.take_up_to(size, if size.0 <= SMALL { most.min(SMALL) } else { most }, stream)
    }

    /// Takes the smallest block of this stream with `size` to `most` bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Block::check_usable`]: a block whose tag is suspended has no memory. It stays here.
    pub(super) fn take_up_to(
        &mut self,
        size: Bytes,
        most: u64,
        stream: Stream<'static>,
    ) -> Result<Option<Block<AnyBackend>>> {
        let stream = stream.as_raw().addr();
        let Some((&key, _)) = self.0.range((stream, size.0)..=(stream, most)).next() else { return Ok(None) };
        let Some(block) = self.take_from(key, None) else { return Ok(None) };
        match block.check_usable(Operation::Allocate) {
            Ok(()) => Ok(Some(block)),
            Err(error) => {
                self.keep(block);
                Err(error)
            }
        }
    }

    /// Takes the block with an address.
    pub(super) fn take_at(&mut self, address: Address) -> Option<Block<AnyBackend>> {
        let holds = |blocks: &Vec<Block<_>>| blocks.iter().position(|block| block.address() == address);
        let (key, place) = self.0.iter().find_map(|(key, blocks)| Some((*key, holds(blocks)?)))?;
        self.take_from(key, Some(place))
    }

    fn take_from(&mut self, key: (usize, u64), place: Option<usize>) -> Option<Block<AnyBackend>> {
        let blocks = self.0.get_mut(&key)?;
        let block = match place {
            Some(place) => Some(blocks.swap_remove(place)),
            None => blocks.pop(),
        };
        if blocks.is_empty() {
            self.0.remove(&key);
        }
        block
    }

    pub(super) fn keep(&mut self, block: Block<AnyBackend>) {
        let key = (block.stream().as_raw().addr(), block.capacity().0);
        self.0.entry(key).or_default().push(block);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Block<AnyBackend>> {
        self.0.values().flatten()
    }

    pub(super) fn into_blocks(self) -> impl Iterator<Item = Block<AnyBackend>> {
        self.0.into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::pool::Pool;
    use crate::pool_options::PoolOptions;
    use gpu_vmm::Vendor;

    const STREAM: Stream<'static> = Stream::DEFAULT;

    fn pool() -> Pool {
        Pool::new(&AnyBackend::open(Vendor::Host).unwrap(), &PoolOptions::DEFAULT).unwrap()
    }

    fn block(pool: &Pool, size: Bytes) -> Block<AnyBackend> {
        pool.blocks.request(size).alignment(Bytes(512)).stream(STREAM).alloc().unwrap()
    }

    #[test]
    fn block_serves_requests_near_its_size() {
        let (pool, mut free) = (pool(), FreeBlocks::default());
        for size in [Bytes::kib(300), Bytes::mib(1), Bytes::mib(3)] {
            let block = block(&pool, size);
            let (address, capacity) = (block.address(), block.capacity());
            free.keep(block);
            let fits = |size: &u64| size + size / 4 + 4096 >= capacity.0;
            let least = (1..=capacity.0).find(fits).unwrap();
            for (size, expected) in
                [(least - 1, false), (capacity.0 + 1, false), (least, true), (capacity.0, true)]
            {
                let found = free.take(Bytes(size), STREAM).unwrap();
                assert_eq!(found.as_ref().map(Block::address), expected.then_some(address), "{size}");
                found.into_iter().for_each(|block| free.keep(block));
            }
            assert!(free.take_at(address).is_some() && free.iter().next().is_none());
        }
    }

    #[test]
    fn a_small_request_takes_no_large_block() {
        let (pool, mut free) = (pool(), FreeBlocks::default());
        free.keep(block(&pool, Bytes(SMALL + 1)));
        assert!(free.take(Bytes(SMALL), STREAM).unwrap().is_none());
        assert!(free.take(Bytes(SMALL + 1), STREAM).unwrap().is_some());
    }

    #[test]
    fn smallest_block_of_stream_is_taken() {
        let (pool, mut free) = (pool(), FreeBlocks::default());
        // Only a number: no work is queued on it.
        // SAFETY: the host backend never dereferences a stream.
        let other = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(4096)) };
        let sizes = [3, 2, 4].map(|size| block(&pool, Bytes::mib(size)));
        let smallest = sizes[1].address();
        sizes.into_iter().for_each(|block| free.keep(block));
        assert!(free.take_up_to(Bytes::mib(2), u64::MAX, other).unwrap().is_none());
        let found = free.take_up_to(Bytes::mib(2), u64::MAX, STREAM).unwrap();
        assert_eq!(found.as_ref().map(Block::address), Some(smallest));
        // The size that was taken hides no larger one.
        let next = free.take_up_to(Bytes::mib(2), u64::MAX, STREAM).unwrap();
        assert!(next.is_some_and(|block| (Bytes::mib(3)..Bytes::mib(4)).contains(&block.capacity())));
    }
}
