//! Adjacent reservations as one range of addresses. No other file knows their borders.
//!
//! CUDA allows a call to cross from one reservation into the next, HIP refuses it, so no call does: callers split a part [at the
//! borders](Spans::cut).

use crate::driver::{Backend, Reservation};
use crate::memory::{Record, Registered};
use crate::types::{Address, AddressRange, Bytes, OffsetRange};
use std::sync::Arc;

/// One reservation and the part of the region that lies in it.
#[derive(Debug)]
struct Span<B: Backend> {
    /// The offset of the part in the region.
    offset: Bytes,
    /// The offset of the part in the reservation: the size of the guard, if there is one.
    lead: Bytes,
    length: Bytes,
    /// The entry in the registry. It ends before the addresses are released, when other code can reserve them.
    _registered: Registered,
    addresses: Addresses<B>,
}

#[derive(Debug)]
enum Addresses<B: Backend> {
    Reserved(B::Reservation),
    /// The addresses of a plain allocation, to which its only mapping belongs.
    Plain(Address),
}

impl<B: Backend> Span<B> {
    /// The addresses of the region.
    fn range(&self) -> AddressRange {
        let base = match &self.addresses {
            Addresses::Reserved(reservation) => reservation.range().base + self.lead,
            Addresses::Plain(base) => *base,
        };
        AddressRange { base, size: self.length }
    }
}

/// The reservations of a region in order, each beginning where the previous one ends; or a plain allocation. Empty only in a region
/// that ends, and in an empty one without virtual memory management.
#[derive(Debug)]
pub(super) struct Spans<B: Backend>(Vec<Span<B>>);

/// A part of a region that lies in one reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The number of the reservation.
    pub(super) span: usize,
    /// The offsets in the region.
    pub(super) range: OffsetRange,
}

impl<B: Backend> Spans<B> {
    /// A reservation, of which the guard at each end does not count.
    pub(super) fn new(reservation: B::Reservation, guard: Bytes, record: &Arc<Record>) -> Self {
        let reserved = reservation.range();
        let length = reservation.range().size - (guard + guard);
        let usable = AddressRange { base: reserved.base + guard, size: length };
        let _registered = Registered::new(record, reserved, usable, Bytes::ZERO);
        let addresses = Addresses::Reserved(reservation);
        Self(vec![Span { offset: Bytes::ZERO, lead: guard, length, _registered, addresses }])
    }

    /// A plain allocation.
    pub(super) fn plain(range: AddressRange, record: &Arc<Record>) -> Self {
        let (offset, addresses) = (Bytes::ZERO, Addresses::Plain(range.base));
        let _registered = Registered::new(record, range, range, offset);
        Self(vec![Span { offset, lead: Bytes::ZERO, length: range.size, _registered, addresses }])
    }

    /// Reports whether this is a plain allocation, which needs no driver call to be mapped.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.0.first(), Some(Span { addresses: Addresses::Plain(_), .. }))
    }

    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    /// The first address of the region.
    pub(super) fn base(&self) -> Address {
        self.0.first().map_or(Address(0), |span| span.range().base)
    }

    /// The size of all reservations together, without the guard.
    pub(super) fn size(&self) -> Bytes {
        self.0.last().map_or(Bytes::ZERO, |span| span.offset + span.length)
    }

    /// The bytes of addresses that are kept free on either side.
    pub(super) fn guard(&self) -> Bytes {
        self.0.first().map_or(Bytes::ZERO, |span| span.lead)
    }

    pub(super) fn ranges(&self) -> impl ExactSizeIterator<Item = AddressRange> {
        self.0.iter().map(Span::range)
    }

    /// All reservations, in order.
    pub(super) fn reservations(&mut self) -> impl Iterator<Item = &mut B::Reservation> {
        self.0.iter_mut().filter_map(|span| match &mut span.addresses {
            Addresses::Reserved(reservation) => Some(reservation),
            Addresses::Plain(_) => None,
        })
    }

    /// Adds a reservation that begins where the last one ends.
    pub(super) fn push(&mut self, reservation: B::Reservation, record: &Arc<Record>) {
        debug_assert_eq!(reservation.range().base, self.base() + self.size());
        let (offset, range) = (self.size(), reservation.range());
        let _registered = Registered::new(record, range, range, offset);
        let addresses = Addresses::Reserved(reservation);
        self.0.push(Span { offset, lead: Bytes::ZERO, length: range.size, _registered, addresses });
    }

    /// Releases the last reservation, in which nothing may be mapped.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    /// The reservation of a cut, and the cut's offset in it.
    pub(super) fn reservation(&mut self, cut: Cut) -> Option<(&mut B::Reservation, Bytes)> {
        let span = self.0.get_mut(cut.span)?;
        let Addresses::Reserved(reservation) = &mut span.addresses else { return None };
        Some((reservation, cut.range.offset - span.offset + span.lead))
    }

    /// The same for shared access.
    #[cfg(unix)]
    pub(super) fn reservation_at(&self, cut: Cut) -> Option<(&B::Reservation, Bytes)> {
        let span = self.0.get(cut.span)?;
        let Addresses::Reserved(held) = &span.addresses else { return None };
        Some((held, cut.range.offset - span.offset + span.lead))
    }

    /// A part of the region, split at the borders of the reservations.
    pub(super) fn cut(&self, offset: Bytes, length: Bytes) -> impl Iterator<Item = Cut> {
        let end = offset + length;
        let first = self.0.partition_point(|span| span.offset <= offset).saturating_sub(1);
        self.0.iter().enumerate().skip(first).map_while(move |(index, span)| {
            let start = span.offset.max(offset);
            let stop = (span.offset + span.length).min(end);
            (start < stop)
                .then(|| Cut { span: index, range: OffsetRange { offset: start, length: stop - start } })
        })
    }

    /// The first of those cuts.
    pub(super) fn first_cut(&self, offset: Bytes, length: Bytes) -> Option<Cut> {
        self.cut(offset, length).next()
    }

    /// Removes all reservations, and releases those in which `is_used` reports no mapping. Releasing the others would corrupt a
    /// driver's records, so they stay until the process ends.
    pub(super) fn abandon(&mut self, is_used: impl Fn(Bytes, Bytes) -> bool) {
        for span in self.0.drain(..) {
            if is_used(span.offset, span.length) {
                std::mem::forget(span.addresses);
            }
        }
    }
}
