//! A backend with dynamic dispatch compared with the same one by its type.

use super::calls;
use super::mappings::Full;
use crate::allocator::{Pooled, pairs};
use crate::sampling::Sample;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::Answer;
use gpu_vmm_core::{
    Address, Backend, Bytes, DeviceId, Operation, PhysicalMemory, Placement, Properties, Region, Stream,
};
use gpu_vmm_testkit::TestKit;

/// The limit of the ratio.
const TARGET: f64 = 1.01;

/// The number of pairs that are timed together.
const PAIRS: u64 = 10_000;

pub(crate) fn measure<B: TestKit, A: TestKit>(scene: &mut Scene<'_, B, A>) -> Answer {
    let (backend, any, device) = (scene.backend, scene.any, scene.device);
    let baseline = format!("{}'s own type", backend.vendor());
    for (size, samples) in [(Bytes::mib(2), 2000), (Bytes::mib(256), 400)] {
        scene.needs(size)?;
        let at = Region::builder(backend).on(device).reserve(size).build()?.address();
        let plan = Plan::samples(samples).at_most(TARGET);
        let times = scene.take(plan, || cycle(any, device, at, size), || cycle(backend, device, at, size))?;
        let ([.., ours], [.., others]) = (&times.ours, &times.baseline);
        scene.row(format!("{size}: full cycle"), &*baseline, plan, ours, others);
    }
    let plan = Plan::samples(300).together(PAIRS).at_most(TARGET);
    for size in [Bytes::kib(4), Bytes::mib(4)] {
        let one = Pooled::new(backend, device, Stream::DEFAULT)?;
        let chosen = Pooled::new(any, device, Stream::DEFAULT)?;
        scene.compare_whole(
            format!("pool: {size}, pair"),
            &*baseline,
            plan,
            || pairs(&chosen, size, PAIRS),
            || pairs(&one, size, PAIRS),
        )?;
    }
    let granule = backend.device(Operation::QueryDevice, device)?.granularity.bytes();
    let mut one =
        Full::of(backend, &PhysicalMemory::create(backend, granule, Properties::on(device))?, 1000)?;
    let mut chosen = Full::of(any, &PhysicalMemory::create(any, granule, Properties::on(device))?, 1000)?;
    let plan = Plan::samples(300).together(Full::<B>::LOOKUPS).at_most(TARGET);
    scene.compare_whole("lookup, 1000 mappings", &*baseline, plan, || chosen.look(), || one.look())
}

/// Runs a cycle of all calls. Both use the same addresses alternately, since a driver's times depend on them.
fn cycle<B: Backend>(backend: &B, device: DeviceId, at: Address, size: Bytes) -> Answer<Sample<(), 6>> {
    let room = Region::builder(backend).on(device).reserve(size).at(Placement::Exact(at));
    let mut region = room.build()?;
    let answer = calls::through(backend, device, &mut region, size);
    region.close(nothing_runs())?;
    answer
}
