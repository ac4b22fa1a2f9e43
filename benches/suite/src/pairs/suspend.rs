//! Releases a region's memory and gets it again at the same addresses. With its contents, this is compared with plain copies
//! between an allocation and page-locked memory; without them, with the driver's own unmap, release, create, map and set
//! access.

use super::first_suspend;
use super::pieces::{ByHand, grow_by, has_pattern};
use crate::raw::{Pinned, Plain, Raw, RawStream};
use crate::sampling::{Times, timed};
use crate::scene::{Plan, Scene, nothing_runs, power_of_two};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{BackingStore, Bytes, Region, StagingRing};
use gpu_vmm_testkit::TestKit;
use std::sync::Arc;
use std::time::Duration;

const GIB: Bytes = Bytes::gib(1);

/// The number of round trips of the contents.
const SAMPLES: usize = 5;

/// The amount of host memory that is left unused.
const LEFT: Bytes = Bytes::gib(8);

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let size = scene.fitting(2, Bytes::mib(64), Bytes::gib(8))?;
    for piece in [GIB, Bytes::mib(64), Bytes::mib(2)].into_iter().filter(|piece| *piece <= size) {
        without(scene, size, piece)?;
    }
    if scene.is_host() {
        return Ok(()); // it has no streams
    }
    let in_host = power_of_two(Bytes(available()?.saturating_sub(LEFT).0 / 2));
    if in_host < Bytes::mib(64) {
        return Err(Stop::Skipped(format!("the host has little more than {LEFT}, which must stay free")));
    }
    let size = size.min(in_host);
    let store = BackingStore::pinned(scene.backend, size)?;
    let copies = Copies::new(scene, size)?;
    // The driver clears memory that was just freed before it can be allocated again: an immediate resume waits for that.
    for piece in [GIB, Bytes::mib(64)].into_iter().filter(|piece| *piece <= size) {
        with(scene, &copies, (&store, "page-locked memory"), piece, Duration::ZERO)?;
        with(scene, &copies, (&store, "page-locked memory"), piece, Duration::from_millis(500))?;
    }
    drop((store, copies));

    first_suspend::measure(scene, size)?;
    let ring =
        Arc::new(StagingRing::new(scene.backend, StagingRing::<B>::threads(), StagingRing::<B>::CHUNK)?);
    let pageable = BackingStore::pageable(Arc::clone(&ring));
    let kept = BackingStore::pageable_keeping(Arc::clone(&ring), size);
    let copies = Copies::new(scene, size)?;
    with(scene, &copies, (&pageable, "pageable memory"), size.min(Bytes::mib(64)), Duration::ZERO)?;
    with(scene, &copies, (&kept, "pageable memory that is kept"), size.min(Bytes::mib(64)), Duration::ZERO)?;
    drop((pageable, kept, copies));
    let file = BackingStore::file(std::env::temp_dir(), ring);
    let copies = Copies::new(scene, size.min(GIB))?;
    with(scene, &copies, (&file, "a file"), size.min(GIB), Duration::ZERO)
}

/// Returns the host memory that a program can still get, by the system's estimate.
fn available() -> StepResult<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().parse().ok())
        .ok_or_else(|| Stop::Skipped("the system does not report its available memory".to_owned()))
}

fn without<B: TestKit>(scene: &mut Scene<'_, B>, size: Bytes, piece: Bytes) -> StepResult {
    let mut region = scene.room(size)?;
    grow_by(&mut region, piece, size)?;
    let mut by_hand = ByHand::new(scene, size, piece)?;
    by_hand.create(Raw::create)?;
    by_hand.map()?;
    let store = BackingStore::nothing();
    scene.compare_whole(
        format!("{size} in handles of {piece}, without contents: suspend, resume"),
        "driver's own calls",
        Plan::samples(2 * SAMPLES),
        || {
            region.suspend(&store, nothing_runs())?;
            Ok(region.resume().map(drop)?)
        },
        || {
            by_hand.unmap()?;
            by_hand.release()?;
            by_hand.create(Raw::create)?;
            by_hand.map()
        },
    )?;
    Ok(region.close(nothing_runs())?)
}

fn with<B: TestKit>(
    scene: &mut Scene<'_, B>,
    copies: &Copies,
    (store, kept): (&BackingStore<B>, &str),
    piece: Bytes,
    asleep: Duration,
) -> StepResult {
    let (device, size) = (scene.device, copies.plain.size);
    let mut region: Region<B> = scene.room(size)?;
    grow_by(&mut region, piece, size)?;
    region.write_pattern(device, Bytes::ZERO, size, 1)?;
    let plan = Plan::samples(SAMPLES);
    let times: Times<2> = scene.take(
        plan,
        || {
            let ([out], ()) = timed(|| Ok(region.suspend(store, nothing_runs()).map(drop)?))?;
            std::thread::sleep(asleep);
            let ([back], ()) = timed(|| Ok(region.resume().map(drop)?))?;
            Ok(([out, back], ()))
        },
        || {
            let ([out], ()) = timed(|| copies.out())?;
            let ([back], ()) = timed(|| copies.back())?;
            Ok(([out, back], ()))
        },
    )?;
    has_pattern(&region, device, size, 1)?;
    region.close(nothing_runs())?;
    let when = if asleep.is_zero() { "at once".to_owned() } else { format!("after {asleep:?}") };
    let ways = [format!("suspend to {kept}, resume {when}"), format!("resume {when} from {kept}")];
    for (way, (ours, others)) in ways.into_iter().zip(times.ours.iter().zip(&times.baseline)) {
        let what = format!("{size} in handles of {piece}: {way}");
        scene.row(what, "plain copy, page-locked memory", plan, ours, others);
    }
    Ok(())
}

/// The plain copies: an allocation of the device's, as much page-locked memory, and a stream.
struct Copies {
    raw: Raw,
    stream: RawStream,
    plain: Plain,
    /// Each with the size of one copy: a single allocation of all of it may fail.
    pinned: Vec<Pinned>,
}

impl Copies {
    fn new<B: TestKit>(scene: &Scene<'_, B>, size: Bytes) -> StepResult<Self> {
        let raw = scene.raw.clone();
        let (stream, plain) = (raw.stream()?, raw.plain(size)?);
        let mut this = Self { raw, stream, plain, pinned: Vec::new() };
        let piece = this.piece();
        for _ in 0..size.0 / piece.0 {
            this.pinned.push(this.raw.pin(piece)?);
        }
        Ok(this)
    }

    /// Returns the size of one copy.
    fn piece(&self) -> Bytes {
        self.plain.size.min(GIB)
    }

    /// Returns the parts of the allocation, each with its page-locked memory.
    fn parts(&self) -> impl Iterator<Item = (Plain, Pinned)> {
        let piece = self.piece();
        let part = move |number| Plain { at: self.plain.at + Bytes(piece.0 * number), size: piece };
        (0..).map(part).zip(self.pinned.iter().copied())
    }

    fn out(&self) -> StepResult {
        self.parts().try_for_each(|(plain, pinned)| self.raw.copy_out(pinned, plain, self.stream))?;
        self.raw.wait_for(self.stream)
    }

    fn back(&self) -> StepResult {
        self.parts().try_for_each(|(plain, pinned)| self.raw.copy_back(plain, pinned, self.stream))?;
        self.raw.wait_for(self.stream)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // Memory that cannot be freed is missing in the next pair, which reports it.
        self.pinned.drain(..).for_each(|pinned| drop(self.raw.unpin(pinned)));
        drop(self.raw.free(self.plain));
    }
}
