//! Mapping kept memory compared with new memory: the gain of a program that keeps memory whose addresses it releases, as a
//! pool does. Drivers clear memory when it is freed, so that new memory is cheap to create and expensive to free. So the
//! whole exchange is compared, as well as the creation alone.

use super::fresh::Closing;
use crate::sampling::timed;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Access, Bytes, PhysicalMemory, Properties, Region};
use gpu_vmm_testkit::TestKit;

/// The limit of kept memory's time relative to new memory's, at 1 GiB.
const TARGET: f64 = 0.15;

const SIZES: [Bytes; 4] = [Bytes::mib(2), Bytes::mib(128), Bytes::gib(1), Bytes::gib(4)];

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    for size in SIZES {
        scene.needs(Bytes(2 * size.0))?;
        let room = scene.memory()?.saturating_sub(size);
        kept(scene, size, plan(size, 60).kept(size, room))?;
    }
    for size in SIZES {
        exchange(scene, size, plan(size, 30).settled(size))?;
    }
    Ok(())
}

fn plan(size: Bytes, samples: usize) -> Plan {
    if size == Bytes::gib(1) { Plan::samples(samples).at_most(TARGET) } else { Plan::samples(samples) }
}

fn kept<B: TestKit>(scene: &mut Scene<'_, B>, size: Bytes, plan: Plan) -> StepResult {
    let (backend, device) = (scene.backend, scene.device);
    let kept = PhysicalMemory::create(backend, size, Properties::on(device))?;
    let mut at = scene.room(size)?;
    let room = |scene: &Scene<'_, B>| scene.room(size);
    // One for each sample, and for the samples that warm up.
    let samples = scene.samples(plan);
    let mut rooms =
        (0..samples + samples.div_ceil(10)).map(|_| room(scene)).collect::<StepResult<Vec<_>>>()?;
    let again = || {
        let (took, ()) = timed(|| {
            at.map(Bytes::ZERO, &kept)?;
            Ok(at.set_access(Bytes::ZERO, size, device, Access::ReadWrite)?)
        })?;
        at.unmap(Bytes::ZERO, size, nothing_runs())?;
        Ok((took, ()))
    };
    let fresh = || {
        let mut region = rooms.pop().ok_or_else(|| Stop::Failed("no addresses are left".to_owned()))?;
        let (took, ()) = timed(|| Ok(region.grow_to(size).map(drop)?))?;
        Ok((took, Closing(Some(region))))
    };
    scene.compare(format!("{size}: mapped"), "new memory, by gpu-vmm", plan, again, fresh)
}

/// Releases the memory and gets as much again.
fn exchange<B: TestKit>(scene: &mut Scene<'_, B>, size: Bytes, plan: Plan) -> StepResult {
    let (backend, device) = (scene.backend, scene.device);
    let kept = PhysicalMemory::create(backend, size, Properties::on(device))?;
    let (mut one, mut other) = (scene.room(size)?, scene.room(size)?);
    let map = |region: &mut Region<B>| -> StepResult {
        region.map(Bytes::ZERO, &kept)?;
        Ok(region.set_access(Bytes::ZERO, size, device, Access::ReadWrite)?)
    };
    map(&mut one)?;
    other.grow_to(size)?;
    let again = || {
        one.unmap(Bytes::ZERO, size, nothing_runs())?;
        map(&mut one)
    };
    let fresh = || {
        let _ = other.shrink_to(Bytes::ZERO, nothing_runs())?;
        Ok(other.grow_to(size).map(drop)?)
    };
    scene.compare_whole(format!("{size}: unmapped, mapped"), "given back, created anew", plan, again, fresh)
}
