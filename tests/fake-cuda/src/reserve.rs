//! Ranges of addresses: `cuMemAddressReserve`, `cuMemAddressFree`. `space` chooses their places.
//!
//! Measured: sizes and hints must be multiples of the granularity, although the documentation says of the host's page;
//! ignoring a hint is not an error. A range must be freed with the size of its reservation, and with nothing mapped in it.
#![allow(unsafe_code)] // exported to C

use crate::c::{GRANULARITY, Out, given};
use crate::code::{Answer, Code};
use crate::context;
use crate::device::check_virtual_memory;
use crate::state::{State, state};
use crate::violation::{note, refuse};

fn reserve(size: u64, alignment: u64, hint: u64, flags: u64) -> Answer<u64> {
    let is_right = size != 0
        && size.is_multiple_of(GRANULARITY)
        && hint.is_multiple_of(GRANULARITY)
        && (alignment == 0 || alignment.is_power_of_two())
        && flags == 0;
    if !is_right {
        return Err(refuse(
            Code::INVALID_VALUE,
            format_args!("size {size:#x}, alignment {alignment:#x}, hint {hint:#x}, flags {flags:#x}"),
        ));
    }
    let has_context = context::any();
    state().space.reserve(size, alignment, hint, has_context).ok_or(Code::OUT_OF_MEMORY)
}

impl State {
    fn free_addresses(&mut self, base: u64, size: u64) -> Answer {
        let wrong = match self.space.reservations.get(&base) {
            None => Some("no reservation begins there"),
            Some(reservation) if reservation.size != size => Some("another size was reserved"),
            Some(_) if !self.mappings_in(base, base + size).is_empty() => Some("something is mapped there"),
            Some(_) => None,
        };
        if let Some(wrong) = wrong {
            return Err(refuse(Code::INVALID_VALUE, format_args!("{size:#x} at {base:#x}: {wrong}")));
        }
        self.space.free(base);
        Ok(())
    }

    /// Returns whether a range is reserved throughout, or mapped beyond the end of its reservation. The driver accepts a
    /// range over several reservations; that is a violation.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            let reserved = self.space.around(at).map(|(base, reservation)| base + reservation.size);
            let mapped = self.mapping(at).map(|(base, mapping)| base + mapping.size);
            let Some(next) = reserved.max(mapped) else { return false };
            if at > start {
                note(format_args!("{start:#x} to {end:#x} crosses the end of a reservation at {at:#x}"));
            }
            at = next;
        }
        true
    }
}

/// Returns the end of a range of whole granules.
pub(crate) fn end_of(start: u64, size: u64) -> Answer<u64> {
    let is_right = size != 0 && size.is_multiple_of(GRANULARITY) && start.is_multiple_of(GRANULARITY);
    let end = start.checked_add(size).filter(|_| is_right);
    end.ok_or_else(|| {
        refuse(Code::INVALID_VALUE, format_args!("{size:#x} at {start:#x}: not whole granules"))
    })
}

cuda! {
    /// Reserves addresses.
    fn cuMemAddressReserve(out: Out<'_, u64>, size: usize, alignment: usize, hint: u64, flags: u64) {
        let out = given(out, "ptr")?;
        check_virtual_memory()?;
        out.write(reserve(size as u64, alignment as u64, hint, flags)?);
        Ok(())
    }

    /// Frees addresses.
    fn cuMemAddressFree(base: u64, size: usize) {
        state().free_addresses(base, size as u64)
    }
}
