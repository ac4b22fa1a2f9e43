//! A backend that is chosen at run time beside the same one by its type.

use super::calls;
use super::mappings::Full;
use crate::allocator::{Pooled, pairs};
use crate::scene::{Plan, Scene};
use crate::stop::Answer;
use gpu_vmm_core::{Bytes, Physical, Properties, Region, Stream, Workbench};

/// What choosing at run time may take.
const AT_MOST: f64 = 1.01;

/// So many pairs of the pool are timed together.
const PAIRS: u64 = 1000;

pub(crate) fn measure<B: Workbench, A: Workbench>(scene: &mut Scene<'_, B, A>) -> Answer {
    let (backend, any, device) = (scene.backend, scene.any, scene.device);
    let beside = format!("{}'s own type", backend.vendor());
    for (size, turns) in [(Bytes::mib(2), 2000), (Bytes::mib(256), 400)] {
        let mut one = Region::builder(backend).on(device).reserve(size).build()?;
        let mut chosen = Region::builder(any).on(device).reserve(size).build()?;
        let plan = Plan::turns(turns).at_most(AT_MOST);
        let times = scene.take(
            plan,
            || calls::through(any, device, &mut chosen, size),
            || calls::through(backend, device, &mut one, size),
        )?;
        let ([.., ours], [.., others]) = (&times.ours, &times.beside);
        scene.row(format!("{size}: full cycle"), &*beside, plan, ours, others);
    }
    let plan = Plan::turns(300).together(PAIRS).at_most(AT_MOST);
    for size in [Bytes::kib(4), Bytes::mib(4)] {
        let one = Pooled::new(backend, device, Stream::DEFAULT)?;
        let chosen = Pooled::new(any, device, Stream::DEFAULT)?;
        scene.compare_whole(
            format!("pool: {size}, pair"),
            &*beside,
            plan,
            || pairs(&chosen, size, PAIRS),
            || pairs(&one, size, PAIRS),
        )?;
    }
    let granule = backend.device("bench", device)?.granularity.bytes();
    let mut one = Full::of(backend, &Physical::create(backend, granule, Properties::on(device))?, 1000)?;
    let mut chosen = Full::of(any, &Physical::create(any, granule, Properties::on(device))?, 1000)?;
    let plan = Plan::turns(300).together(Full::<B>::LOOKUPS).at_most(AT_MOST);
    scene.compare_whole("lookup, 1000 mappings", &*beside, plan, || chosen.look(), || one.look())
}
