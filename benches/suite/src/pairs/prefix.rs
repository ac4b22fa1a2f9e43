//! Sequences that begin with the pages of a common prefix, compared with sequences that copy it.

use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{Bytes, PhysicalMemory, Properties, Region, Result};
use gpu_vmm_testkit::TestKit;

/// The pages of the prefix.
const PAGES: u64 = 8;

/// The sequences of which the memory is measured. Each has a page of its own.
const SEQUENCES: u64 = 100;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let (device, page) = (scene.device, scene.backend.granularity().bytes());
    let (size, longest) = (page * PAGES, page * (PAGES + 1));
    scene.needs(longest * (SEQUENCES + 1))?;
    let mut prefix = scene.room(longest)?;
    for end in 1..=PAGES {
        prefix.grow_to(page * end)?;
    }
    prefix.write_pattern(device, Bytes::ZERO, size, 1)?;
    let begin = || Region::builder(scene.backend).on(device).reserve(longest).build();
    let mut source = begin()?;
    prefix.fork(size, &mut source)?;
    let copied = || -> Result<Region<B>> {
        let mut sequence = begin()?;
        sequence.grow_to(size)?;
        sequence.copy_from(Bytes::ZERO, &source, Bytes::ZERO, size)?;
        Ok(sequence)
    };
    let mut held = [0; 2];
    let free = || scene.backend.memory_info(device).map(|memory| memory.free);
    for (side, held) in held.iter_mut().enumerate() {
        let before = free()?;
        let mut sequences = Vec::new();
        for _ in 0..SEQUENCES {
            let mut sequence = if side == 0 { begin()? } else { copied()? };
            if side == 0 {
                prefix.fork(size, &mut sequence)?;
            }
            let own = PhysicalMemory::create(scene.backend, page, Properties::on(device))?;
            sequence.grow_with(&[own])?;
            sequences.push(sequence);
        }
        *held = before.0 - free()?.0;
        sequences.into_iter().try_for_each(|sequence| sequence.close(nothing_runs()))?;
    }
    // The prefix itself is there in both cases.
    let each = held.map(|bytes| (bytes + size.0) as f64);
    scene.memory_row(format!("memory of {SEQUENCES} sequences"), "copied prefix", each);
    scene.compare_whole(
        format!("a sequence begins with {size} and ends"),
        "copied prefix",
        Plan::samples(200),
        || {
            let mut sequence = begin()?;
            prefix.fork(size, &mut sequence)?;
            Ok(sequence.close(nothing_runs())?)
        },
        || Ok(copied()?.close(nothing_runs())?),
    )?;
    source.close(nothing_runs())?;
    Ok(prefix.close(nothing_runs())?)
}
