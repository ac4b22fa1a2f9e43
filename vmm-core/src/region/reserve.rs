//! Reservations at a placement.

use super::placement::{Placement, check_hint, reserve_at, reserve_near};
use super::{below, restorable};
use crate::driver::Backend;
use crate::types::{Alignment, Bytes, Granularity, Operation, Result};

/// Reserves addresses at a placement. If the driver returns another address than an exact one, that range is released.
pub(crate) fn reserve<B: Backend>(
    backend: &B,
    operation: Operation,
    size: Bytes,
    alignment: Alignment,
    granularity: Granularity,
    placement: Placement,
) -> Result<B::Reservation> {
    let check = |address| check_hint(operation, address, size, alignment.max(granularity.into()));
    match placement {
        Placement::Anywhere => reserve_near(backend, operation, size, alignment, None),
        Placement::Prefer(address) => {
            check(address)?;
            reserve_near(backend, operation, size, alignment, Some(address))
        }
        Placement::Exact(address) => {
            check(address)?;
            reserve_at(backend, operation, size, alignment, address)
        }
        Placement::Restorable => restorable::reserve(backend, operation, size, alignment, granularity),
        Placement::Below(limit) => below::reserve(backend, operation, size, alignment, granularity, limit),
    }
}
