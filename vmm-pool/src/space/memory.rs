//! The region behind the addresses of a space. It leaves the space while a thread maps memory in it or copies its contents, without
//! the core.

use super::Space;
use gpu_vmm_core::{
    Address, AddressRange, Backend, Bytes, Detail, Error, Operation, Region, RegionState, Result,
};

impl<B: Backend> Space<B> {
    /// Returns all addresses of the space.
    pub(crate) fn range(&self) -> AddressRange {
        AddressRange { base: Address(self.base), size: Bytes(self.reserved) }
    }

    /// Returns the region; none while a thread uses it without the core.
    pub(crate) fn region(&self) -> Option<&Region<B>> {
        self.region.as_ref()
    }

    /// Takes the region out for calls without the core.
    ///
    /// # Errors
    ///
    /// [`Detail::Suspended`] while a thread suspends or resumes it.
    pub(crate) fn lend_region(&mut self, operation: Operation) -> Result<Region<B>> {
        let AddressRange { base: address, size: reserved } = self.range();
        let away = || Error::new(operation, Detail::Suspended { address, reserved });
        let region = self.region.take().ok_or_else(away)?;
        self.is_lent = true;
        Ok(region)
    }

    /// Takes the region out, to suspend, resume or release it without the core.
    pub(crate) fn take_region(&mut self) -> Option<Region<B>> {
        self.region.take()
    }

    /// Puts the region back that was taken out.
    pub(crate) fn put_region(&mut self, region: Region<B>) {
        self.region = Some(region);
        self.is_lent = false;
    }

    /// Returns true if the memory is suspended, or if a thread suspends or resumes it.
    pub(crate) fn is_suspended(&self) -> bool {
        !self.is_lent && self.region.as_ref().is_none_or(|region| region.state() != RegionState::Active)
    }
}
