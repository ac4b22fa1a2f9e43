//! Addresses and what is mapped in them, with the three changes that all else is made of: place, remove, protect.
//!
//! Each change is a transaction: where a driver call fails, everything is as before. Where undoing fails as well, the
//! mappings concerned are marked out of use, and every later operation on them is refused.
#![allow(unsafe_code)]

use super::spans::{Cut, Spans};
use super::table::{Mapping, Piece, Table};
use crate::{Access, AccessMap, Backend, Bytes, DeviceId, Error, Grant, Physical, Reservation, Result};

/// Some of a region: mappings that follow each other without a hole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) offset: Bytes,
    pub(super) length: Bytes,
}

#[derive(Debug)]
pub(super) struct Layout<B: Backend> {
    pub(super) spans: Spans<B>,
    pub(super) table: Table<B>,
    unmaps_runs: bool,
}

impl<B: Backend> Layout<B> {
    pub(super) fn new(backend: &B, reservation: B::Reservation) -> Self {
        Self { spans: Spans::new(reservation), table: Table::new(), unmaps_runs: backend.unmaps_runs() }
    }

    /// Maps pieces and gives them their access, all or none. The caller has checked that they lie in the
    /// reservations, cross no seam, and overlap nothing; they come in order of their offsets.
    pub(super) fn place(&mut self, pieces: Vec<Piece<B>>) -> Result<()> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let (offset, mut end) = (first.offset, first.offset);
        let mut result = Ok(());
        for Piece { offset, mapping } in &pieces {
            result = self.map_one(*offset, &mapping.memory);
            if result.is_err() {
                break;
            }
            end = *offset + mapping.length();
        }
        let result = result.and_then(|()| self.grant_runs(&pieces));
        result.map_err(|error| self.undo_place(error, offset, end - offset))
    }

    /// Removes whole mappings, all or none. Each part is made of whole mappings, without a hole.
    pub(super) fn remove(&mut self, parts: &[Part]) -> Result<()> {
        let before: Vec<Piece<B>> =
            parts.iter().flat_map(|part| self.pieces(part.offset, part.length)).collect();
        for part in parts {
            for cut in self.unmap_cuts(part.offset, part.length) {
                if let Err(error) = self.unmap_cut(cut) {
                    let gone = |piece: &Piece<B>| self.table.at(piece.offset).is_none();
                    let restore = before.into_iter().filter(gone).collect();
                    return Err(self.restore(error, restore));
                }
            }
        }
        Ok(())
    }

    /// Removes every mapping that can be vouched for, as far as it goes: for what is given up anyway. Gives the first
    /// error.
    pub(super) fn clear(&mut self) -> Result<()> {
        let mut first = Ok(());
        for part in self.parts() {
            for cut in self.unmap_cuts(part.offset, part.length) {
                let answer = self.unmap_cut(cut);
                first = first.and(answer);
            }
        }
        first
    }

    /// The runs of mappings that can be vouched for and follow each other without a hole.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (offset, mapping) in self.table.iter().filter(|(_, mapping)| mapping.out_of_use.is_none()) {
            match parts.last_mut() {
                Some(part) if part.offset + part.length == offset => part.length += mapping.length(),
                _ => parts.push(Part { offset, length: mapping.length() }),
            }
        }
        parts
    }

    /// Changes one device's access to whole mappings, all or none.
    pub(super) fn set_access(
        &mut self,
        offset: Bytes,
        length: Bytes,
        device: DeviceId,
        access: Access,
    ) -> Result<()> {
        let before = self.pieces(offset, length);
        let Err(error) = self.grant(offset, length, &[Grant { device, access }]) else {
            for piece in &before {
                self.note_access(piece.offset, piece.mapping.access.with(device, access));
            }
            return Ok(());
        };
        for run in runs(&before, |piece| piece.mapping.access.get(device)) {
            let old = Grant { device, access: run.key };
            if let Err(undo) = self.grant(run.offset, run.length, &[old]) {
                return Err(self.put_out_of_use(error, undo, offset, length));
            }
        }
        Err(error)
    }

    /// The mappings of a part, as they are now.
    pub(super) fn pieces(&self, offset: Bytes, length: Bytes) -> Vec<Piece<B>> {
        let touching = self.table.touching(offset, length);
        touching.map(|(offset, mapping)| Piece { offset, mapping: mapping.clone() }).collect()
    }

    /// Marks a mapping for which nobody can vouch.
    fn put_out_of_use(&mut self, error: Error, undo: Error, offset: Bytes, length: Bytes) -> Error {
        let cause = format!("{error}; {undo}");
        for piece in self.pieces(offset, length) {
            if let Some(mapping) = self.table.get_mut(piece.offset) {
                mapping.out_of_use = Some(cause.as_str().into());
            }
        }
        Error::UndoFailed { error: Box::new(error), undo: Box::new(undo) }
    }

    /// Puts mappings back that were removed before `error` came. What cannot be put back keeps its memory, out of use.
    fn restore(&mut self, error: Error, pieces: Vec<Piece<B>>) -> Error {
        match self.place(pieces.clone()) {
            Ok(()) => error,
            Err(undo) => {
                let cause: Box<str> = format!("{error}; {undo}").into();
                for mut piece in pieces {
                    piece.mapping.out_of_use = Some(cause.clone());
                    if self.table.at(piece.offset).is_none() {
                        self.table.insert(piece.offset, piece.mapping);
                    }
                }
                Error::UndoFailed { error: Box::new(error), undo: Box::new(undo) }
            }
        }
    }

    /// Unmaps what `place` had mapped of a part before `error` came.
    fn undo_place(&mut self, error: Error, offset: Bytes, length: Bytes) -> Error {
        for piece in self.pieces(offset, length) {
            if let Err(undo) = self.unmap_cut(self.cut_of(piece.offset, piece.mapping.length())) {
                return self.put_out_of_use(error, undo, offset, length);
            }
        }
        error
    }

    fn map_one(&mut self, offset: Bytes, memory: &Physical<B>) -> Result<()> {
        let cut = self.cut_of(offset, memory.size());
        let (reservation, at) = self.spans.reservation(cut).ok_or_else(|| no_reservation(cut))?;
        // SAFETY: the caller of `place` has checked that the part is inside one reservation, aligned and free, and
        // that the memory is of this backend.
        unsafe { reservation.map(at, memory.handle()) }?;
        self.table.insert(offset, Mapping::new(memory.clone(), AccessMap::NONE));
        Ok(())
    }

    /// Gives pieces that are mapped the access that they are to have: one call for each run of equal access.
    fn grant_runs(&mut self, pieces: &[Piece<B>]) -> Result<()> {
        for run in runs(pieces, |piece| piece.mapping.access) {
            let grants: Vec<Grant> = run.key.grants().collect();
            if grants.is_empty() {
                continue;
            }
            self.grant(run.offset, run.length, &grants)?;
        }
        for piece in pieces {
            self.note_access(piece.offset, piece.mapping.access);
        }
        Ok(())
    }

    fn grant(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        let end = offset + length;
        let mut next = offset;
        while let Some(cut) = self.spans.first_cut(next, end - next) {
            let (reservation, at) = self.spans.reservation(cut).ok_or_else(|| no_reservation(cut))?;
            // SAFETY: the cut is made of whole mappings without a hole in one reservation, since no mapping crosses
            // a seam; the devices were checked when the access was asked for.
            unsafe { reservation.set_access(at, cut.length, grants) }?;
            next = cut.offset + cut.length;
        }
        Ok(())
    }

    fn note_access(&mut self, offset: Bytes, access: AccessMap) {
        if let Some(mapping) = self.table.get_mut(offset) {
            mapping.access = access;
        }
    }

    /// Removes the mappings of a cut from the driver and from the books.
    fn unmap_cut(&mut self, cut: Cut) -> Result<()> {
        let (reservation, at) = self.spans.reservation(cut).ok_or_else(|| no_reservation(cut))?;
        // SAFETY: the cut is one whole mapping, or a run of them where the backend takes runs; the caller has waited
        // for the devices, or has just mapped it and told no one the address.
        unsafe { reservation.unmap(at, cut.length) }?;
        for piece in self.pieces(cut.offset, cut.length) {
            self.table.remove(piece.offset);
        }
        Ok(())
    }

    /// A part of whole mappings as the calls that unmap it.
    fn unmap_cuts(&self, offset: Bytes, length: Bytes) -> Vec<Cut> {
        if self.unmaps_runs {
            return self.spans.cut(offset, length).collect();
        }
        self.table
            .touching(offset, length)
            .map(|(offset, mapping)| self.cut_of(offset, mapping.length()))
            .collect()
    }

    /// The one cut of a part that crosses no seam.
    fn cut_of(&self, offset: Bytes, length: Bytes) -> Cut {
        self.spans.first_cut(offset, length).unwrap_or(Cut { span: usize::MAX, offset, length })
    }
}

fn no_reservation(cut: Cut) -> Error {
    Error::OutOfRange { operation: "region", offset: cut.offset, length: cut.length, limit: Bytes::ZERO }
}

/// Pieces that follow each other without a hole and have the same key.
struct Run<K> {
    key: K,
    offset: Bytes,
    length: Bytes,
}

fn runs<B: Backend, K: PartialEq>(pieces: &[Piece<B>], key: impl Fn(&Piece<B>) -> K) -> Vec<Run<K>> {
    let mut runs: Vec<Run<K>> = Vec::new();
    for piece in pieces {
        let key = key(piece);
        match runs.last_mut() {
            Some(run) if run.key == key && run.offset + run.length == piece.offset => {
                run.length += piece.mapping.length();
            }
            _ => runs.push(Run { key, offset: piece.offset, length: piece.mapping.length() }),
        }
    }
    runs
}

impl<B: Backend> Drop for Layout<B> {
    /// Gives the addresses back in which nothing is mapped any more.
    fn drop(&mut self) {
        if self.table.is_empty() {
            return;
        }
        let table = &self.table;
        self.spans.abandon(|offset, size| table.touching(offset, size).next().is_some());
    }
}
