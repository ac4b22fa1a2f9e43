//! A step of growth that a thread has mapped ahead, compared with one of the same size on demand, with different work of the
//! caller between two steps. Without such work the driver is slower than the growth, and the thread cannot keep ahead.

use crate::sampling::{Sample, timed};
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{Bytes, Operation};
use gpu_vmm_premap::{GrowingRegion, Premap, PremapThread};
use gpu_vmm_testkit::TestKit;
use std::time::{Duration, Instant};

/// The number of steps that are mapped ahead.
const AHEAD: u64 = 8;

/// The caller's time between two steps in microseconds, and the number of steps. After 1.2 s the thread sleeps.
const WAITS: [(u64, usize); 5] = [(0, 500), (300, 500), (2_000, 300), (20_000, 30), (1_200_000, 3)];

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let granule = scene.backend.device(Operation::QueryDevice, scene.device)?.granularity.bytes();
    for (step, waits) in
        [(Bytes::mib(2).max(granule), &WAITS[..]), (Bytes::mib(32).max(granule), &WAITS[..4])]
    {
        // Both grow by the same size before they are emptied, and one of them has more mapped ahead.
        let by = Bytes(step.0 * AHEAD);
        let space = scene.fitting(3, by, Bytes::gib(2))?;
        for (wait, samples) in waits {
            grow(scene, (step, by, space), Duration::from_micros(*wait), *samples)?;
        }
    }
    Ok(())
}

fn grow<B: TestKit>(
    scene: &mut Scene<'_, B>,
    (step, by, space): (Bytes, Bytes, Bytes),
    wait: Duration,
    samples: usize,
) -> StepResult {
    let thread = PremapThread::start(by)?;
    let mut plain = scene.room(space + by)?;
    let growing = GrowingRegion::new(scene.room(space + by)?, Premap { by, step }, &thread);
    begin(&growing, step)?;
    let ours = || {
        if growing.end() >= space {
            let _ = growing.shrink_to(Bytes::ZERO, nothing_runs())?;
            begin(&growing, step)?;
        }
        then(wait, || Ok(growing.grow_to(growing.end() + step).map(drop)?))
    };
    let on_demand = || {
        if plain.end() >= space {
            let _ = plain.shrink_to(Bytes::ZERO, nothing_runs())?;
        }
        then(wait, || Ok(plain.grow_to(plain.end() + step).map(drop)?))
    };
    let what = format!("{step} each {wait:?}, {AHEAD} steps ahead");
    scene.compare(what, "on demand, by gpu-vmm", Plan::samples(samples), ours, on_demand)?;
    Ok(plain.close(nothing_runs())?)
}

/// Lets the thread map ahead before a first step.
fn begin<B: TestKit>(growing: &GrowingRegion<B>, step: Bytes) -> StepResult {
    growing.grow_to(step)?;
    while growing.premapped() < growing.premap().by {
        std::thread::yield_now();
    }
    Ok(())
}

/// Measures a step. The caller's time after it is not counted: the caller computes, or waits for a device.
fn then(wait: Duration, step: impl FnOnce() -> StepResult) -> StepResult<Sample<(), 1>> {
    let sample = timed(step)?;
    if wait > Duration::from_millis(5) {
        std::thread::sleep(wait);
        return Ok(sample);
    }
    let start = Instant::now();
    while start.elapsed() < wait {
        std::hint::spin_loop();
    }
    Ok(sample)
}
