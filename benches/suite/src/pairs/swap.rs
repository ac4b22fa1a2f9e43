//! Two regions that exchange their memory, compared with the driver's own calls: unmap, map and set access for both. Each
//! side has two ranges of its own, and works while the other waits.

use super::pieces::{ByHand, grow_by, has_pattern};
use crate::raw::Raw;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{Bytes, Operation, WaitFor};
use gpu_vmm_testkit::TestKit;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let granule = scene.backend.device(Operation::QueryDevice, scene.device)?.granularity.bytes();
    let size = scene.fitting(4, Bytes::mib(64).max(granule), Bytes::gib(1))?;
    for (handles, samples) in [(1, 400), (16, 400), (512, 40)] {
        if size.0 / handles >= granule.0 {
            swap(scene, size, handles, samples, ("nothing waited for", nothing_runs()))?;
        }
    }
    swap(scene, size, 1, 400, ("the device waited for", WaitFor::all_devices()))
}

fn swap<B: TestKit>(
    scene: &mut Scene<'_, B>,
    size: Bytes,
    handles: u64,
    samples: usize,
    (waits, done): (&str, WaitFor<'_>),
) -> StepResult {
    let (device, piece) = (scene.device, Bytes(size.0 / handles));
    let [mut one, mut two] = [scene.room(size)?, scene.room(size)?];
    for (region, seed) in [(&mut one, 1), (&mut two, 2)] {
        grow_by(region, piece, size)?;
        region.write_pattern(device, Bytes::ZERO, size, seed)?;
    }
    let [mut first, mut second] = [ByHand::new(scene, size, piece)?, ByHand::new(scene, size, piece)?];
    for range in [&mut first, &mut second] {
        range.create(Raw::create)?;
        range.map()?;
    }
    let mut count = 0;
    scene.compare_whole(
        format!("{size} in handles of {piece}, {waits}"),
        "driver's own calls",
        Plan::samples(samples),
        || {
            count += 1;
            Ok(one.swap(Bytes::ZERO, &mut two, Bytes::ZERO, size, done)?)
        },
        || {
            first.unmap()?;
            second.unmap()?;
            std::mem::swap(&mut first.handles, &mut second.handles);
            first.map()?;
            second.map()
        },
    )?;
    let [seed, other] = if count % 2 == 0 { [1, 2] } else { [2, 1] };
    has_pattern(&one, device, size, seed)?;
    has_pattern(&two, device, size, other)?;
    one.close(nothing_runs())?;
    Ok(two.close(nothing_runs())?)
}
