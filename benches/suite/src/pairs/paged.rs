//! A region that grows by pages from the caller's list, as a paged cache does, compared with the driver's own calls.

use super::calls::Room;
use crate::raw::{Handle, Raw};
use crate::sampling::Sample;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{Address, Backend, Bytes, PhysicalMemory, Properties, Region};
use gpu_vmm_testkit::TestKit;
use std::slice;
use std::time::Instant;

/// The number of pages of a sequence.
const PAGES: u64 = 16;

/// The parts of a cycle, and the whole cycle.
const PARTS: [&str; 3] = ["16 pages appended", "16 pages unmapped", "appended and unmapped"];

/// The limit of the whole cycle's ratio.
const TARGET: f64 = 1.1;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let (backend, raw) = (scene.backend, scene.raw.clone());
    let page = backend.granularity().bytes();
    let size = page * PAGES;
    scene.needs(size + size)?;
    let mut region = scene.room(size)?;
    let room = Room::of(scene, &region)?;
    let create = |_| PhysicalMemory::create(backend, page, Properties::on(scene.device));
    let list = (0..PAGES).map(create).collect::<gpu_vmm_core::Result<Vec<_>>>()?;
    let handles = list.iter().map(|_| raw.create(page)).collect::<StepResult<Vec<_>>>()?;
    let plan = Plan::samples(500);
    let times =
        scene.take(plan, || through(&mut region, &list, size), || by_hand(&raw, room.at, page, &handles))?;
    handles.into_iter().try_for_each(|handle| raw.release(handle))?;
    room.end(scene)?;
    for (part, (ours, others)) in PARTS.into_iter().zip(times.ours.iter().zip(&times.baseline)) {
        let is_whole = part == PARTS[2];
        let plan = if is_whole { plan.at_most(TARGET) } else { plan };
        scene.row(format!("{page} each: {part}"), "driver's own calls", plan, ours, others);
    }
    Ok(())
}

fn through<B: Backend>(
    region: &mut Region<B>,
    list: &[PhysicalMemory<B>],
    size: Bytes,
) -> StepResult<Sample<(), 3>> {
    let start = Instant::now();
    list.iter().try_for_each(|page| region.grow_with(slice::from_ref(page)).map(drop))?;
    let appended = Instant::now();
    region.unmap(Bytes::ZERO, size, nothing_runs())?;
    let end = Instant::now();
    Ok(([appended - start, end - appended, end - start], ()))
}

fn by_hand(raw: &Raw, at: Address, page: Bytes, handles: &[Handle]) -> StepResult<Sample<(), 3>> {
    let start = Instant::now();
    for (handle, number) in handles.iter().zip(0..) {
        raw.map(at + page * number, *handle)?;
        raw.open(at + page * number, page)?;
    }
    let appended = Instant::now();
    raw.unmap(at, page * PAGES)?;
    let end = Instant::now();
    Ok(([appended - start, end - appended, end - start], ()))
}
