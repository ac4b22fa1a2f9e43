//! Memory that another device uses: the cost of its access, compared with the owner alone, and its copies from a region of
//! the owner, compared with the driver's own copies between plain allocations.

use super::fresh::Freeing;
use super::pieces::{grow_by, has_pattern};
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Access, Bytes, DeviceId, PhysicalMemory, Properties, Region};
use gpu_vmm_testkit::TestKit;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let owner = scene.device;
    let reached = |peer: DeviceId| -> StepResult<bool> {
        Ok(peer != owner
            && scene.backend.can_access(peer, owner)?
            && scene.backend.can_access(owner, peer)?)
    };
    let mut found = None;
    for device in scene.backend.devices() {
        if found.is_none() && reached(device.id)? {
            found = Some(device.id);
        }
    }
    let no_peer = || Stop::Skipped(format!("no other device can access {owner}'s memory"));
    let peer = found.ok_or_else(no_peer)?;
    let granule = scene.backend.granularity().bytes();
    let size = scene.fitting(1, Bytes::mib(64).max(granule), Bytes::gib(1))?;
    for handles in [1, 4, 16, 64, 512].into_iter().filter(|handles| size.0 / handles >= granule.0) {
        grants(scene, peer, size, handles)?;
    }
    if scene.is_host() {
        return Ok(()); // its devices cannot access each other's plain allocations
    }
    for (size, samples) in [(Bytes::mib(2), 1000), (Bytes::mib(64), 300), (Bytes::gib(1), 100)] {
        copies(scene, peer, size.max(granule), samples)?;
    }
    Ok(())
}

/// Measures handles of one size, with access for the owner and the peer, or for the owner alone.
fn grants<B: TestKit>(scene: &mut Scene<'_, B>, peer: DeviceId, size: Bytes, handles: u64) -> StepResult {
    let (backend, owner) = (scene.backend, scene.device);
    let piece = Bytes(size.0 / handles);
    let create = |_| Ok(PhysicalMemory::create(backend, piece, Properties::on(owner))?);
    let memory = (0..handles).map(create).collect::<StepResult<Vec<_>>>()?;
    let cycle = |devices: &[DeviceId]| {
        let mut region = Region::builder(backend).on(owner).reserve(size).build()?;
        for memory in &memory {
            region.map(region.end(), memory)?;
        }
        for device in devices {
            region.set_access(Bytes::ZERO, size, *device, Access::ReadWrite)?;
        }
        Ok(region.close(nothing_runs())?)
    };
    scene.compare_whole(
        format!("{size} in handles of {piece}: map, set access for owner and peer, unmap"),
        "owner alone, by gpu-vmm",
        Plan::samples(20),
        || cycle(&[owner, peer]),
        || cycle(&[owner]),
    )
}

/// Measures copies by the peer.
fn copies<B: TestKit>(scene: &mut Scene<'_, B>, peer: DeviceId, size: Bytes, samples: usize) -> StepResult {
    scene.needs(Bytes(2 * size.0))?;
    let (backend, owner) = (scene.backend, scene.device);
    let mut source = Region::builder(backend).on(owner).reserve(size).access(peer, Access::Read).build()?;
    let mut target = Region::builder(backend).on(peer).reserve(size).build()?;
    grow_by(&mut source, size, size)?;
    grow_by(&mut target, size, size)?;
    // Written by kernels, which also creates both devices' contexts.
    source.write_pattern(owner, Bytes::ZERO, size, 1)?;
    target.write_pattern(peer, Bytes::ZERO, size, 2)?;
    let (here, there) = (scene.raw.clone(), scene.raw.on(peer));
    here.enter()?;
    let from = here.plain(size)?;
    // The owner is current again at the end.
    let _from = Freeing(|| here.enter().and_then(|()| here.free(from)));
    there.enter()?;
    let to = there.plain(size)?;
    let _to = Freeing(|| there.free(to));
    there.enable_peer(owner)?;
    let baseline = there.name("cuMemcpyPeer", "hipMemcpyPeer", "no copy");
    scene.compare_whole(
        format!("{size}: a copy by the peer"),
        baseline,
        Plan::samples(samples),
        || Ok(target.copy_from(Bytes::ZERO, &source, Bytes::ZERO, size)?),
        || {
            there.copy_peer(to, from, owner)?;
            there.synchronize()
        },
    )?;
    has_pattern(&target, peer, size, 1)?;
    source.close(nothing_runs())?;
    Ok(target.close(nothing_runs())?)
}
