//! A region as a whole: what it is beside what is mapped, and made again from that at the same addresses.

use super::layout::Part;
use super::{Placement, Region, RegionBuilder, Wanted};
use crate::driver::Backend;
use crate::types::{AccessMap, Bytes, DeviceId, Properties, Result};

/// What a region is beside its addresses and what is mapped there.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    pub(crate) tag: Box<str>,
    /// What its address is a multiple of, beyond the granularity.
    pub(crate) alignment: Bytes,
    /// What memory growth brings.
    pub(crate) memory: Properties,
    /// What is granted on it, beside the device's own read and write access.
    pub(crate) access: AccessMap,
    /// The least size of a reservation that growth adds; zero where nothing was said.
    pub(crate) extend_by: Bytes,
    /// How many addresses are kept free on either side.
    pub(crate) guard: Bytes,
    pub(crate) portable: bool,
}

impl<B: Backend> Region<B> {
    /// What the region is.
    pub(crate) fn traits(&self) -> Traits {
        Traits {
            tag: self.tag.clone(),
            alignment: self.alignment.bytes(),
            memory: self.growing.memory,
            access: self.growing.access,
            extend_by: self.growing.extend_by,
            guard: self.guard(),
            portable: self.is_portable(),
        }
    }

    /// What is mapped, in order of the offsets, with its access.
    pub(crate) fn arrangement(&self) -> impl Iterator<Item = Wanted<B>> {
        self.layout.table.iter().map(|(offset, mapping)| Wanted {
            offset,
            memory: mapping.memory.clone(),
            access: mapping.access,
        })
    }

    /// A region with nothing mapped in it. Its reservations have these sizes, each a multiple of what the driver hands out,
    /// and follow each other from where `placement` says.
    pub(crate) fn with_traits(
        operation: &'static str,
        backend: &B,
        traits: &Traits,
        placement: Placement,
        reservations: &[Bytes],
    ) -> Result<Self> {
        let (first, others) = reservations.split_first().unwrap_or((&Bytes::ZERO, &[]));
        let mut builder: RegionBuilder<'_, B> = Self::builder(backend)
            .at(placement)
            .reserve(*first)
            .alignment(traits.alignment)
            .memory(traits.memory)
            .extend_by(traits.extend_by)
            .guard(traits.guard)
            .tag(traits.tag.clone());
        if traits.portable {
            builder = builder.portable();
        }
        for grant in traits.access.grants() {
            builder = builder.access(grant.device, grant.access);
        }
        let mut region = builder.build()?;
        for size in others {
            // No seam lies inside of a granule, whatever a snapshot says.
            let size = region.addresses(operation, *size)?;
            region.extend_by(operation, size)?;
        }
        Ok(region)
    }

    /// Changes what a device may do with whole mappings that follow each other, of which no work makes use: nothing is
    /// waited for.
    pub(crate) fn set_access_unused(
        &mut self,
        offset: Bytes,
        length: Bytes,
        access: AccessMap,
    ) -> Result<()> {
        let part = Part { offset, length };
        let now = self.layout.table.at(offset).map_or(AccessMap::NONE, |(_, mapping)| mapping.access);
        let changes: Vec<(DeviceId, _)> =
            now.changes(access).map(|grant| (grant.device, grant.access)).collect();
        changes.into_iter().try_for_each(|(device, access)| self.layout.set_access(part, device, access))
    }

    /// Unmaps everything and gives the addresses back, without waiting: for a region of whose addresses nobody has been
    /// told. What cannot be given back is left to the end of the process.
    pub(crate) fn discard(mut self) -> Result<()> {
        // The destructor would wait, and could not tell anybody.
        self.layout.take().give_up()
    }
}
