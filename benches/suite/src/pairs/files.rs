//! Contents in files: suspending to a file and snapshots, compared with as many threads that write and read plain buffers.
//!
//! The files are in the temporary folder, which the environment variable `TMPDIR` names.

use super::plain_file::{PlainFile, forget_pages};
use crate::sampling::{Sample, Times, timed};
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{BackingStore, Bytes, DeviceId, Region, StagingRing, WaitFor};
use gpu_vmm_snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm_testkit::TestKit;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// The number of round trips.
const SAMPLES: usize = 3;

/// The largest ratio of the times: nine tenths of the plain threads' speed.
const MOST: f64 = 1.11;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    // A snapshot is restored next to its region.
    let size = scene.fitting(3, Bytes::mib(64), Bytes::gib(2))?;
    let mut region = scene.room(size)?;
    region.grow_to(size)?;
    region.write_pattern(scene.device, Bytes::ZERO, size, 1)?;
    let threads = StagingRing::<B>::threads();
    let ring = Arc::new(StagingRing::new(scene.backend, threads, StagingRing::<B>::CHUNK)?);
    let folder = std::env::temp_dir();
    let direct = PlainFile { folder: folder.clone(), size, threads, direct: true, durable: false };
    let direct = if direct.write().is_ok() { direct } else { PlainFile { direct: false, ..direct } };
    // A snapshot is on the disk when it is written.
    let durable = PlainFile { durable: true, ..direct.clone() };
    let cached = PlainFile { direct: false, ..durable.clone() };

    let store = BackingStore::file(folder, Arc::clone(&ring));
    compare(scene, &direct, ["suspend to a file", "resume from a file"], || {
        let ([out], _) = timed(|| Ok(region.suspend(&store, nothing_runs())?))?;
        let ([back], _) = timed(|| Ok(region.resume()?))?;
        Ok(([out, back], ()))
    })?;
    let saved = Saved { path: direct.folder.join(format!("gpu-vmm-bench-{}.snapshot", std::process::id())) };
    let device = scene.device;
    compare(scene, &durable, ["write a snapshot", "restore it from the disk"], || {
        saved.round_trip(&ring, &region, device, true)
    })?;
    compare(scene, &cached, ["write a snapshot", "restore it from the page cache"], || {
        saved.round_trip(&ring, &region, device, false)
    })?;
    Ok(region.close(nothing_runs())?)
}

/// Measures two operations, compared with the threads' writes and reads.
fn compare<B: TestKit>(
    scene: &mut Scene<'_, B>,
    plain: &PlainFile,
    names: [&str; 2],
    ours: impl FnMut() -> StepResult<Sample<(), 2>>,
) -> StepResult {
    let plan = Plan::samples(SAMPLES).at_most(MOST);
    let times: Times<2> = scene.take(plan, ours, || {
        let ([out], file) = timed(|| plain.write())?;
        let ([back], ()) = timed(|| plain.read(&file))?;
        Ok(([out, back], ()))
    })?;
    for (name, (ours, others)) in names.into_iter().zip(times.ours.iter().zip(&times.baseline)) {
        scene.row(format!("{}: {name}", plain.size), plain.name(), plan, ours, others);
    }
    Ok(())
}

/// A snapshot's file. Dropping it removes the file.
struct Saved {
    path: PathBuf,
}

impl Saved {
    /// Writes the snapshot and restores it at other addresses. With `cold`, the page cache does not have it in between.
    fn round_trip<B: TestKit>(
        &self,
        ring: &StagingRing<B>,
        region: &Region<B>,
        device: DeviceId,
        cold: bool,
    ) -> StepResult<Sample<(), 2>> {
        let snapshot = Snapshot::new(ring).region(region);
        let ([out], _) = timed(|| Ok(snapshot.write(&self.path, WaitFor::all_devices())?))?;
        if cold {
            forget_pages(&self.path)?;
        }
        let ([back], restored) = timed(|| {
            let file = SnapshotFile::open(&self.path)?;
            Ok(Restore::new().relocate().regions(&file, ring)?)
        })?;
        for restored in restored {
            super::pieces::has_pattern(&restored.region, device, region.mapped(), 1)?;
            restored.region.close(nothing_runs())?;
        }
        Ok(([out, back], ()))
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        // It has not been written if the pair failed before.
        let _ = fs::remove_file(&self.path);
    }
}
