//! The addresses and mappings of a region, and the three changes on which all operations are built: place, remove, set access.
//!
//! Each change is a transaction: if a driver call fails, everything is as before. If the rollback fails too, the affected
//! mappings are poisoned, and every later operation on them is refused.
#![allow(unsafe_code)]

use super::spans::{Cut, Spans};
use super::table::{Mapping, PlacedMapping, Table};
use crate::driver::{Backend, Reservation};
use crate::memory::{PhysicalMemory, Record};
use crate::types::{
    Access, AccessMap, AddressRange, Bytes, Detail, DeviceId, Error, Grant, Granularity, OffsetRange,
    Operation, Result,
};

#[derive(Debug)]
pub(super) struct Layout<B: Backend> {
    pub(super) spans: Spans<B>,
    pub(super) table: Table<B>,
    unmaps_runs: bool,
}

/// One side of an exchange: [`Layout::remove`] removes the parts, [`Layout::place`] maps the pieces.
#[derive(Debug)]
pub(super) struct Exchange<'a, B: Backend> {
    layout: &'a mut Layout<B>,
    parts: Vec<OffsetRange>,
    pieces: Vec<PlacedMapping<B>>,
    /// The mappings that have been removed already.
    gone: Vec<PlacedMapping<B>>,
}

impl<'a, B: Backend> Exchange<'a, B> {
    pub(super) fn new(
        layout: &'a mut Layout<B>,
        parts: Vec<OffsetRange>,
        pieces: Vec<PlacedMapping<B>>,
    ) -> Self {
        Self { layout, parts, pieces, gone: Vec::new() }
    }

    fn remove(&mut self) -> Result<()> {
        self.parts.iter().try_for_each(|part| self.layout.unmap(*part, &mut self.gone))
    }
}

impl<B: Backend> Layout<B> {
    /// A reservation without mappings, with a guard at each of its ends.
    pub(super) fn new(
        backend: &B,
        reservation: B::Reservation,
        granularity: Granularity,
        guard: Bytes,
    ) -> Self {
        let record = Record::new(backend);
        Self {
            spans: Spans::new(reservation, guard, &record),
            table: Table::new(granularity, record),
            unmaps_runs: backend.unmaps_runs(),
        }
    }

    /// A plain allocation at these addresses, or none, without its mapping.
    pub(super) fn plain(backend: &B, granularity: Granularity, addresses: Option<AddressRange>) -> Self {
        let record = Record::new(backend);
        let spans = addresses.map_or_else(Spans::none, |addresses| Spans::plain(addresses, &record));
        Self { spans, table: Table::new(granularity, record), unmaps_runs: false }
    }

    /// The region's entry in the registry of addresses.
    pub(super) fn record(&self) -> &Record {
        self.table.record()
    }

    /// Adds a reservation that begins where the last one ends.
    pub(super) fn extend(&mut self, reservation: B::Reservation) {
        self.spans.push(reservation, self.table.record());
    }

    /// Takes the reservations and mappings out of `self`.
    pub(super) fn take(&mut self) -> Self {
        let spans = std::mem::replace(&mut self.spans, Spans::none());
        Self { spans, table: self.table.take_all(), unmaps_runs: self.unmaps_runs }
    }

    /// Maps pieces and sets their access, all or none. The pieces are in order of their offsets. The caller has checked that they
    /// lie in the reservations, cross no border between them, and overlap nothing.
    pub(super) fn place(&mut self, pieces: &[PlacedMapping<B>]) -> Result<()> {
        let mut mapped = 0;
        let mut result = Ok(());
        for PlacedMapping { offset, mapping } in pieces {
            result = self.map_one(*offset, &mapping.memory);
            if result.is_err() {
                break;
            }
            mapped += 1;
        }
        let result = result.and_then(|()| self.grant_runs(pieces));
        result.map_err(|error| self.undo_place(error, &pieces[..mapped]))
    }

    /// Removes the mappings of the parts, all or none. Each part consists of whole mappings without a hole.
    pub(super) fn remove(&mut self, parts: &[OffsetRange]) -> Result<()> {
        self.exchange(parts, &[])
    }

    /// Removes parts as [`Layout::remove`] does and then maps pieces as [`Layout::place`] does, all or none.
    pub(super) fn exchange(&mut self, parts: &[OffsetRange], pieces: &[PlacedMapping<B>]) -> Result<()> {
        let mut gone = Vec::new();
        let removed = parts.iter().try_for_each(|part| self.unmap(*part, &mut gone));
        match removed.and_then(|()| self.place(pieces)) {
            Ok(()) => {
                self.poison(memories(&gone));
                Ok(())
            }
            Err(error) => Err(self.restore(error, gone)),
        }
    }

    /// Does what [`Layout::exchange`] does in two layouts: both or neither.
    pub(super) fn exchange_both(mut one: Exchange<'_, B>, mut other: Exchange<'_, B>) -> Result<()> {
        let result = one.remove().and_then(|()| other.remove());
        let result = result.and_then(|()| one.layout.place(&one.pieces)).and_then(|()| {
            let placed = other.layout.place(&other.pieces);
            placed.map_err(|error| one.layout.undo_place(error, &one.pieces))
        });
        match result {
            Ok(()) => {
                for side in [one, other] {
                    side.layout.poison(memories(&side.gone));
                }
                Ok(())
            }
            Err(error) => {
                let error = one.layout.restore(error, one.gone);
                Err(other.layout.restore(error, other.gone))
            }
        }
    }

    /// Requests that memory which leaves a guarded region is poisoned when it is freed.
    pub(super) fn poison<'a>(&self, memory: impl Iterator<Item = &'a PhysicalMemory<B>>) {
        if !self.spans.guard().is_zero() {
            memory.for_each(PhysicalMemory::poison_when_freed);
        }
    }

    /// Does the same for all mapped memory of a region that ends.
    pub(super) fn poison_all(&self) {
        self.poison(self.table.iter().map(|(_, mapping)| &mapping.memory));
    }

    /// Changes one device's access to whole mappings, all or none.
    pub(super) fn set_access(&mut self, part: OffsetRange, device: DeviceId, access: Access) -> Result<()> {
        let Err(error) = self.grant(part, &[Grant { device, access }]) else {
            self.table.change(part, |mapping| mapping.access = mapping.access.with(device, access));
            return Ok(());
        };
        for run in runs(&self.pieces(part), |mapping| mapping.access.get(device)) {
            let old = Grant { device, access: run[0].mapping.access.get(device) };
            if let Err(undo) = self.grant(part_of(run), &[old]) {
                return Err(self.put_out_of_use(error, undo, [part]));
            }
        }
        Err(error)
    }

    /// Removes every mapping that is not poisoned, and continues after an error. For layouts that end anyway. Returns the first
    /// error.
    pub(super) fn clear(&mut self) -> Result<()> {
        let mut first = Ok(());
        for part in self.parts() {
            let mut rest = part;
            while let Some(cut) = self.first_unmap(rest) {
                let answer = self.unmap_cut(cut, &mut Vec::new());
                first = first.and(answer);
                rest = part.from(cut.range.end());
            }
        }
        first
    }

    /// Empties a layout whose region ends without its destructor. A call that fails is tried twice, as when a region is closed
    /// and dropped.
    pub(super) fn give_up(&mut self) -> Result<()> {
        self.poison_all();
        let Err(error) = self.clear() else { return Ok(()) };
        let again = self.clear();
        again.map_err(|undo| error.rollback_failed(undo))
    }

    /// Refuses a layout with a poisoned mapping.
    pub(super) fn check_in_use(&self, operation: Operation) -> Result<()> {
        if !self.table.is_in_doubt() {
            return Ok(());
        }
        self.table
            .iter()
            .try_for_each(|(offset, mapping)| self.table.check_mapped(operation, offset, mapping.length()))
    }

    /// The runs of mappings that are not poisoned and follow each other without a hole.
    pub(super) fn parts(&self) -> Vec<OffsetRange> {
        let good = self.table.iter().filter(|(_, mapping)| mapping.poisoned.is_none());
        OffsetRange::joined(good.map(|(offset, mapping)| OffsetRange { offset, length: mapping.length() }))
    }

    /// The current mappings of a part.
    pub(super) fn pieces(&self, part: OffsetRange) -> Vec<PlacedMapping<B>> {
        let touching = self.table.touching(part.offset, part.length);
        touching.map(|(offset, mapping)| PlacedMapping { offset, mapping: mapping.clone() }).collect()
    }

    /// Poisons the mappings of some parts.
    pub(super) fn put_out_of_use(
        &mut self,
        error: Error,
        undo: Error,
        parts: impl IntoIterator<Item = OffsetRange>,
    ) -> Error {
        let cause: Box<str> = format!("{error}; {undo}").into();
        for part in parts {
            self.table.change(part, |mapping| mapping.poisoned = Some(cause.clone()));
        }
        error.rollback_failed(undo)
    }

    /// Maps pieces again that were removed before `error` occurred. A piece that cannot be mapped keeps its memory and is
    /// poisoned. A piece whose place is taken by a mapping that could not be removed is dropped: that mapping is poisoned itself.
    pub(super) fn restore(&mut self, error: Error, mut gone: Vec<PlacedMapping<B>>) -> Error {
        gone.retain(|piece| self.table.touching(piece.offset, piece.mapping.length()).next().is_none());
        let Err(undo) = self.place(&gone) else { return error };
        let cause: Box<str> = format!("{error}; {undo}").into();
        for PlacedMapping { offset, mut mapping } in gone {
            mapping.poisoned = Some(cause.clone());
            if self.table.at(offset).is_none() {
                self.table.insert(offset, mapping);
            }
        }
        error.rollback_failed(undo)
    }

    /// Unmaps the pieces that `place` had mapped before `error` occurred.
    pub(super) fn undo_place(&mut self, error: Error, placed: &[PlacedMapping<B>]) -> Error {
        let mut rest = placed.iter().map(PlacedMapping::part);
        while let Some(part) = rest.next() {
            if let Err(undo) = self.unmap(part, &mut Vec::new()) {
                return self.put_out_of_use(error, undo, std::iter::once(part).chain(rest));
            }
        }
        error
    }

    fn map_one(&mut self, offset: Bytes, memory: &PhysicalMemory<B>) -> Result<()> {
        if !self.spans.is_plain() {
            self.map_handle(offset, memory)?;
        }
        self.table.insert(offset, Mapping::new(memory.clone(), AccessMap::NONE));
        Ok(())
    }

    fn map_handle(&mut self, offset: Bytes, memory: &PhysicalMemory<B>) -> Result<()> {
        let operation = Operation::Map;
        let cut = self.cut_of(offset, memory.size());
        let (reservation, at) = self.spans.reservation(cut).ok_or_else(|| no_reservation(operation, cut))?;
        // SAFETY: the caller of `place` has checked that the part is inside one reservation, aligned and free, and that the
        // memory is of this backend.
        unsafe { reservation.map(at, memory.handle(operation)?) }
    }

    /// Sets the access of mapped pieces, with one call for each run of equal access.
    fn grant_runs(&mut self, pieces: &[PlacedMapping<B>]) -> Result<()> {
        for run in runs(pieces, |mapping| mapping.access) {
            let access = run[0].mapping.access;
            if access.is_none() {
                continue;
            }
            let part = part_of(run);
            self.grant(part, &access.grants().collect::<Vec<_>>())?;
            self.table.change(part, |mapping| mapping.access = access);
        }
        Ok(())
    }

    pub(super) fn grant(&mut self, part: OffsetRange, grants: &[Grant]) -> Result<()> {
        let mut rest = part;
        while !self.spans.is_plain()
            && let Some(cut) = self.spans.first_cut(rest.offset, rest.length)
        {
            let (reservation, at) =
                self.spans.reservation(cut).ok_or_else(|| no_reservation(Operation::SetAccess, cut))?;
            // SAFETY: the cut consists of whole mappings without a hole in one reservation, since no mapping crosses a border;
            // the caller of this function has checked the devices.
            unsafe { reservation.set_access(at, cut.range.length, grants) }?;
            rest = part.from(cut.range.end());
        }
        Ok(())
    }

    /// Removes the mappings of a part from the driver and from the records, one call after the other. `gone` receives the removed
    /// mappings, also when a call fails.
    pub(super) fn unmap(&mut self, part: OffsetRange, gone: &mut Vec<PlacedMapping<B>>) -> Result<()> {
        let mut rest = part;
        while let Some(cut) = self.first_unmap(rest) {
            self.unmap_cut(cut, gone)?;
            rest = part.from(cut.range.end());
        }
        Ok(())
    }

    fn unmap_cut(&mut self, cut: Cut, gone: &mut Vec<PlacedMapping<B>>) -> Result<()> {
        if !self.spans.is_plain() {
            let (reservation, at) =
                self.spans.reservation(cut).ok_or_else(|| no_reservation(Operation::Unmap, cut))?;
            // SAFETY: the cut is one whole mapping, or a run of them if the backend unmaps runs; the caller has waited for the
            // devices, or has just created the mapping, whose address no device knows.
            unsafe { reservation.unmap(at, cut.range.length) }?;
        }
        self.table.take(cut.range, gone);
        Ok(())
    }

    /// The range of the next unmap call for a part of whole mappings.
    fn first_unmap(&self, part: OffsetRange) -> Option<Cut> {
        if self.unmaps_runs {
            return self.spans.first_cut(part.offset, part.length);
        }
        let mapped = self.table.first_in(part)?;
        Some(self.cut_of(mapped.offset, mapped.length))
    }

    /// The cut of a part that crosses no border between reservations.
    fn cut_of(&self, offset: Bytes, length: Bytes) -> Cut {
        self.spans
            .first_cut(offset, length)
            .unwrap_or(Cut { span: usize::MAX, range: OffsetRange { offset, length } })
    }
}

fn no_reservation(operation: Operation, cut: Cut) -> Error {
    Error::new(operation, Detail::OutOfRange { range: cut.range, limit: Bytes::ZERO })
}

/// Runs of pieces that follow each other without a hole and have the same key.
pub(super) fn runs<B: Backend, K: PartialEq>(
    pieces: &[PlacedMapping<B>],
    key: impl Fn(&Mapping<B>) -> K,
) -> impl Iterator<Item = &[PlacedMapping<B>]> {
    pieces.chunk_by(move |one, next| {
        one.offset + one.mapping.length() == next.offset && key(&one.mapping) == key(&next.mapping)
    })
}

/// The memory of pieces.
pub(super) fn memories<B: Backend>(pieces: &[PlacedMapping<B>]) -> impl Iterator<Item = &PhysicalMemory<B>> {
    pieces.iter().map(|piece| &piece.mapping.memory)
}

/// The range that a run of pieces covers.
pub(super) fn part_of<B: Backend>(run: &[PlacedMapping<B>]) -> OffsetRange {
    let offset = run.first().map_or(Bytes::ZERO, |piece| piece.offset);
    OffsetRange { offset, length: run.iter().map(|piece| piece.mapping.length()).sum() }
}

impl<B: Backend> Drop for Layout<B> {
    /// Releases the reservations without mappings. The others stay until the process ends.
    fn drop(&mut self) {
        if self.table.is_empty() {
            return;
        }
        let table = &self.table;
        self.spans.abandon(|offset, size| table.touching(offset, size).next().is_some());
    }
}
