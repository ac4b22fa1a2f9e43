//! One region's contents in a store, on their way there and back.
#![allow(unsafe_code)]

use super::BackingKind;
use super::pinned_arena::PinnedExtent;
use super::store::{AnyStore, Store};
use crate::driver::{Backend, CopyStreams};
use crate::memory::{ChunkContents, Segment, StagingRing, join, start_thread};
use crate::types::{Bytes, Result};
use std::sync::{Arc, mpsc};
use std::thread;

/// The contents of one suspended region, one stream of bytes. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct SavedContents<B: Backend> {
    kind: BackingKind,
    place: Place<B>,
}

#[derive(Debug)]
enum Place<B: Backend> {
    Locked(PinnedExtent),
    Stored(Arc<StagingRing<B>>, AnyStore),
    Nothing,
}

/// Memory that is mapped again and wants its contents: so much of the stream, from here on.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) from: Bytes,
    pub(crate) segments: Vec<Segment>,
}

impl<B: Backend> SavedContents<B> {
    pub(super) const fn nothing(kind: BackingKind) -> Self {
        Self { kind, place: Place::Nothing }
    }

    pub(super) fn locked(room: PinnedExtent) -> Self {
        Self { kind: BackingKind::Pinned, place: Place::Locked(room) }
    }

    pub(super) fn stored(ring: &Arc<StagingRing<B>>, kind: BackingKind, store: impl Into<AnyStore>) -> Self {
        Self { kind, place: Place::Stored(Arc::clone(ring), store.into()) }
    }

    pub(crate) fn kind(&self) -> BackingKind {
        self.kind
    }

    /// True where contents are not kept.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.place, Place::Nothing)
    }

    /// Copies all of the stream here. Segments are mapped, each in one reservation, and their owners may read them.
    pub(crate) fn fetch(&self, backend: &B, segments: &[Segment]) -> Result<()> {
        match &self.place {
            Place::Locked(room) => {
                let mut copy_streams = CopyStreams::default();
                let queued = each_run(room, Bytes::ZERO, segments, |to, from| {
                    let copy_stream = copy_streams.of(backend, from.device)?;
                    // SAFETY: the segment is as the caller says; the room is this one's alone, and what is queued has ended
                    // when the copy streams are finished or dropped.
                    unsafe { copy_stream.copy_to_host(to, from.address, from.length) }
                });
                copy_streams.finish(queued)
            }
            Place::Stored(ring, store) => {
                // SAFETY: the segments are as the caller says.
                unsafe { ring.fetch(segments, &|at, bytes| store.write(at, bytes)) }?;
                store.settle()
            }
            Place::Nothing => Ok(()),
        }
    }

    /// Copies contents back while memory is being mapped: asking for the next batch maps it, meanwhile the contents of the
    /// last one are on their way. All copies have ended when this returns, however it went. Segments are as for
    /// [`SavedContents::fetch`], and to be written.
    pub(crate) fn send(&self, backend: &B, mut batches: impl Iterator<Item = Result<Batch>>) -> Result<()> {
        match &self.place {
            Place::Locked(room) => {
                let mut copy_streams = CopyStreams::default();
                let queued = batches.try_for_each(|batch| {
                    let Batch { from, segments } = batch?;
                    each_run(room, from, &segments, |from, to| {
                        let copy_stream = copy_streams.of(backend, to.device)?;
                        // SAFETY: as above, for writing.
                        unsafe { copy_stream.copy_from_host(to.address, from, to.length) }
                    })
                });
                copy_streams.finish(queued)
            }
            Place::Stored(ring, store) => beside(batches, |Batch { from, segments }| {
                let read = |at, bytes: &mut [u8]| store.read(from + at, bytes).map(|()| ChunkContents::Bytes);
                // SAFETY: the segments are as the caller says.
                unsafe { ring.send(&segments, &read) }
            }),
            Place::Nothing => batches.try_for_each(|batch| batch.map(drop)),
        }
    }
}

/// Goes over the room of a part of the stream and the segments that it belongs to, in runs that lie in one of each.
fn each_run(
    room: &PinnedExtent,
    from: Bytes,
    segments: &[Segment],
    mut copy: impl FnMut(*mut u8, Segment) -> Result<()>,
) -> Result<()> {
    let mut at = from;
    for segment in segments {
        let mut rest = *segment;
        for (place, length) in room.runs(at, segment.length) {
            copy(place, Segment { length, ..rest })?;
            rest.address = rest.address + length;
        }
        at += segment.length;
    }
    Ok(())
}

/// Works on what is there in a thread of its own, while the caller's goes on to the next.
fn beside<T: Send>(
    items: impl Iterator<Item = Result<T>>,
    work: impl Fn(T) -> Result<()> + Send,
) -> Result<()> {
    thread::scope(|scope| {
        // What is mapped far ahead of the copies saves no time, and has to be copied for nothing if it goes wrong.
        let (sender, receiver) = mpsc::sync_channel(1);
        let worker = start_thread(scope, move || receiver.into_iter().try_for_each(work))?;
        let mut answer = Ok(());
        for item in items {
            let has_ended = match item {
                Ok(item) => sender.send(item).is_err(),
                Err(error) => {
                    answer = Err(error);
                    true
                }
            };
            if has_ended {
                break;
            }
        }
        drop(sender);
        answer.and(join(worker))
    })
}
