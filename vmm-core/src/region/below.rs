//! Addresses below a limit, for hardware that reaches fewer addresses than the process has.

use super::placement::{reserve_at, reserve_kept, reserve_near};
use super::restorable::{MAX_HINT, PORTABLE_UNIT, TRIES, chosen, random};
use crate::driver::{Backend, Reservation};
use crate::types::{Address, AddressRange, Alignment, Bytes, Detail, Error, Granularity, Operation, Result};

/// Reserves addresses that all lie below `limit`: those that the driver chooses if they do, else some at random hints.
pub(super) fn reserve<B: Backend>(
    backend: &B,
    operation: Operation,
    size: Bytes,
    alignment: Alignment,
    granularity: Granularity,
    limit: Address,
) -> Result<B::Reservation> {
    if size.0 > limit.0 {
        return Err(Error::new(operation, Detail::ExceedsAddressSpace { size, limit: Bytes(limit.0) }));
    }
    let free = reserve_near(backend, operation, size, alignment, None)?;
    let mut offered = free.range();
    if offered.end() <= limit {
        return Ok(free);
    }
    // The driver may want these addresses for another hint.
    drop(free);
    // Hints below the first unit would lie in programs that the system loads at fixed addresses.
    let step = alignment.max(granularity.into()).max(PORTABLE_UNIT.into()).bytes().0;
    let end = limit.0.min(MAX_HINT.0);
    let window = AddressRange { base: Address(step), size: Bytes(end.saturating_sub(step)) };
    let places = (window.size.0.saturating_sub(size.0) / step).saturating_add(1);
    let step_alignment = Alignment::new(Bytes(step)).unwrap_or(alignment);
    if let Some(kept) = reserve_kept(backend, size, step_alignment, window, random(TRIES)) {
        return Ok(kept);
    }
    for number in 0..TRIES {
        // A small window is tried from its end on, place by place.
        let place =
            if places <= u64::from(TRIES) { places - 1 - u64::from(number) % places } else { random(number) };
        let Ok(place) = chosen(window, operation, size, Bytes(step), place) else { break };
        let answer = reserve_at(backend, operation, size, alignment, place);
        match answer.as_ref().map_err(Error::detail) {
            Err(Detail::AddressTaken { offered: other, .. }) => offered.base = *other,
            _ => return answer,
        }
    }
    Err(Error::new(operation, Detail::NotBelow { size, limit, offered: offered.base }))
}

/// Refuses a range that is not entirely below a limit.
pub(super) fn check(operation: Operation, range: AddressRange, limit: Address) -> Result<()> {
    if range.end() <= limit {
        return Ok(());
    }
    Err(Error::new(operation, Detail::NotBelow { size: range.size, limit, offered: range.base }))
}
