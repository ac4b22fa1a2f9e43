//! Pinned buffers for copies between devices and other stores, allocated ahead of need.
//!
//! The bytes of a list of [`Segment`]s form one stream, which is divided into chunks. Several threads work on the chunks. Each
//! has two buffers: while the device fills or drains one, the thread drains or fills the other.
#![allow(unsafe_code)]

use crate::driver::{Backend, CopyStreams, Pinned};
use crate::memory::Segment;
use crate::types::{Bytes, Detail, DriverError, Error, Lock, Operation, Result};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

/// A set of pinned (page-locked) buffers through which contents are copied.
///
/// It is shared by reference, and only one call at a time uses it: other calls wait. Creating it pins its memory, which is slow
/// (0.3 to 0.5 s per GiB on an H200's host), so create it once, ahead of need.
#[derive(Debug)]
pub struct StagingRing<B: Backend> {
    backend: B,
    chunk: Bytes,
    threads: usize,
    workers: Lock<Vec<[Box<dyn Pinned>; 2]>>,
}

/// The contents to write to a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkContents {
    /// The bytes in the buffer.
    Bytes,
    /// Zeros. The buffer is not used.
    Zeros,
}

/// A range of the stream that lies in one segment.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// The offset in the stream.
    offset: Bytes,
    place: Segment,
}

/// A buffer and the copy that uses it.
struct Slot<'a> {
    buffer: &'a dyn Pinned,
    copy_streams: CopyStreams,
    chunk: Option<Chunk>,
}

impl<B: Backend> StagingRing<B> {
    /// The recommended size of one buffer.
    pub const CHUNK: Bytes = Bytes::mib(16);

    /// Creates a ring with two buffers of `chunk` bytes for each of `threads` threads.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`] if `threads` or `chunk` is zero, or any error that the driver returns when it pins the memory.
    pub fn new(backend: &B, threads: usize, chunk: Bytes) -> Result<Self> {
        if threads == 0 || chunk.is_zero() {
            return Err(Error::new(Operation::PinMemory, Detail::ZeroSize));
        }
        let pair = |_| Ok([backend.pin(chunk)?, backend.pin(chunk)?]);
        let workers = Lock::new((0..threads).map(pair).collect::<Result<_>>()?);
        Ok(Self { backend: backend.clone(), chunk, threads, workers })
    }

    /// Returns the total size of the pinned buffers.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.chunk.0 * 2 * self.threads as u64)
    }

    /// Returns the backend whose memory the ring copies.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Passes all bytes of the segments to `take`, with their offsets in the stream.
    ///
    /// `take` is called with one chunk at a time, in any order and from several threads at once. The first error ends the copy.
    ///
    /// # Errors
    ///
    /// Any error that `take` or the driver returns, or [`Detail::Forked`].
    ///
    /// # Safety
    ///
    /// Each segment is mapped in one reservation, and its device has read access. No work writes to it during the call.
    pub unsafe fn fetch(
        &self,
        segments: &[Segment],
        take: &(dyn Fn(Bytes, &[u8]) -> Result<()> + Sync),
    ) -> Result<()> {
        self.work(segments, &|chunks, slots, stop| {
            let mut chunks = chunks.peekable();
            let mut turn = 0;
            for slot in &mut *slots {
                slot.start_fetch(&self.backend, chunks.next())?;
            }
            loop {
                let slot = &mut slots[turn % 2];
                let Some(chunk) = slot.finish()? else { return Ok(()) };
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                take(chunk.offset, slot.bytes(chunk.place.length))?;
                slot.start_fetch(&self.backend, chunks.next())?;
                turn += 1;
            }
        })
    }

    /// Fills all bytes of the segments with the bytes that `give` provides for their offsets in the stream.
    ///
    /// `give` is called for one chunk at a time, in any order and from several threads at once. Zeros are not copied: the device
    /// fills the chunk. The first error ends the copy, and some of the bytes have then been written.
    ///
    /// # Errors
    ///
    /// Any error that `give` or the driver returns, or [`Detail::Forked`].
    ///
    /// # Safety
    ///
    /// Each segment is mapped in one reservation, and its device has write access. No other work uses it during the call.
    pub unsafe fn send(
        &self,
        segments: &[Segment],
        give: &(dyn Fn(Bytes, &mut [u8]) -> Result<ChunkContents> + Sync),
    ) -> Result<()> {
        self.work(segments, &|chunks, slots, stop| {
            for (turn, chunk) in chunks.enumerate() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let slot = &mut slots[turn % 2];
                slot.finish()?;
                let Segment { address, length, device } = chunk.place;
                match give(chunk.offset, slot.bytes_mut(length))? {
                    ChunkContents::Bytes => slot.start_send(&self.backend, chunk)?,
                    // SAFETY: the chunk lies in a segment that the caller allows to write, and no other copy writes to it.
                    ChunkContents::Zeros => unsafe { self.backend.fill(device, address, length, 0) }?,
                }
            }
            slots.iter_mut().try_for_each(|slot| slot.finish().map(drop))
        })
    }

    /// Copies one list of segments to another one of the same lengths. The fetch of a chunk overlaps with the send of the chunk
    /// before. The first error ends the copy, and some of the bytes have then been written.
    pub(crate) fn pass(&self, from: &[Segment], to: &[Segment]) -> Result<()> {
        let targets = self.chunks(to);
        debug_assert_eq!(targets.len(), self.chunks(from).len());
        self.work(from, &|chunks, slots, stop| {
            slots[0].start_fetch(&self.backend, chunks.next())?;
            for turn in 0.. {
                // The buffer's previous send must end before the next fetch into it.
                let next = &mut slots[(turn + 1) % 2];
                next.finish()?;
                next.start_fetch(&self.backend, chunks.next())?;
                let slot = &mut slots[turn % 2];
                let Some(chunk) = slot.finish()? else { break };
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let target = targets.partition_point(|target| target.offset < chunk.offset);
                slot.start_send(&self.backend, targets[target])?;
            }
            slots.iter_mut().try_for_each(|slot| slot.finish().map(drop))
        })
    }

    /// Runs `job` on several threads, each with its share of the chunks.
    fn work(&self, segments: &[Segment], job: &Job<'_>) -> Result<()> {
        let workers = self.workers.lock(Operation::Copy)?;
        let chunks = self.chunks(segments);
        let stop = AtomicBool::new(false);
        let count = workers.len();
        let run = |worker: usize, buffers: &[Box<dyn Pinned>; 2]| {
            let mut slots = buffers.each_ref().map(|buffer| Slot::new(&**buffer));
            let mut mine = chunks.iter().copied().skip(worker).step_by(count);
            let answer = job(&mut mine, &mut slots, &stop);
            if answer.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            answer
        };
        // One thread for each chunk is enough. The first worker runs on the calling thread.
        let busy = chunks.len().min(count);
        let Some((first, others)) = workers[..busy].split_first() else { return Ok(()) };
        std::thread::scope(|scope| {
            let run = &run;
            let start = |(at, own)| {
                let thread = start_thread(scope, move || run(at, own));
                thread.inspect_err(|_| stop.store(true, Ordering::Relaxed))
            };
            let others: Vec<_> = (1..).zip(others).map(start).collect();
            let answers = std::iter::once(run(0, first)).chain(others.into_iter().map(|other| join(other?)));
            answers.fold(Ok(()), Result::and)
        })
    }

    fn chunks(&self, segments: &[Segment]) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        let mut offset = Bytes::ZERO;
        for segment in segments {
            let mut rest = *segment;
            while !rest.length.is_zero() {
                let length = rest.length.min(self.chunk);
                chunks.push(Chunk { offset, place: Segment { length, ..rest } });
                offset += length;
                rest = Segment { address: rest.address + length, length: rest.length - length, ..rest };
            }
        }
        chunks
    }
}

/// Starts a thread, or returns the operating system's error.
pub(crate) fn start_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, work).map_err(|error| {
        Error::new(
            Operation::Copy,
            Detail::Driver {
                source: DriverError::system("start a thread", &error),
                context: "a worker thread for copies".to_owned(),
            },
        )
    })
}

/// Waits for a thread and returns its result. A panic of the thread continues in the caller.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The work of one thread. Its arguments are the thread's chunks, its two buffers, and a flag that another thread has failed.
type Job<'a> =
    dyn Fn(&mut dyn Iterator<Item = Chunk>, &mut [Slot<'_>; 2], &AtomicBool) -> Result<()> + Sync + 'a;

impl<'a> Slot<'a> {
    fn new(buffer: &'a dyn Pinned) -> Self {
        Self { buffer, copy_streams: CopyStreams::default(), chunk: None }
    }

    fn start_fetch(&mut self, backend: &impl Backend, chunk: Option<Chunk>) -> Result<()> {
        let Some(chunk) = chunk else { return Ok(()) };
        let (to, place) = (self.buffer.start().as_ptr(), chunk.place);
        let copy_stream = self.copy_streams.of(backend, place.device)?;
        // SAFETY: the buffer is large enough for a chunk, and only this thread uses it. The caller of the ring guarantees that the
        // segment stays mapped, with read access for its owner, until the call returns.
        unsafe { copy_stream.copy_to_host(to, place.address, place.length) }?;
        self.chunk = Some(chunk);
        Ok(())
    }

    fn start_send(&mut self, backend: &impl Backend, chunk: Chunk) -> Result<()> {
        let (from, place) = (self.buffer.start().as_ptr(), chunk.place);
        let copy_stream = self.copy_streams.of(backend, place.device)?;
        // SAFETY: as above, for writing.
        unsafe { copy_stream.copy_from_host(place.address, from, place.length) }?;
        self.chunk = Some(chunk);
        Ok(())
    }

    /// Waits for the pending copy and returns its chunk, or `None` if there is no copy.
    fn finish(&mut self) -> Result<Option<Chunk>> {
        let Some(chunk) = self.chunk.take() else { return Ok(None) };
        self.copy_streams.finish(Ok(()))?;
        Ok(Some(chunk))
    }

    fn bytes(&self, length: Bytes) -> &[u8] {
        // SAFETY: a chunk is not longer than the buffer, and no copy uses the buffer.
        unsafe { slice::from_raw_parts(self.buffer.start().as_ptr(), length.0 as usize) }
    }

    fn bytes_mut(&mut self, length: Bytes) -> &mut [u8] {
        // SAFETY: as above; only this thread uses the buffer.
        unsafe { slice::from_raw_parts_mut(self.buffer.start().as_ptr(), length.0 as usize) }
    }
}
