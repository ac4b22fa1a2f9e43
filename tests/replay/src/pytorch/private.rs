//! Freed blocks of private pools: of CUDA graphs and of `torch.cuda.MemPool`. They serve only requests of their pool, of nearly their
//! size, until PyTorch releases their segments. gpu-vmm's allocator class keeps them in the same way.

use std::collections::{BTreeMap, HashMap};

type Pool = (u64, u64);

/// A freed block.
#[derive(Clone, Copy)]
struct Freed {
    id: u64,
    address: u64,
}

/// The freed blocks of all private pools, of each by stream and size.
#[derive(Default)]
pub(super) struct PrivatePools(HashMap<Pool, BTreeMap<(u64, u64), Vec<Freed>>>);

/// Returns whether a pool is private; the default one is not.
pub(super) fn is_private(pool: Pool) -> bool {
    pool != (0, 0)
}

impl PrivatePools {
    pub(super) fn keep(&mut self, pool: Pool, stream: u64, bytes: u64, id: u64, address: u64) {
        self.0.entry(pool).or_default().entry((stream, bytes)).or_default().push(Freed { id, address });
    }

    /// Takes a block that is at most a quarter plus 4 KiB larger, as the allocator class does. Returns its ID and size.
    pub(super) fn take(&mut self, pool: Pool, stream: u64, bytes: u64) -> Option<(u64, u64)> {
        let blocks = self.0.get_mut(&pool)?;
        let most = bytes.saturating_add(bytes / 4).saturating_add(4096);
        let (&key, freed) = blocks.range_mut((stream, bytes)..=(stream, most)).next()?;
        let taken = freed.pop()?;
        if freed.is_empty() {
            blocks.remove(&key);
        }
        Some((taken.id, key.1))
    }

    /// Removes the blocks that lie in a segment which PyTorch has released, and returns their IDs.
    pub(super) fn release(&mut self, address: u64, bytes: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        let end = address.saturating_add(bytes);
        for blocks in self.0.values_mut() {
            blocks.retain(|_, freed| {
                freed.retain(|one| {
                    let stays = !(address..end).contains(&one.address);
                    if !stays {
                        ids.push(one.id);
                    }
                    stays
                });
                !freed.is_empty()
            });
        }
        ids
    }
}
