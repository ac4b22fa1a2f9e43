//! Blocks that a pool keeps for callers that know only addresses.

use crate::Block;
#[cfg(feature = "snapshot")]
use gpu_vmm_core::Bytes;
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Address, Backend, Error, Operation};
use gpu_vmm_premap::sync::{Mutex, MutexGuard, PoisonError, lock};
use rustc_hash::FxHashMap;
#[cfg(feature = "snapshot")]
use std::collections::HashMap;
use std::collections::VecDeque;

/// The number of shards, each of which has a lock of its own.
const SHARDS: usize = 16;

/// The number of freed addresses that each shard remembers.
const REMEMBERED: usize = 1024;

/// The blocks of a pool that callers identify by address.
#[derive(Debug)]
pub(crate) struct KeptBlocks<B: Backend> {
    shards: [Mutex<Shard<B>>; SHARDS],
}

#[derive(Debug)]
pub(crate) struct Shard<B: Backend> {
    pub(crate) blocks: FxHashMap<Address, Block<B>>,
    /// The addresses that were freed last, to distinguish a double free from other errors. Each has the number of its free,
    /// since one address may have been freed several times.
    freed: VecDeque<(Address, u64)>,
    pub(crate) last_freed: FxHashMap<Address, u64>,
    frees: u64,
}

impl<B: Backend> KeptBlocks<B> {
    pub(crate) fn new() -> Self {
        let shard = |_| {
            let (blocks, freed, last_freed) = (FxHashMap::default(), VecDeque::new(), FxHashMap::default());
            Mutex::new(Shard { blocks, freed, last_freed, frees: 0 })
        };
        Self { shards: std::array::from_fn(shard) }
    }

    /// Frees all kept blocks.
    pub(crate) fn clear(&mut self) {
        for shard in &mut self.shards {
            shard.get_mut().unwrap_or_else(PoisonError::into_inner).blocks.clear();
        }
    }

    /// Returns the requested sizes of all kept blocks, by address.
    #[cfg(feature = "snapshot")]
    pub(crate) fn sizes(
        &self,
        process: Process,
        operation: Operation,
    ) -> Result<HashMap<Address, Bytes>, Error> {
        process.check(operation)?;
        let mut sizes = HashMap::new();
        for shard in &self.shards {
            sizes.extend(lock(shard).blocks.iter().map(|(address, block)| (*address, block.size())));
        }
        Ok(sizes)
    }

    /// Locks the shard of an address. Returns an error in a forked child.
    pub(crate) fn shard(
        &self,
        process: Process,
        operation: Operation,
        address: Address,
    ) -> Result<MutexGuard<'_, Shard<B>>, Error> {
        process.check(operation)?;
        // The addresses of neighbouring blocks differ in these bits.
        let shard = (address.0 >> 9 ^ address.0 >> 21) as usize % SHARDS;
        Ok(lock(&self.shards[shard]))
    }
}

impl<B: Backend> Shard<B> {
    pub(crate) fn remember(&mut self, address: Address) {
        if self.freed.len() == REMEMBERED
            && let Some((old, number)) = self.freed.pop_front()
            && self.last_freed.get(&old) == Some(&number)
        {
            self.last_freed.remove(&old);
        }
        self.frees += 1;
        self.freed.push_back((address, self.frees));
        self.last_freed.insert(address, self.frees);
    }
}
