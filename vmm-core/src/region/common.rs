//! Saving and restoring memory that suspended regions have in common.

use super::Region;
use super::contents::end;
use super::sharing::holder;
use super::suspension::{Obtained, Replacement, Suspension};
use crate::driver::Backend;
use crate::memory::{
    BackingKind, BackingStore, Batch, CommonMemory, PhysicalMemory, SavedContents, Segment, create_now,
    or_again,
};
use crate::types::{Access, Bytes, Operation, Result};
use std::sync::Arc;

impl<B: Backend> Suspension<B> {
    /// Saves the shared memory that suspended regions alone hold now, and adds it to `list`. A store that keeps nothing would lose what
    /// another region has left there.
    pub(super) fn save_unused(
        &self,
        backend: &B,
        store: &BackingStore<B>,
        list: &mut Vec<PhysicalMemory<B>>,
    ) -> Result<()> {
        if store.kind() == BackingKind::Nothing {
            return Ok(());
        }
        let operation = Operation::Suspend;
        for piece in &self.before.shared {
            let is_used = |memory: &PhysicalMemory<B>| holder(operation, memory, 1).is_some();
            let mut left = None;
            let saved =
                piece.save_if_unused(operation, is_used, |memory| save(backend, store, memory, &mut left));
            end(left);
            list.extend(saved?);
        }
        Ok(())
    }

    /// Returns the shared memory, and the size of the pieces that this call has restored, in memory that was obtained for them.
    pub(super) fn shared_memory(
        &self,
        backend: &B,
        obtained: &mut Obtained<B>,
    ) -> Result<(Vec<PhysicalMemory<B>>, Bytes)> {
        let operation = Operation::Resume;
        let mut restored = Bytes::ZERO;
        let free = &mut obtained.for_shared;
        let mut get = |piece: &Arc<CommonMemory<B>>| {
            let mut left = None;
            let memory = piece.memory(operation, |piece, saved| {
                let alike = (piece.size(), piece.properties());
                let is_alike = |one: &Replacement<B>| (one.memory.size(), one.memory.properties()) == alike;
                let one = match free.iter().position(is_alike) {
                    Some(at) => free.swap_remove(at),
                    // Another region has saved the piece since memory was obtained.
                    None => Replacement::created(create_now(backend, piece.size(), piece.properties())?),
                };
                match restore(backend, saved, &one.memory, &mut left) {
                    Ok(()) => {
                        restored += piece.size();
                        Ok(one.memory)
                    }
                    Err(error) => {
                        free.push(one);
                        Err(error)
                    }
                }
            });
            end(left);
            memory
        };
        // The second try, and the end of a failed copy, follow calls of observers, which can wait for a thread that needs the piece.
        let pieces = self.before.shared.iter().map(|piece| or_again(backend, || get(piece)));
        let pieces = pieces.collect::<Result<_>>()?;
        Ok((pieces, restored))
    }
}

/// Copies the contents of a piece to a store.
fn save<B: Backend>(
    backend: &B,
    store: &BackingStore<B>,
    memory: &PhysicalMemory<B>,
    left: &mut Option<Region<B>>,
) -> Result<SavedContents<B>> {
    let saved = store.room(Operation::Suspend, backend, memory.size())?;
    memory.mapped_under_lock(left, Access::Read, |region| saved.fetch(backend, &[whole(region, memory)]))?;
    Ok(saved)
}

/// Copies saved contents into a piece.
fn restore<B: Backend>(
    backend: &B,
    saved: &SavedContents<B>,
    memory: &PhysicalMemory<B>,
    left: &mut Option<Region<B>>,
) -> Result<()> {
    memory.mapped_under_lock(left, Access::ReadWrite, |region| {
        let segments = vec![whole(region, memory)];
        saved.send(backend, std::iter::once(Ok(Batch { from: Bytes::ZERO, segments })))
    })
}

fn whole<B: Backend>(region: &Region<B>, memory: &PhysicalMemory<B>) -> Segment {
    Segment { address: region.address(), length: memory.size(), device: memory.device() }
}
