//! Pinned buffers for copies between devices and other stores, allocated ahead of need.
//!
//! The bytes of a list of [`Segment`]s form one stream, which is divided into chunks. Several threads work on the chunks. Each
//! has two buffers: while the device fills or drains one, the thread drains or fills the other.
#![allow(unsafe_code)]

use crate::driver::{Backend, CopyStreams, Pinned, copy_threads};
use crate::memory::Segment;
use crate::memory::chunks::{Batch, Chunk, Feed, cut};
use crate::memory::threads::{join, start_thread};
use crate::types::{Bytes, Detail, Error, Lock, Operation, Result};
use std::{slice, thread};

/// A set of pinned (page-locked) buffers through which contents are copied.
///
/// It is shared by reference, and only one call at a time uses it: other calls wait. Creating it pins its memory, so create it once,
/// ahead of need.
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

/// A buffer and the copy that uses it.
struct Slot<'a> {
    buffer: &'a dyn Pinned,
    copy_streams: CopyStreams,
    chunk: Option<Chunk>,
}

impl<B: Backend> StagingRing<B> {
    /// The recommended size of one buffer.
    ///
    /// The bytes should stay in the processor's cache between the device and the thread. With buffers of 8 and 16 MiB for each of 16
    /// threads, they did not on two H200s' hosts, and a copy engine takes some 4 µs for each copy, which copies of 2 MiB feel.
    pub const CHUNK: Bytes = Bytes::mib(4);

    /// Returns the recommended number of threads: the number of cores that this process may use, at most 16.
    ///
    /// One thread writes 4 to 5 GiB/s to new pages of the host, and a PCIe 5.0 link carries 50.
    #[must_use]
    pub fn threads() -> usize {
        copy_threads()
    }

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
        // SAFETY: the caller guarantees the segments.
        unsafe { self.fetch_by(segments, self.chunk, take) }
    }

    /// Passes all bytes of the segments to `take` as [`fetch`](Self::fetch) does, at most `most` at a time.
    ///
    /// # Safety
    ///
    /// As for [`fetch`](Self::fetch).
    pub(super) unsafe fn fetch_by(
        &self,
        segments: &[Segment],
        most: Bytes,
        take: &(dyn Fn(Bytes, &[u8]) -> Result<()> + Sync),
    ) -> Result<()> {
        self.work(once(segments), most, &|feed, slots| {
            for slot in &mut *slots {
                slot.start_fetch(&self.backend, feed.next())?;
            }
            for turn in 0.. {
                let slot = &mut slots[turn % 2];
                let Some(chunk) = slot.finish()? else { break };
                if feed.is_stopped() {
                    break;
                }
                take(chunk.offset, slot.bytes(chunk.place.length))?;
                slot.start_fetch(&self.backend, feed.next())?;
            }
            Ok(())
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
        // SAFETY: the caller guarantees the segments.
        unsafe { self.send_each(once(segments), give) }
    }

    /// Fills the segments of all batches as [`send`](Self::send) does.
    ///
    /// The iterator maps each batch when it is advanced, and the bytes of the batches before are copied meanwhile. Its first error
    /// ends the copy.
    ///
    /// # Safety
    ///
    /// As for [`send`](Self::send), for each batch from the time when the iterator returns it.
    pub(super) unsafe fn send_each(
        &self,
        batches: impl Iterator<Item = Result<Batch>>,
        give: &(dyn Fn(Bytes, &mut [u8]) -> Result<ChunkContents> + Sync),
    ) -> Result<()> {
        self.work(batches, self.chunk, &|feed, slots| {
            for (turn, chunk) in std::iter::from_fn(|| feed.next()).enumerate() {
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
        let targets = cut(Bytes::ZERO, to, self.chunk);
        debug_assert_eq!(targets.len(), cut(Bytes::ZERO, from, self.chunk).len());
        self.work(once(from), self.chunk, &|feed, slots| {
            slots[0].start_fetch(&self.backend, feed.next())?;
            for turn in 0.. {
                // The buffer's previous send must end before the next fetch into it.
                let next = &mut slots[(turn + 1) % 2];
                next.finish()?;
                next.start_fetch(&self.backend, feed.next())?;
                let slot = &mut slots[turn % 2];
                let Some(chunk) = slot.finish()? else { break };
                if feed.is_stopped() {
                    break;
                }
                let target = targets.partition_point(|target| target.offset < chunk.offset);
                slot.start_send(&self.backend, targets[target])?;
            }
            slots.iter_mut().try_for_each(|slot| slot.finish().map(drop))
        })
    }

    /// Runs `job` on several threads, which share the chunks of all batches, each of at most `most` bytes. The calling thread adds the
    /// chunks of each batch, and is then one of these threads.
    fn work(
        &self,
        mut batches: impl Iterator<Item = Result<Batch>>,
        most: Bytes,
        job: &Job<'_>,
    ) -> Result<()> {
        let most = most.min(self.chunk);
        let workers = self.workers.lock(Operation::Copy)?;
        let feed = Feed::default();
        let run = |buffers: &[Box<dyn Pinned>; 2]| {
            let mut slots = buffers.each_ref().map(|buffer| Slot::new(&**buffer));
            let answer = job(&feed, &mut slots);
            answer.inspect_err(|_| feed.stop())
        };
        let Some((own, others)) = workers.split_first() else { return Ok(()) };
        thread::scope(|scope| {
            let (run, adding) = (&run, feed.adding());
            let (mut others, mut threads, mut count) = (others.iter(), Vec::new(), 0);
            let mut add = |batch: Batch| {
                let chunks = cut(batch.from, &batch.segments, most);
                count += chunks.len();
                feed.add(chunks);
                // One thread for each chunk is enough.
                while threads.len() + 1 < count
                    && let Some(buffers) = others.next()
                {
                    threads.extend(start_thread(scope, move || run(buffers)));
                }
                Ok(())
            };
            let mut wanted = std::iter::from_fn(|| if feed.is_stopped() { None } else { batches.next() });
            let added = wanted.try_for_each(|batch| add(batch?)).inspect_err(|_| feed.stop());
            drop(adding);
            let answers = std::iter::once(run(own)).chain(threads.into_iter().map(join));
            answers.fold(added, Result::and)
        })
    }
}

/// Returns segments as the only batch of a stream.
fn once(segments: &[Segment]) -> impl Iterator<Item = Result<Batch>> {
    std::iter::once(Ok(Batch { from: Bytes::ZERO, segments: segments.to_vec() }))
}

/// The work of one thread, on the chunks that it takes and with its two buffers.
type Job<'a> = dyn Fn(&Feed, &mut [Slot<'_>; 2]) -> Result<()> + Sync + 'a;

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
