//! Guards: addresses before and behind a region in which nothing is ever mapped. They are reserved with the region in one
//! reservation, so that no other memory can lie there and an access beyond the region's ends faults.

use super::Region;
use super::layout::Layout;
use super::map::check_addresses;
use super::placement::{Placement, as_granularity, check_hint, rounded};
use super::reserve::reserve;
use super::table::PlacedMapping;
use crate::driver::Backend;
use crate::types::{Address, Alignment, Bytes, Detail, Error, Granularity, Operation, Result};

/// Reserves addresses for a region with a guard on either side. The region itself begins where `placement` says. The guard is a
/// multiple of the alignment and may be zero.
pub(super) fn reserve_guarded<B: Backend>(
    backend: &B,
    operation: Operation,
    size: Bytes,
    alignment: Alignment,
    granularity: Granularity,
    placement: Placement,
    guard: Bytes,
) -> Result<Layout<B>> {
    let laid_out = |size, placement| {
        let reservation = reserve(backend, operation, size, alignment, granularity, placement)?;
        Ok(Layout::new(backend, reservation, granularity, guard))
    };
    if guard.is_zero() {
        return laid_out(size, placement);
    }
    let begin = match placement {
        Placement::Prefer(address) | Placement::Exact(address) => {
            check_hint(operation, address, size, alignment)?;
            // Without enough addresses before it the place is out of reach.
            let begin = address.0.checked_sub(guard.0).map(Address);
            begin.map_or(Placement::Anywhere, Placement::Prefer)
        }
        Placement::Anywhere | Placement::Restorable | Placement::Below(_) => placement,
    };
    let layout = laid_out(rounded(operation, size + guard + guard, granularity)?, begin)?;
    match placement {
        Placement::Exact(wanted) if layout.spans.base() != wanted => {
            Err(Error::new(operation, Detail::AddressTaken { wanted, offered: layout.spans.base() }))
        }
        _ => Ok(layout),
    }
}

impl<B: Backend> Region<B> {
    /// Reserves at least `size` further bytes of addresses to which the pieces can move. The range has the region's guard and an
    /// alignment that suits the region and every piece.
    pub(super) fn reserve_elsewhere(
        &self,
        operation: Operation,
        size: Bytes,
        placement: Placement,
        pieces: &[PlacedMapping<B>],
    ) -> Result<Layout<B>> {
        let size = self.addresses(operation, size)?;
        let mut alignment = Alignment::max(self.alignment, self.granularity.into());
        if let Placement::Exact(address) = placement {
            check_addresses(operation, address, pieces)?;
        } else {
            // Pieces at offsets that are multiples of their granularity fit at every multiple of the largest granularity.
            check_addresses(operation, Address(0), pieces)?;
            let units = pieces.iter().map(|piece| piece.mapping.memory.granularity().into());
            alignment = units.fold(alignment, Alignment::max);
        }
        // The region begins behind the guard.
        let guard = match self.growing.guard {
            Bytes::ZERO => Bytes::ZERO,
            some => rounded(operation, some, as_granularity(alignment))?,
        };
        reserve_guarded(&self.backend, operation, size, alignment, self.granularity, placement, guard)
    }
}
