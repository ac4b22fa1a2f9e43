//! Kernels for tests in which a GPU must access a certain word, or words far apart.

use super::Known;
use super::arguments::Arguments;
use super::memory::Gpu;
use crate::memory::{Fault, Need};
use std::sync::atomic::Ordering::Relaxed;

pub(super) const KERNELS: &[Known] = &[
    Known { name: "gpu_vmm_fill", arguments: 24, run: fill },
    Known { name: "gpu_vmm_checksum", arguments: 24, run: checksum },
    Known { name: "gpu_vmm_copy_strided", arguments: 40, run: copy_strided },
    Known { name: "gpu_vmm_write_at", arguments: 16, run: write_at },
];

fn fill(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let gpu = Gpu::of(agent);
    let words = gpu.words(arguments.nth(0), arguments.nth(1), Need::Write)?;
    words.into_iter().flatten().for_each(|word| word.store(arguments.nth(2), Relaxed));
    Ok(())
}

fn checksum(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let gpu = Gpu::of(agent);
    let words = gpu.words(arguments.nth(0), arguments.nth(1), Need::Read)?;
    let odd = |index: u64| index.wrapping_mul(2).wrapping_add(1);
    let terms = (0..)
        .zip(words.into_iter().flatten())
        .map(|(index, word)| word.load(Relaxed).wrapping_mul(odd(index)));
    let sum = terms.fold(0, u64::wrapping_add);
    gpu.word(arguments.nth(2), Need::Write)?.fetch_add(sum, Relaxed);
    Ok(())
}

fn copy_strided(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let gpu = Gpu::of(agent);
    let place = |first: usize, stride: usize, index: u64| {
        let offset = arguments.nth(stride).wrapping_mul(index).wrapping_mul(8);
        arguments.nth(first).wrapping_add(offset)
    };
    for index in 0..arguments.nth(4) {
        let word = gpu.word(place(2, 3, index), Need::Read)?.load(Relaxed);
        gpu.word(place(0, 1, index), Need::Write)?.store(word, Relaxed);
    }
    Ok(())
}

fn write_at(agent: usize, arguments: &Arguments) -> Result<(), Fault> {
    let gpu = Gpu::of(agent);
    gpu.word(arguments.nth(0), Need::Write)?.store(arguments.nth(1), Relaxed);
    Ok(())
}
