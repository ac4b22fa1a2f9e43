//! The first suspension to ordinary memory, for which nothing was prepared. It is compared with a ring of page-locked buffers that
//! is written by hand over the driver's calls: each thread has two buffers and two streams, and copies into fresh large pages.

use super::pieces::{grow_by, has_pattern};
use crate::raw::{Pinned, Plain, Raw, RawStream};
use crate::sampling::{Times, timed};
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::extend::HostPages;
use gpu_vmm_core::{BackingStore, Bytes, Operation, Region, StagingRing};
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const SAMPLES: usize = 3;

/// The size of one of the ring's buffers.
const BUFFER: Bytes = Bytes::mib(8);

/// The size of one piece of the region's memory.
const PIECE: Bytes = Bytes::mib(16);

/// Compares the suspension of `size` bytes, and the first resume.
pub(super) fn measure<B: TestKit>(scene: &mut Scene<'_, B>, size: Bytes) -> StepResult {
    let (device, backend) = (scene.device, scene.backend);
    let mut region: Region<B> = scene.room(size)?;
    grow_by(&mut region, PIECE, size)?;
    region.write_pattern(device, Bytes::ZERO, size, 1)?;
    let ring = ByHand::new(scene, size)?;
    let threads = ring.streams.len();
    let plan = Plan::samples(SAMPLES);
    let times: Times<2> = scene.take(
        plan,
        || {
            let ([out], store) = timed(|| {
                let ring = StagingRing::new(backend, StagingRing::<B>::threads(), StagingRing::<B>::CHUNK)?;
                let store = BackingStore::pageable(ring);
                region.suspend(&store, nothing_runs())?;
                Ok(store)
            })?;
            let ([back], _) = timed(|| Ok(region.resume()?))?;
            Ok(([out, back], store))
        },
        || {
            let ([out], (pages, buffers)) = timed(|| ring.out())?;
            let ([back], ()) = timed(|| ring.back(&pages, &buffers))?;
            buffers.into_iter().flatten().try_for_each(|buffer| ring.raw.unpin(buffer))?;
            Ok(([out, back], pages))
        },
    )?;
    has_pattern(&region, device, size, 1)?;
    region.close(nothing_runs())?;
    let by_hand = format!("ring of {threads} threads by hand, buffers of {BUFFER}");
    let ways = ["first suspend to pageable memory, nothing prepared", "resume from it"];
    for (way, (ours, others)) in ways.into_iter().zip(times.ours.iter().zip(&times.baseline)) {
        scene.row(format!("{size} in handles of {PIECE}: {way}"), by_hand.clone(), plan, ours, others);
    }
    Ok(())
}

/// A plain allocation, and the streams of the threads that copy it.
struct ByHand {
    raw: Raw,
    plain: Plain,
    streams: Vec<[RawStream; 2]>,
}

impl ByHand {
    fn new<B: TestKit>(scene: &Scene<'_, B>, size: Bytes) -> StepResult<Self> {
        let raw = scene.raw.clone();
        let threads = StagingRing::<B>::threads();
        let streams = (0..threads).map(|_| Ok([raw.stream()?, raw.stream()?])).collect::<StepResult<_>>()?;
        let plain = raw.plain(size)?;
        Ok(Self { raw, plain, streams })
    }

    /// Pins the buffers and copies everything to new pages.
    fn out(&self) -> StepResult<(HostPages, Vec<[Pinned; 2]>)> {
        let pages = HostPages::new(Operation::Suspend, self.plain.size)?;
        let pin = |_| Ok([self.raw.pin_unwritten(BUFFER)?, self.raw.pin_unwritten(BUFFER)?]);
        let buffers = (0..self.streams.len()).map(pin).collect::<StepResult<Vec<_>>>()?;
        self.each(&buffers, |next, [first, second], streams| {
            let mut slots = [(first, streams[0], None), (second, streams[1], None)];
            for (buffer, stream, part) in &mut slots {
                *part = next();
                if let Some(from) = *part {
                    self.raw.copy_out(*buffer, from, *stream)?;
                }
            }
            for turn in 0.. {
                let (buffer, stream, part) = &mut slots[turn % 2];
                let Some(from) = *part else { return Ok(()) };
                self.raw.wait_for(*stream)?;
                buffer.copy_to(self.place(&pages, from), from.size);
                *part = next();
                if let Some(from) = *part {
                    self.raw.copy_out(*buffer, from, *stream)?;
                }
            }
            Ok(())
        })?;
        Ok((pages, buffers))
    }

    /// Copies everything back.
    fn back(&self, pages: &HostPages, buffers: &[[Pinned; 2]]) -> StepResult {
        self.each(buffers, |next, buffers, streams| {
            for turn in 0.. {
                let (buffer, stream) = (buffers[turn % 2], streams[turn % 2]);
                let Some(to) = next() else { break };
                self.raw.wait_for(stream)?;
                buffer.copy_from(self.place(pages, to), to.size);
                self.raw.copy_back(to, buffer, stream)?;
            }
            streams.iter().try_for_each(|stream| self.raw.wait_for(*stream))
        })
    }

    /// Returns the place of a part in the pages.
    fn place(&self, pages: &HostPages, part: Plain) -> *mut u8 {
        pages.start().as_ptr().wrapping_add((part.at.0 - self.plain.at.0) as usize)
    }

    /// Runs `work` on each thread with its buffers and streams; `next` returns the parts that no thread has taken.
    fn each(
        &self,
        buffers: &[[Pinned; 2]],
        work: impl Fn(&dyn Fn() -> Option<Plain>, [Pinned; 2], [RawStream; 2]) -> StepResult + Sync,
    ) -> StepResult {
        let taken = AtomicU64::new(0);
        let next = || {
            let offset = Bytes(BUFFER.0 * taken.fetch_add(1, Ordering::Relaxed));
            let left = self.plain.size - offset;
            (!left.is_zero()).then(|| Plain { at: self.plain.at + offset, size: left.min(BUFFER) })
        };
        let (next, work) = (&next, &work);
        thread::scope(|scope| {
            let threads = buffers.iter().zip(&self.streams).map(|(buffers, streams)| {
                scope.spawn(move || {
                    self.raw.enter()?;
                    work(next, *buffers, *streams)
                })
            });
            let ended = threads.collect::<Vec<_>>().into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Stop::Failed("a thread panicked".to_owned())))
            });
            ended.fold(Ok(()), StepResult::and)
        })
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // Memory that cannot be freed is missing in the next pair, which reports it.
        drop(self.raw.free(self.plain));
    }
}
