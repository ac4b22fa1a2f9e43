//! The saved contents of one region, and copies to and from them.
#![allow(unsafe_code)]

use super::BackingKind;
use super::pinned_arena::PinnedExtent;
use super::store::Store;
use super::stores::AnyStore;
use crate::driver::{Backend, CopyStreams};
use crate::memory::{Batch, ChunkContents, Segment, StagingRing};
use crate::types::{Bytes, Result};
use std::sync::Arc;

/// The contents of one suspended region as a stream of bytes. Dropping it frees its space in the store.
#[derive(Debug)]
pub(crate) struct SavedContents<B: Backend> {
    kind: BackingKind,
    storage: Storage<B>,
}

#[derive(Debug)]
enum Storage<B: Backend> {
    Pinned(PinnedExtent),
    Stored(Arc<StagingRing<B>>, AnyStore),
    Nothing,
}

impl<B: Backend> SavedContents<B> {
    pub(super) const fn nothing(kind: BackingKind) -> Self {
        Self { kind, storage: Storage::Nothing }
    }

    pub(super) fn pinned(extent: PinnedExtent) -> Self {
        Self { kind: BackingKind::Pinned, storage: Storage::Pinned(extent) }
    }

    pub(super) fn stored(ring: &Arc<StagingRing<B>>, kind: BackingKind, store: impl Into<AnyStore>) -> Self {
        Self { kind, storage: Storage::Stored(Arc::clone(ring), store.into()) }
    }

    pub(crate) fn kind(&self) -> BackingKind {
        self.kind
    }

    /// Returns true if the contents are not kept.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.storage, Storage::Nothing)
    }

    /// Saves the contents of the segments. Each segment must be mapped in one reservation, and its owner must have read access.
    pub(crate) fn fetch(&self, backend: &B, segments: &[Segment]) -> Result<()> {
        match &self.storage {
            Storage::Pinned(extent) => {
                let mut copy_streams = CopyStreams::default();
                let queued = each_run(extent, Bytes::ZERO, segments, |to, from| {
                    let copy_stream = copy_streams.of(backend, from.device)?;
                    // SAFETY: the caller guarantees the segment. This value owns the pinned memory, and the queued copies have
                    // ended when the copy streams are finished or dropped.
                    unsafe { copy_stream.copy_to_host(to, from.address, from.length) }
                });
                copy_streams.finish(queued)
            }
            Storage::Stored(ring, store) => {
                // SAFETY: the caller guarantees the segments.
                unsafe { ring.fetch_by(segments, store.write_size(), &|at, bytes| store.write(at, bytes)) }?;
                store.settle()
            }
            Storage::Nothing => Ok(()),
        }
    }

    /// Copies the contents back while memory is being mapped.
    ///
    /// The iterator maps each batch when it is advanced, and the contents of the batch before are copied meanwhile. All copies
    /// have ended when this function returns, even with an error. Each segment must be mapped in one reservation, and its owner
    /// must have write access.
    pub(crate) fn send(&self, backend: &B, mut batches: impl Iterator<Item = Result<Batch>>) -> Result<()> {
        match &self.storage {
            Storage::Pinned(extent) => {
                let mut copy_streams = CopyStreams::default();
                let queued = batches.try_for_each(|batch| {
                    let Batch { from, segments } = batch?;
                    each_run(extent, from, &segments, |from, to| {
                        let copy_stream = copy_streams.of(backend, to.device)?;
                        // SAFETY: as above, for writing.
                        unsafe { copy_stream.copy_from_host(to.address, from, to.length) }
                    })
                });
                copy_streams.finish(queued)
            }
            Storage::Stored(ring, store) => {
                let read = |at, bytes: &mut [u8]| store.read(at, bytes).map(|()| ChunkContents::Bytes);
                // SAFETY: the caller guarantees the segments.
                unsafe { ring.send_each(batches, &read) }
            }
            Storage::Nothing => batches.try_for_each(|batch| batch.map(drop)),
        }
    }
}

/// Calls `copy` for each run of bytes that lies in one extent of the pinned memory and in one segment. The segments' contents
/// start at `from` in the stream.
fn each_run(
    extent: &PinnedExtent,
    from: Bytes,
    segments: &[Segment],
    mut copy: impl FnMut(*mut u8, Segment) -> Result<()>,
) -> Result<()> {
    let mut at = from;
    for segment in segments {
        let mut rest = *segment;
        for (place, length) in extent.runs(at, segment.length) {
            copy(place, Segment { length, ..rest })?;
            rest.address = rest.address + length;
        }
        at += segment.length;
    }
    Ok(())
}
