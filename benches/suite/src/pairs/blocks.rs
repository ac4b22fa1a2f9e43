//! The cost of an allocation with its free as a pool fills, compared with a pool without other blocks.

use super::pool::PAIRS;
use crate::allocator::{Pooled, pairs};
use crate::random::Random;
use crate::scene::{Plan, Scene};
use crate::stop::StepResult;
use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_testkit::TestKit;

/// A size, and numbers of live blocks.
const LIVE: [(Bytes, [usize; 3]); 2] =
    [(Bytes(512), [1_000, 100_000, 10_000_000]), (Bytes::mib(2), [100, 1_000, 10_000])];

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let memory = scene.memory()?;
    for (size, counts) in LIVE {
        let alone = Pooled::new(scene.backend, scene.device, Stream::DEFAULT)?;
        for count in counts.into_iter().filter(|count| size.0 * *count as u64 * 5 / 4 <= memory.0) {
            let full = Pooled::new(scene.backend, scene.device, Stream::DEFAULT)?;
            let block = || Ok(full.pool.alloc(size)?);
            let mut live = (0..count).map(|_| block()).collect::<StepResult<Vec<_>>>()?;
            let plan = Plan::samples(100).together(PAIRS);
            scene.compare_whole(
                format!("{size}: pair beside {count} live blocks"),
                "a pair without live blocks",
                plan,
                || pairs(&full, size, PAIRS),
                || pairs(&alone, size, PAIRS),
            )?;
            // Blocks at random places, so that the free space is scattered.
            let mut random = Random::new();
            let mut replace = || {
                for _ in 0..PAIRS {
                    let place = random.below(live.len() as u64);
                    drop(live.swap_remove(place as usize));
                    live.push(block()?);
                }
                Ok(())
            };
            scene.compare_whole(
                format!("{size}: one of {count} replaced"),
                "a pair without live blocks",
                plan,
                &mut replace,
                || pairs(&alone, size, PAIRS),
            )?;
        }
    }
    Ok(())
}
