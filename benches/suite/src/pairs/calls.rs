//! Each call through the library compared with the driver's own, in one cycle at the same addresses. If nothing else is
//! mapped nearby, a driver creates and drops page tables for each mapping, and set access takes 35 microseconds instead of
//! 21.

use crate::raw::Raw;
use crate::sampling::Sample;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{Access, Address, Backend, Bytes, DeviceId, PhysicalMemory, Properties, Region};
use gpu_vmm_testkit::TestKit;
use std::time::{Duration, Instant};

/// The parts of a cycle, and the whole cycle.
const PARTS: [&str; 6] = ["create", "map", "set access", "unmap", "release", "full cycle"];

/// The limit of the whole cycle's ratio.
const TARGET: f64 = 1.02;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    for (size, samples) in
        [(Bytes::mib(2), 2000), (Bytes::mib(32), 1000), (Bytes::mib(256), 400), (Bytes::gib(1), 200)]
    {
        scene.needs(size)?;
        cycle(scene, size, samples)?;
    }
    addresses(scene, Bytes::gib(64))
}

fn cycle<B: TestKit>(scene: &mut Scene<'_, B>, size: Bytes, samples: usize) -> StepResult {
    let mut region = scene.room(size)?;
    let (backend, device, raw) = (scene.backend, scene.device, scene.raw.clone());
    let room = Room::of(scene, &region)?;
    let at = room.at;
    let plan = Plan::samples(samples);
    let times =
        scene.take(plan, || through(backend, device, &mut region, size), || by_hand(&raw, at, size))?;
    room.end(scene)?;
    for (part, (ours, others)) in PARTS.into_iter().zip(times.ours.iter().zip(&times.baseline)) {
        let is_whole = part == "full cycle";
        let plan = if is_whole { plan.at_most(TARGET) } else { plan };
        scene.row(format!("{size}: {part}"), "driver's own call", plan, ours, others);
    }
    Ok(())
}

/// Addresses for the driver's own calls.
pub(super) struct Room {
    pub(super) at: Address,
    own: Option<Bytes>,
}

impl Room {
    /// Returns addresses of a region in which nothing is mapped meanwhile. For host memory, reserves addresses, the only ones
    /// that its calls can reach.
    pub(super) fn of<B: TestKit>(scene: &Scene<'_, B>, region: &Region<B>) -> StepResult<Self> {
        if !scene.is_host() {
            return Ok(Self { at: region.address(), own: None });
        }
        let size = region.reserved();
        Ok(Self { at: scene.raw.reserve(size)?, own: Some(size) })
    }

    pub(super) fn end<B: TestKit>(self, scene: &Scene<'_, B>) -> StepResult {
        self.own.map_or(Ok(()), |size| scene.raw.free_addresses(self.at, size))
    }
}

fn through<B: Backend>(
    backend: &B,
    device: DeviceId,
    region: &mut Region<B>,
    size: Bytes,
) -> StepResult<Sample<(), 6>> {
    let start = Instant::now();
    let memory = PhysicalMemory::create(backend, size, Properties::on(device))?;
    let created = Instant::now();
    region.map(Bytes::ZERO, &memory)?;
    let mapped = Instant::now();
    region.set_access(Bytes::ZERO, size, device, Access::ReadWrite)?;
    let opened = Instant::now();
    region.unmap(Bytes::ZERO, size, nothing_runs())?;
    let unmapped = Instant::now();
    drop(memory);
    Ok((parts([start, created, mapped, opened, unmapped, Instant::now()]), ()))
}

fn by_hand(raw: &Raw, at: Address, size: Bytes) -> StepResult<Sample<(), 6>> {
    let start = Instant::now();
    let handle = raw.create(size)?;
    let created = Instant::now();
    raw.map(at, handle)?;
    let mapped = Instant::now();
    raw.open(at, size)?;
    let opened = Instant::now();
    raw.unmap(at, size)?;
    let unmapped = Instant::now();
    raw.release(handle)?;
    Ok((parts([start, created, mapped, opened, unmapped, Instant::now()]), ()))
}

/// Returns the times of the parts, and of the whole cycle.
fn parts([start, created, mapped, opened, unmapped, end]: [Instant; 6]) -> [Duration; 6] {
    [created - start, mapped - created, opened - mapped, unmapped - opened, end - unmapped, end - start]
}

/// Measures reserving and freeing addresses.
fn addresses<B: TestKit>(scene: &mut Scene<'_, B>, size: Bytes) -> StepResult {
    let (backend, device, raw) = (scene.backend, scene.device, scene.raw.clone());
    let ours = || Ok(Region::builder(backend).on(device).reserve(size).build()?.close(nothing_runs())?);
    let other = || raw.free_addresses(raw.reserve(size)?, size);
    scene.compare_whole(
        format!("{size}: reserve, free"),
        "driver's own calls",
        Plan::samples(2000),
        ours,
        other,
    )
}
