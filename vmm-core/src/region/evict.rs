//! What a suspend and a resume ask of the layout: a region without any mapping whose memory has gone back, and the way
//! there and back.
#![allow(unsafe_code)]

use super::layout::{Layout, memories, part_of, runs};
use super::table::Piece;
use crate::driver::{Backend, Reservation};
use crate::types::{Detail, Error, Grant, Result};

impl<B: Backend> Layout<B> {
    /// Removes all mappings and sees to it that their memory can go back to its devices, all or nothing. Gives what was
    /// mapped, which still holds the memory; and an error where that is done, but [addresses](Detail::AddressTaken) were
    /// lost.
    pub(super) fn vacate(&mut self) -> Result<(Vec<Piece<B>>, Option<Error>)> {
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

    /// Takes pieces away that `place` has mapped, because of an error; their memory can go back to its devices.
    pub(super) fn take_away(&mut self, error: Error, placed: &[Piece<B>]) -> Error {
        // Some of the contents may be in it already.
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

    /// Lets the drivers give back what they keep of the memory that was mapped. Nothing is mapped any more. Gives an error
    /// where addresses were lost: then there is no way back, whatever comes of the other reservations.
    fn return_memory(&mut self) -> Result<Option<Error>> {
        let mut lost = None;
        for reservation in self.spans.reservations() {
            // SAFETY: nothing is mapped in the whole region.
            let Err(error) = (unsafe { reservation.return_memory() }) else { continue };
            // Whoever had them may have been quick.
            match reservation.regain() {
                Err(_) => lost = lost.or(Some(error)),
                Ok(()) if matches!(error.detail(), Detail::AddressTaken { .. }) || lost.is_some() => {}
                Ok(()) => return Err(error),
            }
        }
        Ok(lost)
    }

    /// Reserves addresses again that were lost when memory was returned.
    pub(super) fn regain(&mut self) -> Result<()> {
        self.spans.reservations().try_for_each(Reservation::regain)
    }

    /// Gives each piece's owner the access that the piece says, where it has more. Not undone: who calls takes the pieces
    /// away where it fails.
    pub(super) fn lower(&mut self, pieces: &[Piece<B>]) -> Result<()> {
        for run in runs(pieces, |mapping| (mapping.memory.device(), mapping.access)) {
            let (part, real) = (part_of(run), &run[0].mapping);
            let device = real.memory.device();
            self.grant(part, &[Grant { device, access: real.access.get(device) }])?;
            self.table.change(part, |mapping| mapping.access = real.access);
        }
        Ok(())
    }
}
