//! New memory of a large size in one call.

use crate::sampling::timed;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{Bytes, Region};
use gpu_vmm_testkit::TestKit;

const SIZE: Bytes = Bytes::gib(8);

/// The limit of the library's time relative to an allocation's.
const TARGET: f64 = 1.25;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    scene.needs(Bytes(2 * SIZE.0))?;
    let (backend, device, raw) = (scene.backend, scene.device, scene.raw.clone());
    let baseline = raw.name("cuMemAlloc", "hipMalloc", "mmap");
    // Memory that was just freed is sometimes available at once, and sometimes cleared first: from 0.4 to 35 ms.
    for (how, plan) in [
        ("not used before", Plan::samples(24).at_most(TARGET).kept(Bytes(2 * SIZE.0), scene.memory()?)),
        ("given back just before", Plan::samples(40)),
    ] {
        let ours = || {
            timed(|| {
                let mut region = Region::builder(backend).on(device).reserve(SIZE).build()?;
                region.grow_to(SIZE)?;
                Ok(Closing(Some(region)))
            })
        };
        let other = || {
            let (took, plain) = timed(|| raw.plain(SIZE))?;
            let raw = raw.clone();
            Ok((took, Freeing(move || raw.free(plain))))
        };
        scene.compare(format!("{SIZE}, {how}"), &*baseline, plan, ours, other)?;
    }
    Ok(())
}

/// Closes a region when it is dropped; no work may run on it then.
pub(super) struct Closing<B: TestKit>(pub(super) Option<Region<B>>);

impl<B: TestKit> Drop for Closing<B> {
    fn drop(&mut self) {
        // Memory that cannot be freed is missing in the next sample, which reports it.
        let _ = self.0.take().map(|region| region.close(nothing_runs()));
    }
}

/// Frees a resource when it is dropped.
pub(super) struct Freeing<F: FnMut() -> StepResult>(pub(super) F);

impl<F: FnMut() -> StepResult> Drop for Freeing<F> {
    fn drop(&mut self) {
        let _ = (self.0)(); // as above
    }
}
