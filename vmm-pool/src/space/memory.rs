//! The region behind the addresses of a space. It leaves the space while a thread copies its contents, which takes no lock.

use super::Space;
use gpu_vmm_core::{
    Address, AddressRange, Backend, Bytes, Detail, Error, Operation, Region, RegionState, Result,
};

impl<B: Backend> Space<B> {
    /// Returns all addresses of the space.
    pub(crate) fn range(&self) -> AddressRange {
        AddressRange { base: Address(self.base), size: Bytes(self.reserved) }
    }

    /// Returns the region; none while a thread suspends or resumes it.
    pub(crate) fn region(&self) -> Option<&Region<B>> {
        self.region.as_ref()
    }

    /// Returns the region for a change of its mappings.
    ///
    /// # Errors
    ///
    /// [`Detail::Suspended`] while a thread suspends or resumes it.
    pub(crate) fn region_mut(&mut self, operation: Operation) -> Result<&mut Region<B>> {
        let AddressRange { base: address, size: reserved } = self.range();
        let away = || Error::new(operation, Detail::Suspended { address, reserved });
        self.region.as_mut().ok_or_else(away)
    }

    /// Takes the region out, to suspend, resume or release it without the core.
    pub(crate) fn take_region(&mut self) -> Option<Region<B>> {
        self.region.take()
    }

    /// Puts the region back that was taken out.
    pub(crate) fn put_region(&mut self, region: Region<B>) {
        self.region = Some(region);
    }

    /// Returns true if the memory is suspended, or if a thread suspends or resumes it.
    pub(crate) fn is_suspended(&self) -> bool {
        self.region.as_ref().is_none_or(|region| region.state() != RegionState::Active)
    }
}
