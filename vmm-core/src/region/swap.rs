//! Two regions exchange what is behind their addresses, and no byte is copied.
//!
//! The addresses keep their access: what comes to lie at an address can be used by whoever could use it before.

use super::Region;
use super::check_aligned;
use super::layout::{Exchange, Layout};
use super::table::{Mapping, Piece};
use crate::driver::{Backend, WaitFor, check_same};
use crate::types::{AccessMap, Bytes, Detail, DeviceId, Error, OffsetRange, Operation, Result};
use std::collections::BTreeSet;

impl<B: Backend> Region<B> {
    /// Exchanges the physical memory of a part with that of a part of another region: afterwards this region's addresses
    /// show the other one's bytes, and the reverse. Neither address changes, no byte is copied, and each address keeps its
    /// access. CUDA: `cuMemUnmap`, `cuMemMap` and `cuMemSetAccess`, HIP: `hipMemUnmap`, `hipMemMap` and
    /// `hipMemSetAccess`.
    ///
    /// Both parts are whole mappings without a hole; they need not be cut in the same places. Waits as `done` says for
    /// what uses either part, before anything is taken away.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`] for a region of another backend. For either part: [`Detail::ZeroSize`],
    /// [`Detail::Unaligned`], also where memory of a larger granularity would come to lie between its multiples,
    /// [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::PartialMapping`]. For what would come: [`Detail::CrossesReservation`],
    /// [`Detail::AccessDiffers`] where one mapping would take the place of several with unequal access, and
    /// [`Detail::PeerUnreachable`] where a device that has access to the addresses cannot reach the memory. Or what waiting
    /// or the driver answers; then both regions are as before.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, WaitFor, Region, Result};
    /// # fn example<B: Backend>(front: &mut Region<B>, back: &mut Region<B>) -> Result<()> {
    /// // A captured graph knows the addresses of `front` alone; the first 64 MiB were prepared in `back`.
    /// front.swap(Bytes(0), back, Bytes(0), Bytes::mib(64), WaitFor::all_devices())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn swap(
        &mut self,
        offset: Bytes,
        other: &mut Self,
        other_offset: Bytes,
        length: Bytes,
        done: WaitFor<'_>,
    ) -> Result<()> {
        let operation = Operation::Swap;
        check_same(operation, &other.backend, &self.backend)?;
        self.check_part(operation, offset, length)?;
        other.check_part(operation, other_offset, length)?;
        self.layout.table.check_whole(operation, offset, length)?;
        other.layout.table.check_whole(operation, other_offset, length)?;
        let (part, other_part) =
            (OffsetRange { offset, length }, OffsetRange { offset: other_offset, length });
        self.swap_parts(operation, vec![part], other, vec![other_part], done)
    }

    /// Exchanges all physical memory with another region: [`Region::swap`] of everything. The same offsets must be mapped
    /// in both, so that a hole of the one is a hole of the other; how many addresses they have does not matter. Two empty
    /// regions are left as they are.
    ///
    /// # Errors
    ///
    /// Those of [`Region::swap`]: [`Detail::NotMapped`] for either region where it has a hole and the other has not.
    pub fn swap_all(&mut self, other: &mut Self, done: WaitFor<'_>) -> Result<()> {
        let operation = Operation::Swap;
        check_same(operation, &other.backend, &self.backend)?;
        for (region, model) in [(&*self, &*other), (&*other, &*self)] {
            region.check_usable(operation)?;
            for part in model.layout.parts() {
                region.check_part(operation, part.offset, part.length)?;
                region.layout.table.check_mapped(operation, part.offset, part.length)?;
            }
        }
        let parts = self.layout.parts();
        if parts.is_empty() {
            return Ok(());
        }
        self.swap_parts(operation, parts.clone(), other, parts, done)
    }

    /// Exchanges parts that are whole mappings without a hole, the first with the first and so on, each pair as long.
    fn swap_parts(
        &mut self,
        operation: Operation,
        parts: Vec<OffsetRange>,
        other: &mut Self,
        other_parts: Vec<OffsetRange>,
        done: WaitFor<'_>,
    ) -> Result<()> {
        let ours = self.coming(operation, &parts, other, &other_parts)?;
        let theirs = other.coming(operation, &other_parts, self, &parts)?;
        done.wait(&self.backend, || {
            let users = users(&self.layout, &parts).chain(users(&other.layout, &other_parts));
            users.collect::<BTreeSet<_>>().into_iter()
        })?;
        Layout::exchange_both(
            Exchange::new(&mut self.layout, parts, ours),
            Exchange::new(&mut other.layout, other_parts, theirs),
        )
    }

    /// The pieces of another region's parts as they would lie in this one's, with the access that this one has there; if
    /// they can.
    fn coming(
        &self,
        operation: Operation,
        parts: &[OffsetRange],
        from: &Self,
        from_parts: &[OffsetRange],
    ) -> Result<Vec<Piece<B>>> {
        let mut coming = Vec::new();
        for (to, part) in parts.iter().zip(from_parts) {
            for Piece { offset, mapping: Mapping { memory, .. } } in from.layout.pieces(*part) {
                let offset = to.offset + (offset - part.offset);
                self.check_part(operation, offset, memory.size())?;
                check_aligned(operation, "address", (self.address() + offset).0, memory.granularity())?;
                self.check_seams(operation, offset, memory.size())?;
                let access = self.common_access(operation, offset, memory.size())?;
                coming.push(Piece { offset, mapping: Mapping::new(memory, access) });
            }
        }
        let ways = coming.iter().map(|Piece { mapping, .. }| (mapping.access, mapping.memory.properties()));
        self.check_ways(operation, ways)?;
        Ok(coming)
    }

    /// The access to a part that is mapped, if it is the same throughout.
    fn common_access(&self, operation: Operation, offset: Bytes, length: Bytes) -> Result<AccessMap> {
        let mut all = self.layout.table.touching(offset, length).map(|(_, mapping)| mapping.access);
        let first = all.next().unwrap_or_default();
        match all.find_map(|access| first.changes(access).next()) {
            None => Ok(first),
            Some(grant) => Err(Error::new(
                operation,
                Detail::AccessDiffers {
                    device: grant.device,
                    range: OffsetRange { offset, length },
                    one: first.get(grant.device),
                    other: grant.access,
                },
            )),
        }
    }
}

/// The devices that have access to some of the parts.
fn users<B: Backend>(layout: &Layout<B>, parts: &[OffsetRange]) -> impl Iterator<Item = DeviceId> {
    parts.iter().flat_map(|part| layout.table.devices(part.offset, part.length))
}
