//! Verifying a snapshot by reading all of it.

use crate::format::Entry;
use crate::{SnapshotFile, SnapshotStats};
use gpu_vmm_core::{Bytes, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// More threads are not faster than memory.
const MAX_THREADS: usize = 8;

impl SnapshotFile {
    /// Reads every block, including those in other files, and verifies its checksum. `progress` is called with the size of each
    /// block, by several threads at once.
    ///
    /// # Errors
    ///
    /// As [`SnapshotFile::read_block`], for the first damaged block found.
    pub fn verify(&self, progress: &(dyn Fn(Bytes) + Sync)) -> Result<SnapshotStats> {
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let work = || {
            let answer = self.verify_some(&next, &stop, progress);
            if answer.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            answer
        };
        thread::scope(|scope| {
            // Each thread only saves time, and the system may have none to give.
            let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..threads).filter_map(start).collect();
            let answers = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            answers.fold(work(), Result::and)
        })?;
        Ok(self.stats())
    }

    /// Reads blocks that no other thread has taken, until none is left.
    fn verify_some(
        &self,
        next: &AtomicU64,
        stop: &AtomicBool,
        progress: &(dyn Fn(Bytes) + Sync),
    ) -> Result<()> {
        let mut buffer = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= self.parts.cut.blocks {
                break;
            }
            let (memory, block) = self.parts.cut.name(place);
            let Some((at, length)) = self.parts.cut.place(memory, block) else { break };
            if !matches!(self.parts.entries.get(at), Some(Entry::Zero)) {
                if buffer.len() < length {
                    buffer.resize(length, 0);
                }
                self.read_block(memory, block, &mut buffer[..length])?;
            }
            progress(Bytes(length as u64));
        }
        Ok(())
    }
}
