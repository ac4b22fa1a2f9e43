//! The exchange of memory between two regions, without copying a byte.
//!
//! The addresses keep their access: every device that could use an address before can use the memory that is mapped there now.

use super::check_aligned;
use super::layout::{Exchange, Layout};
use super::table::{Mapping, PlacedMapping};
use super::{BackingEffect, Region};
use crate::driver::{Backend, WaitFor, check_same};
use crate::trace::span;
use crate::types::{AccessMap, Bytes, Detail, DeviceId, Error, OffsetRange, Operation, Result};
use std::collections::BTreeSet;

impl<B: Backend> Region<B> {
    /// Exchanges the physical memory of a part with the memory of a part of another region.
    ///
    /// Afterwards this region's addresses contain the other region's bytes, and the reverse. The addresses stay the same, no byte
    /// is copied, and each address keeps its access. CUDA: `cuMemUnmap`, `cuMemMap` and `cuMemSetAccess`; HIP: `hipMemUnmap`,
    /// `hipMemMap` and `hipMemSetAccess`.
    ///
    /// Both parts must consist of whole mappings without a hole; the mappings need not have the same sizes. The call waits as
    /// `done` says for work that uses either part, before it unmaps anything.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`] for a region of another backend. For either part: [`Detail::ZeroSize`], [`Detail::OutOfRange`],
    /// [`Detail::NotMapped`], [`Detail::PartialMapping`], and [`Detail::Unaligned`], also if memory with a larger granularity
    /// would not lie at a multiple of it. For the new mappings: [`Detail::CrossesReservation`], [`Detail::AccessDiffers`] if one
    /// mapping would replace several with different access, and [`Detail::PeerUnreachable`] if a device that has access to the
    /// addresses cannot reach the memory. Or the error of waiting or of the driver. Both regions are then as before.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, WaitFor, Region, Result};
    /// # fn example<B: Backend>(front: &mut Region<B>, back: &mut Region<B>) -> Result<()> {
    /// // A captured graph contains the addresses of `front` only; the first 64 MiB were prepared in `back`.
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

    /// Exchanges all physical memory with another region, as [`Region::swap`] does for a part.
    ///
    /// The same offsets must be mapped in both regions, so they must have the same holes. The sizes of their address ranges do
    /// not matter. Two empty regions stay as they are.
    ///
    /// # Errors
    ///
    /// Those of [`Region::swap`], with [`Detail::NotMapped`] if one region has a hole that the other does not have.
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

    /// Exchanges parts of whole mappings without a hole in pairs of equal length: the first with the first, and so on.
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
        span!(Swap, address = %self.address(), other = %other.address());
        let announced = self.announce(operation, BackingEffect::Replaced, || parts.clone())?;
        let theirs_announced =
            match other.announce(operation, BackingEffect::Replaced, || other_parts.clone()) {
                Ok(announced) => announced,
                Err(error) => return announced.end(&self.layout, Err(error)),
            };
        let waited = done.wait(&self.backend, || {
            let users = users(&self.layout, &parts).chain(users(&other.layout, &other_parts));
            users.collect::<BTreeSet<_>>().into_iter()
        });
        let exchanged = waited.and_then(|()| {
            Layout::exchange_both(
                Exchange::new(&mut self.layout, parts, ours),
                Exchange::new(&mut other.layout, other_parts, theirs),
            )
        });
        let exchanged = announced.end(&self.layout, exchanged);
        theirs_announced.end(&other.layout, exchanged)
    }

    /// The pieces of another region's parts at this region's offsets and with this region's access there. An error if they do not
    /// fit.
    fn coming(
        &self,
        operation: Operation,
        parts: &[OffsetRange],
        from: &Self,
        from_parts: &[OffsetRange],
    ) -> Result<Vec<PlacedMapping<B>>> {
        let mut coming = Vec::new();
        for (to, part) in parts.iter().zip(from_parts) {
            for PlacedMapping { offset, mapping: Mapping { memory, .. } } in from.layout.pieces(*part) {
                let offset = to.offset + (offset - part.offset);
                self.check_part(operation, offset, memory.size())?;
                check_aligned(operation, "address", (self.address() + offset).0, memory.granularity())?;
                self.check_crosses_reservation(operation, offset, memory.size())?;
                let access = self.common_access(operation, offset, memory.size())?;
                coming.push(PlacedMapping { offset, mapping: Mapping::new(memory, access) });
            }
        }
        let ways =
            coming.iter().map(|PlacedMapping { mapping, .. }| (mapping.access, mapping.memory.properties()));
        self.check_ways(operation, ways)?;
        Ok(coming)
    }

    /// The access of a mapped part, if it is the same everywhere in the part.
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
