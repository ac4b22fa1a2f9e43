//! Typical orders of allocating and freeing.

use crate::allocator::Allocator;
use crate::random::Random;
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::Bytes;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

/// The number of live blocks.
const WINDOW: usize = 64;

/// Keeps some blocks alive, and replaces one of them at random.
pub(super) struct Window<'a, A: Allocator> {
    allocator: &'a A,
    sizes: &'a [Bytes],
    blocks: Vec<A::Block>,
    random: Random,
}

impl<'a, A: Allocator> Window<'a, A> {
    pub(super) fn new(allocator: &'a A, sizes: &'a [Bytes]) -> StepResult<Self> {
        let blocks = sizes.iter().cycle().take(WINDOW).map(|size| allocator.alloc(*size));
        let blocks = blocks.collect::<StepResult<_>>()?;
        Ok(Self { allocator, sizes, blocks, random: Random::new() })
    }

    pub(super) fn replace(&mut self, pairs: u64) -> StepResult {
        for size in self.sizes.iter().cycle().take(pairs as usize) {
            let place = self.random.below(WINDOW as u64);
            self.allocator.free(self.blocks.swap_remove(place as usize))?;
            self.blocks.push(self.allocator.alloc(*size)?);
        }
        Ok(())
    }

    pub(super) fn end(self) -> StepResult {
        self.blocks.into_iter().try_for_each(|block| self.allocator.free(block))
    }
}

/// The number of batches in flight.
const BATCHES: usize = 4;

/// One thread allocates, another one frees; they pass 64 blocks at a time.
pub(super) struct Handed<'a, A: Allocator> {
    allocator: &'a A,
    out: SyncSender<Vec<A::Block>>,
    emptied: Receiver<StepResult<Vec<A::Block>>>,
    spare: Vec<Vec<A::Block>>,
}

impl<'a, A: Allocator + Sync> Handed<'a, A> {
    /// Starts the thread that frees. It runs until this is dropped.
    pub(super) fn new<'scope>(scope: &'scope Scope<'scope, '_>, allocator: &'a A) -> Self
    where
        'a: 'scope,
    {
        let (out, batches) = sync_channel::<Vec<A::Block>>(BATCHES);
        let (back, emptied) = sync_channel(BATCHES);
        scope.spawn(move || {
            let mut entered = allocator.enter();
            for mut batch in batches {
                let freed = std::mem::replace(&mut entered, Ok(()))
                    .and_then(|()| batch.drain(..).try_for_each(|block| allocator.free(block)));
                if back.send(freed.map(|()| batch)).is_err() {
                    break;
                }
            }
        });
        let spare = (0..BATCHES).map(|_| Vec::with_capacity(WINDOW)).collect();
        Self { allocator, out, emptied, spare }
    }

    /// Returns when the other thread has freed all blocks.
    pub(super) fn pass(&mut self, size: Bytes, pairs: u64) -> StepResult {
        let ended = || Stop::Failed("the freeing thread has ended".to_owned());
        let mut left = pairs;
        while left > 0 {
            let mut batch = match self.spare.pop() {
                Some(batch) => batch,
                None => self.emptied.recv().map_err(|_| ended())??,
            };
            let count = left.min(WINDOW as u64);
            for _ in 0..count {
                batch.push(self.allocator.alloc(size)?);
            }
            self.out.send(batch).map_err(|_| ended())?;
            left -= count;
        }
        while self.spare.len() < BATCHES {
            self.spare.push(self.emptied.recv().map_err(|_| ended())??);
        }
        Ok(())
    }
}
