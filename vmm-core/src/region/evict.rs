//! The layout's part of a suspend and a resume: unmapping a whole region so that its memory returns to the devices, and the
//! rollbacks.
#![allow(unsafe_code)]

use super::layout::{Layout, memories, part_of, runs};
use super::table::PlacedMapping;
use crate::driver::{Backend, Reservation};
use crate::types::{Detail, Error, Result};

impl<B: Backend> Layout<B> {
    /// Removes all mappings so that their memory can return to its devices, all or nothing. Returns the removed mappings, which
    /// still hold the memory. If that succeeded but [addresses](Detail::AddressTaken) were lost, returns their error as well.
    pub(super) fn evict(&mut self) -> Result<(Vec<PlacedMapping<B>>, Option<Error>)> {
        let mut taken = Vec::new();
        let removed = self.parts().into_iter().try_for_each(|part| self.unmap(part, &mut taken));
        match removed.and_then(|()| self.return_memory()) {
            Ok(lost) => {
                self.poison(memories(&taken));
                Ok((taken, lost))
            }
            Err(why) => Err(self.restore(why, taken)),
        }
    }

    /// Removes pieces that `place` has mapped, because of an error, so that their memory can return to its devices.
    pub(super) fn take_away(&mut self, error: Error, placed: &[PlacedMapping<B>]) -> Error {
        // Some of the contents may have been copied into it already.
        self.poison(memories(placed));
        let error = self.undo_place(error, placed);
        if !self.table.is_empty() {
            return error;
        }
        match self.return_memory() {
            Ok(None) => error,
            Ok(Some(undo)) | Err(undo) => error.rollback_failed(undo),
        }
    }

    /// Makes the drivers release memory that they keep although nothing is mapped any more. Returns an error inside `Ok` if
    /// addresses were lost: then no rollback is possible, whatever the other reservations return.
    fn return_memory(&mut self) -> Result<Option<Error>> {
        let mut lost = None;
        for reservation in self.spans.reservations() {
            // SAFETY: nothing is mapped in the whole region.
            let Err(error) = (unsafe { reservation.return_memory() }) else { continue };
            // The addresses may be free again by now.
            match reservation.regain() {
                Err(_) => lost = lost.or(Some(error)),
                Ok(()) if matches!(error.detail(), Detail::AddressTaken { .. }) || lost.is_some() => {}
                Ok(()) => return Err(error),
            }
        }
        Ok(lost)
    }

    /// Reserves addresses again that were lost when the memory was released.
    pub(super) fn regain(&mut self) -> Result<()> {
        self.spans.reservations().try_for_each(Reservation::regain)
    }

    /// Lowers the access that each piece has for the copy of its contents to the piece's own. Makes no rollback: after an error the
    /// caller removes the pieces.
    pub(super) fn lower(&mut self, pieces: &[PlacedMapping<B>]) -> Result<()> {
        for run in runs(pieces, |mapping| (mapping.memory.properties(), mapping.access)) {
            let (part, real) = (part_of(run), &run[0].mapping);
            let opened = real.memory.properties().access_for_copies(real.access);
            let grants: Vec<_> = opened.changes(real.access).collect();
            self.grant(part, &grants)?;
            self.table.change(part, |mapping| mapping.access = real.access);
        }
        Ok(())
    }
}
