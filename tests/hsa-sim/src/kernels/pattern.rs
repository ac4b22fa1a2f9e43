//! The test kit's kernels: `backend-hip/src/kernels.hip`, and `backend-cuda/src/kernels.ptx`, which do the same.

use super::Known;
use super::arguments::Arguments;
use super::memory::Gpu;
use crate::memory::{Fault, Need};
use std::sync::atomic::Ordering::Relaxed;

pub(super) const KERNELS: &[Known] = &[
    Known { name: "gpu_vmm_write_pattern", arguments: 24, run: write_pattern },
    Known { name: "gpu_vmm_count_wrong", arguments: 32, run: count_wrong },
    Known { name: "gpu_vmm_walk_list", arguments: 24, run: walk_list },
];

/// Returns the pattern's word at `index` for a seed.
const fn pattern_word(seed: u64, index: u64) -> u64 {
    let mixed = seed.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 32)
}

fn write_pattern(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let gpu = Gpu::of(agent);
    let words = gpu.words(arguments.nth(0), arguments.nth(1), Need::Write)?;
    let seed = arguments.nth(2);
    for (index, word) in (0..).zip(words.into_iter().flatten()) {
        word.store(pattern_word(seed, index), Relaxed);
    }
    Ok(())
}

fn count_wrong(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let gpu = Gpu::of(agent);
    let words = gpu.words(arguments.nth(0), arguments.nth(1), Need::Read)?;
    let seed = arguments.nth(2);
    let differs = |(index, word): &(u64, &std::sync::atomic::AtomicU64)| {
        word.load(Relaxed) != pattern_word(seed, *index)
    };
    let (mut looked_at, mut wrong) = (0, 0);
    for indexed in (0..).zip(words.into_iter().flatten()) {
        looked_at += 1;
        wrong += u64::from(differs(&indexed));
    }
    for (at, counted) in [(0, looked_at), (8, wrong)].into_iter().filter(|(_, counted)| *counted > 0) {
        gpu.word(arguments.nth(3).wrapping_add(at), Need::Write)?.fetch_add(counted, Relaxed);
    }
    Ok(())
}

fn walk_list(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let gpu = Gpu::of(agent);
    let (mut node, mut nodes, mut sum) = (arguments.nth(0), 0, 0u64);
    while node != 0 && nodes < arguments.nth(1) {
        sum = sum.wrapping_add(gpu.word(node.wrapping_add(8), Need::Read)?.load(Relaxed));
        nodes += 1;
        node = gpu.word(node, Need::Read)?.load(Relaxed);
    }
    for (at, answer) in [(0, nodes), (8, sum)] {
        gpu.word(arguments.nth(2).wrapping_add(at), Need::Write)?.store(answer, Relaxed);
    }
    Ok(())
}
