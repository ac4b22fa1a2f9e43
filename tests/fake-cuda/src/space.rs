//! The places of reservations. As with the real driver, all reserved addresses are inaccessible pages of this process.
//!
//! Measured, and done here: a reservation takes multiples of 32 MiB of addresses. Those without a hint lie low, in an arena
//! of the driver's own. Hints in the part of the arena that was used so far are accepted; hints beyond that part are moved.
//! Hints outside of the arena are accepted if they are free. Once there is a context, reservations of up to 24 MiB go to
//! addresses that the driver keeps for small ones, whatever the hint, and larger ones too as long as these have room. Not measured, and
//! decided here: which free place is chosen, how many addresses are kept, and that hints which are not multiples of 32 MiB are moved.

use crate::c::GRANULARITY;
use crate::pages::Pages;
use std::collections::BTreeMap;
use std::ops::Range;

/// The granularity of a reservation's addresses.
const BLOCK: u64 = 32 << 20;
/// The driver's own arena. The driver uses the addresses below, from 0x400000000 on, for itself.
const ARENA: Range<u64> = 0x4_0200_0000..0x0800_0000_0000;
/// The size of the largest reservation for which the arena of small ones grows, and the step by which it does.
const SMALL: u64 = 24 << 20;
const SMALL_ARENA: u64 = 256 << 20;
/// The end of a process's address space.
const END: u64 = 1 << 47;

/// A range of addresses.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// The requested size.
    pub(crate) size: u64,
    /// The size of the addresses that it takes.
    extent: u64,
    /// The pages that hold them; for small reservations, their arena has the pages.
    _pages: Option<Pages>,
}

/// All reserved addresses.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    small: Vec<Pages>,
    /// The end of the used part of the arena.
    top: u64,
}

impl Default for Space {
    fn default() -> Self {
        Self { reservations: BTreeMap::new(), small: Vec::new(), top: ARENA.start }
    }
}

impl Space {
    /// Reserves addresses; returns `None` if none are free.
    pub(crate) fn reserve(&mut self, size: u64, alignment: u64, hint: u64, has_context: bool) -> Option<u64> {
        let small = if has_context { self.reserve_small(size, alignment) } else { None };
        let (base, reservation) = small.or_else(|| self.reserve_blocks(size, alignment, hint))?;
        if ARENA.contains(&base) {
            self.top = self.top.max(base + reservation.extent);
        }
        self.reservations.insert(base, reservation);
        Some(base)
    }

    fn reserve_small(&mut self, size: u64, alignment: u64) -> Option<(u64, Reservation)> {
        let alignment = alignment.max(GRANULARITY);
        let find = |space: &Self| {
            let arenas = space.small.iter().map(|arena| arena.start()..arena.start() + arena.size());
            arenas.into_iter().find_map(|arena| space.gap(arena, size, alignment))
        };
        let base = match find(self) {
            Some(base) => base,
            None if size > SMALL => return None,
            None => {
                self.small.push(Pages::closed(SMALL_ARENA, GRANULARITY)?);
                find(self)?
            }
        };
        Some((base, Reservation { size, extent: size, _pages: None }))
    }

    fn reserve_blocks(&self, size: u64, alignment: u64, hint: u64) -> Option<(u64, Reservation)> {
        let (extent, alignment) = (size.checked_next_multiple_of(BLOCK)?, alignment.max(BLOCK));
        let made = |pages: Pages| {
            let base = pages.start();
            (base, Reservation { size, extent, _pages: Some(pages) })
        };
        if hint.is_multiple_of(alignment)
            && self.takes(hint, extent)
            && let Some(pages) = Pages::closed_at(hint, extent)
        {
            return Some(made(pages));
        }
        let mut from = ARENA.start;
        while let Some(place) = self.gap(from..ARENA.end, extent, alignment) {
            match Pages::closed_at(place, extent) {
                Some(pages) => return Some(made(pages)),
                // The program has mapped its own pages there.
                None => from = place + BLOCK,
            }
        }
        Pages::closed(extent, alignment).map(made)
    }

    /// Returns whether a hint is accepted, if nothing else of the process is there.
    fn takes(&self, hint: u64, extent: u64) -> bool {
        let reach = hint.checked_add(extent).filter(|end| *end <= END);
        let is_drivers = (0x4_0000_0000..ARENA.start).contains(&hint);
        let is_beyond = ARENA.contains(&hint) && hint > self.top;
        hint != 0
            && !is_drivers
            && !is_beyond
            && reach.is_some_and(|end| self.gap(hint..end, extent, BLOCK) == Some(hint))
    }

    /// Returns the first free place for `size` in a range.
    fn gap(&self, within: Range<u64>, size: u64, alignment: u64) -> Option<u64> {
        let mut at = within.start.checked_next_multiple_of(alignment)?;
        let before = self.reservations.range(..within.start).next_back();
        for (base, taken) in before.into_iter().chain(self.reservations.range(within.start..within.end)) {
            if at.checked_add(size)? <= *base {
                break;
            }
            at = at.max(base + taken.extent).checked_next_multiple_of(alignment)?;
        }
        (at.checked_add(size)? <= within.end).then_some(at)
    }

    /// Frees addresses.
    pub(crate) fn free(&mut self, base: u64) {
        self.reservations.remove(&base);
    }

    /// Returns the reservation that contains an address.
    pub(crate) fn around(&self, at: u64) -> Option<(u64, &Reservation)> {
        let (base, reservation) = self.reservations.range(..=at).next_back()?;
        (at - base < reservation.size).then_some((*base, reservation))
    }

    /// Returns whether an address is in the driver's own arena.
    pub(crate) fn is_in_arena(at: u64) -> bool {
        ARENA.contains(&at)
    }
}
