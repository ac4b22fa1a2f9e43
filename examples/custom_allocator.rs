//! A custom container on a pool: a typed vector in device memory, for any backend. Many short vectors share the pool's memory,
//! while a region for each would take at least the granularity.
//!
//! ```text
//! cargo run --example custom_allocator
//! ```

use bytemuck::Pod;
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{Address, AnyBackend, Backend, Bytes, DeviceId, OffsetRange, Result};
use std::marker::PhantomData;

const DEVICE: DeviceId = DeviceId(0);

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    // The tag separates the vectors' memory from other memory of the pool.
    let pool = Pool::builder(&backend).device(DEVICE).build()?.tagged("vectors")?;

    // A thousand lists of different lengths, which grow in rotation.
    let mut lists: Vec<PoolVec<u32, _>> = (0..1000).map(|_| PoolVec::new(&pool)).collect();
    for round in 0..3 {
        for (number, list) in (0u32..).zip(&mut lists) {
            list.extend_from_slice(&vec![number; number as usize % 100 + round])?;
        }
    }
    for (number, list) in (0u32..).zip(&lists) {
        let length = 3 * (number as usize % 100) + 3;
        assert_eq!(list.to_vec()?, vec![number; length]);
    }

    let account = pool.stats();
    let regions = backend.granularity().bytes().0 * lists.len() as u64;
    println!("{} lists: {account}", lists.len());
    println!("  a region for each of them would take {}", Bytes(regions));
    println!("  {} allocations, {} driver calls", account.allocations, account.driver_calls.total());
    assert_eq!(account.live_blocks, lists.len() as u64);
    assert!(account.held <= regions, "{} are held", Bytes(account.held));
    if let Some(found) = lists[7].address().and_then(|address| pool.find(address)) {
        assert_eq!(&*found.tag, "vectors");
    }

    drop(lists);
    assert_eq!(pool.stats().live_blocks, 0);
    Ok(())
}

/// A vector in a pool's memory. Growth moves it, as in `Vec`.
struct PoolVec<T, B: Backend> {
    pool: Pool<B>,
    /// `None` while the vector has never had an element.
    block: Option<Block<B>>,
    length: usize,
    of: PhantomData<T>,
}

impl<T: Pod, B: Backend> PoolVec<T, B> {
    fn new(pool: &Pool<B>) -> Self {
        Self { pool: pool.clone(), block: None, length: 0, of: PhantomData }
    }

    fn address(&self) -> Option<Address> {
        self.block.as_ref().map(Block::address)
    }

    fn capacity(&self) -> Bytes {
        self.block.as_ref().map_or(Bytes::ZERO, Block::size)
    }

    fn bytes(&self) -> Bytes {
        Bytes((self.length * size_of::<T>()) as u64)
    }

    fn extend_from_slice(&mut self, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let needed = self.bytes() + Bytes(bytes.len() as u64);
        if needed > self.capacity() {
            self.move_to(needed.max(self.capacity() + self.capacity()))?;
        }
        let end = self.bytes();
        if let Some(block) = &mut self.block {
            block.write(end, bytes)?;
        }
        self.length += values.len();
        Ok(())
    }

    fn move_to(&mut self, capacity: Bytes) -> Result<()> {
        let mut block = self.pool.request(capacity).alignment(Bytes(align_of::<T>() as u64)).alloc()?;
        if let Some(full) = &self.block {
            block.copy_from(Bytes::ZERO, full, OffsetRange { offset: Bytes::ZERO, length: self.bytes() })?;
        }
        self.block = Some(block); // frees the old block for the next list
        Ok(())
    }

    fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.length];
        if let Some(block) = &self.block {
            block.read(Bytes::ZERO, bytemuck::cast_slice_mut(&mut values))?;
        }
        Ok(values)
    }
}

#[test]
fn runs() -> Result<()> {
    main()
}
