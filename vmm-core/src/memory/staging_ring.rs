//! Page-locked buffers, made ahead, through which contents go between devices and whatever else takes or gives them.
//!
//! The bytes of a list of [`Segment`]s are one stream, which is cut into chunks. Several threads work, each with two
//! buffers: while the device fills or empties one, the thread empties or fills the other.
#![allow(unsafe_code)]

use crate::driver::{Backend, CopyStreams, Pinned};
use crate::memory::Segment;
use crate::types::{Bytes, Detail, DriverError, Error, Lock, Operation, Result};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

/// Page-locked buffers for contents on their way. Clone-free and shared by reference: calls take turns.
///
/// Making it pins its memory, which is slow (0.3 to 0.5 s a GiB on an H200's host): make it once, ahead of need.
#[derive(Debug)]
pub struct StagingRing<B: Backend> {
    backend: B,
    chunk: Bytes,
    threads: usize,
    workers: Lock<Vec<[Box<dyn Pinned>; 2]>>,
}

/// What is written to a chunk of the segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkContents {
    /// What has been written into the buffer.
    Bytes,
    /// Zeros; the buffer was not touched.
    Zeros,
}

/// Some bytes of the stream, in one segment.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Where they begin in the stream.
    offset: Bytes,
    place: Segment,
}

/// A buffer with what is going on in it.
struct Slot<'a> {
    buffer: &'a dyn Pinned,
    copy_streams: CopyStreams,
    chunk: Option<Chunk>,
}

impl<B: Backend> StagingRing<B> {
    /// As much as one buffer has, if nothing else is said.
    pub const CHUNK: Bytes = Bytes::mib(16);

    /// Buffers for so many threads, two of `chunk` bytes each.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`] for no threads or no bytes, or what the driver answers to pinning.
    pub fn new(backend: &B, threads: usize, chunk: Bytes) -> Result<Self> {
        if threads == 0 || chunk.is_zero() {
            return Err(Error::new(Operation::PinMemory, Detail::ZeroSize));
        }
        let pair = |_| Ok([backend.pin(chunk)?, backend.pin(chunk)?]);
        let workers = Lock::new((0..threads).map(pair).collect::<Result<_>>()?);
        Ok(Self { backend: backend.clone(), chunk, threads, workers })
    }

    /// How much page-locked memory it holds.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.chunk.0 * 2 * self.threads as u64)
    }

    /// The backend whose memory it copies.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Hands every byte of the segments to `take`, with its place in their stream: in chunks, in any order, and from
    /// several threads at once. The first error ends it.
    ///
    /// # Errors
    ///
    /// What `take` returns, [`Detail::Forked`], or what the driver answers.
    ///
    /// # Safety
    ///
    /// Each segment is mapped, lies in one reservation, and its device may read it; no work writes it meanwhile.
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

    /// Fills every byte of the segments with what `give` writes for its place in their stream: in chunks, in any order,
    /// and from several threads at once. Zeros are not copied; the device fills with them. The first error ends it; then
    /// some of the bytes have been written.
    ///
    /// # Errors
    ///
    /// What `give` returns, [`Detail::Forked`], or what the driver answers.
    ///
    /// # Safety
    ///
    /// Each segment is mapped, lies in one reservation, and its device may write it; no other work uses it meanwhile.
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
                    // SAFETY: the chunk is in a segment, which is the caller's to write, and is copied to by nobody else.
                    ChunkContents::Zeros => unsafe { self.backend.fill(device, address, length, 0) }?,
                }
            }
            slots.iter_mut().try_for_each(|slot| slot.finish().map(drop))
        })
    }

    /// Copies one list of segments to another one of the same lengths. What is fetched of one chunk overlaps with what is
    /// sent of the last. The first error ends it; then some of the bytes have been written.
    pub(crate) fn pass(&self, from: &[Segment], to: &[Segment]) -> Result<()> {
        let targets = self.chunks(to);
        debug_assert_eq!(targets.len(), self.chunks(from).len());
        self.work(from, &|chunks, slots, stop| {
            slots[0].start_fetch(&self.backend, chunks.next())?;
            for turn in 0.. {
                // What this one has sent before is over when it is fetched into again.
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

    /// Lets the threads work, each on its share of the chunks.
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
        // What one thread can do needs no other; the first one is the caller's own.
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

/// Starts a thread, or says why the system has none.
pub(crate) fn start_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, work).map_err(|error| {
        Error::new(
            Operation::Copy,
            Detail::Driver {
                source: DriverError::system("start a thread", &error),
                context: "beside the caller's".to_owned(),
            },
        )
    })
}

/// Waits for a thread; its panic is the caller's.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What one thread does with its chunks, its buffers, and the sign that another one has failed.
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
        // SAFETY: the buffer has room for a chunk and is this thread's; the segment is mapped and its owner may read it,
        // as its maker has checked, and stays so until the ring is done with it.
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

    /// Waits for the copy that is going on, and tells which chunk it was.
    fn finish(&mut self) -> Result<Option<Chunk>> {
        let Some(chunk) = self.chunk.take() else { return Ok(None) };
        self.copy_streams.finish(Ok(()))?;
        Ok(Some(chunk))
    }

    fn bytes(&self, length: Bytes) -> &[u8] {
        // SAFETY: a chunk is no longer than the buffer, and no copy is going on in it.
        unsafe { slice::from_raw_parts(self.buffer.start().as_ptr(), length.0 as usize) }
    }

    fn bytes_mut(&mut self, length: Bytes) -> &mut [u8] {
        // SAFETY: as above; the buffer is this thread's.
        unsafe { slice::from_raw_parts_mut(self.buffer.start().as_ptr(), length.0 as usize) }
    }
}
