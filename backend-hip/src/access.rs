//! Device access to mappings: `hipMemSetAccess` and `hipMemGetAccess`.
//!
//! Each call sets the access of one device, and the peers come before the owner of the memory. That order is right for
//! every version (quirk `owner-last`). If a peer is added later, the owner's access is removed for a moment. HIP 7.0 to
//! 7.2 refuse many valid calls (quirk `access-sums`). The backend then tries, in this order:
//!
//! 1. The call itself. Whether HIP accepts it depends on the heap order of HIP's objects. A refused call has changed
//!    nothing.
//! 2. One call over all mappings, if they are contiguous and the others have this access already. HIP always accepts
//!    it, and setting an access that is already set does nothing.
//! 3. The call to ROCr that HIP would make after its check.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{self, hipError_t, hipMemAccessDesc};
use crate::hsa;
use crate::mappings::Mappings;
use crate::quirks::{HOST_ACCESS_NOT_REPORTED, OWNER_LAST, workaround_enabled};
use gpu_vmm_core::{
    Access, AddressRange, Bytes, Detail, DeviceId, Error, Grant, OffsetRange, Operation, Result,
};

const OPERATION: Operation = Operation::SetAccess;

/// The addresses and mappings of one reservation.
pub(crate) struct MappedRange<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) range: AddressRange,
    pub(crate) mappings: &'a mut Mappings,
}

impl MappedRange<'_> {
    fn at(&self, part: OffsetRange) -> AddressRange {
        AddressRange { base: self.range.base + part.offset, size: part.length }
    }

    /// Sets the access of several devices to adjacent whole mappings.
    pub(crate) fn set(&mut self, part: OffsetRange, grants: &[Grant]) -> Result<()> {
        for (run, owner) in self.mappings.by_owner(part) {
            let in_the_way = self.in_the_way(run, owner, grants);
            let set = self.take(owner, &in_the_way).and_then(|()| self.set_run(run, owner, grants));
            // The owner's removed access is restored, whether setting the peers' access succeeded or failed.
            let own = grants.iter().find(|grant| grant.device == owner).filter(|_| set.is_ok());
            let mut back = in_the_way.into_iter().filter(|_| own.is_none());
            let given_back = back.try_for_each(|(mapping, access)| {
                self.set_and_note(mapping, Grant { device: owner, access })
            });
            set.and(given_back)?;
        }
        Ok(())
    }

    /// Returns the mappings to which the owner has access before a peer is added, and that access (quirk `owner-last`).
    fn in_the_way(&self, run: OffsetRange, owner: DeviceId, grants: &[Grant]) -> Vec<(OffsetRange, Access)> {
        let comes = |grant: &Grant| grant.device != owner && grant.access != Access::None;
        if self.driver.quirks.owner_last && grants.iter().any(comes) {
            self.mappings.accessible(run, owner)
        } else {
            Vec::new()
        }
    }

    /// Waits for the owner's work, then removes its access to mappings.
    fn take(&mut self, owner: DeviceId, mappings: &[(OffsetRange, Access)]) -> Result<()> {
        if !mappings.is_empty() {
            self.driver.synchronize(OPERATION, owner)?;
        }
        mappings.iter().try_for_each(|(mapping, _)| {
            self.set_and_note(*mapping, Grant { device: owner, access: Access::None })
        })
    }

    /// Sets the access to memory of one owner: the peers', then the owner's own.
    fn set_run(&mut self, run: OffsetRange, owner: DeviceId, grants: &[Grant]) -> Result<()> {
        let is_last = |grant: &&Grant| grant.device == owner && workaround_enabled(&OWNER_LAST);
        let (own, peers): (Vec<Grant>, Vec<Grant>) = grants.iter().partition(is_last);
        for grant in peers.into_iter().chain(own) {
            self.set_and_note(run, grant)?;
        }
        let is_reported =
            |grant: &&Grant| !(grant.device.is_host() && workaround_enabled(&HOST_ACCESS_NOT_REPORTED));
        for grant in grants.iter().filter(is_reported) {
            self.verify(run.offset, *grant)?;
            self.verify(run.end() - Bytes(1), *grant)?;
        }
        Ok(())
    }

    fn set_and_note(&mut self, part: OffsetRange, grant: Grant) -> Result<()> {
        self.set_one(part, grant)?;
        self.mappings.set(part, grant.device, grant.access);
        Ok(())
    }

    fn set_one(&self, part: OffsetRange, grant: Grant) -> Result<()> {
        let refused = match self.call(part, grant) {
            (hipError_t::hipErrorInvalidValue, answer) if self.driver.quirks.access_sums => answer,
            (_, answer) => return answer,
        };
        if let Some(whole) = self.mappings.whole_with(part, grant.device, grant.access)
            && self.call(whole, grant).1.is_ok()
        {
            return Ok(());
        }
        if let Some(hsa) = &self.driver.hip.hsa {
            // SAFETY: the part consists of adjacent whole mappings of one reservation: the caller's promise.
            return unsafe { hsa::set_access(self.driver, hsa, self.at(part), grant.device, grant.access) };
        }
        let (count, mapped) = self.mappings.total();
        let reason = format!(
            "HIP {} accepts a hipMemSetAccess of {} at offset {} only if the size is the sum of the first of the \
         reservation's {count} mappings ({mapped}) in HIP's internal order, and hsa_amd_vmem_set_access was not found; \
         use mappings of one size, or one access for all mappings without a gap ({})",
            self.driver.info().version,
            part.length,
            part.offset,
            refused.err().map_or_else(String::new, |error| error.to_string()),
        );
        Err(Error::new(OPERATION, Detail::Unsupported { reason }))
    }

    fn call(&self, part: OffsetRange, grant: Grant) -> (hipError_t, Result<()>) {
        let range = self.at(part);
        let description =
            hipMemAccessDesc { location: ffi::location(grant.device), flags: ffi::flags(grant.access) };
        // SAFETY: the range lies in one HIP reservation, and the count of descriptions is one.
        let code = unsafe {
            let (base, size) = (range.base.as_ptr(), range.size.0 as usize);
            (self.driver.hip.hipMemSetAccess)(base, size, &raw const description, 1)
        };
        let context = || format!("{range}, {}, {}", grant.device, grant.access);
        (code, self.driver.check(OPERATION, "hipMemSetAccess", code, context))
    }

    /// Reads the access back, because HIP may return success without setting it.
    fn verify(&self, offset: Bytes, grant: Grant) -> Result<()> {
        let have = get(self.driver, OPERATION, self.range, offset, grant.device)?;
        if have == grant.access {
            return Ok(());
        }
        let what = format!(
            "hipMemSetAccess returned success, but at offset {offset} of {} {} has {have} instead of {}",
            self.range, grant.device, grant.access
        );
        Err(Error::new(OPERATION, Detail::DriverContractViolated { what }))
    }
}

/// Returns a device's access at an offset.
///
/// Returns an error ([`is_invalid_value`](crate::error::is_invalid_value)) if nothing is mapped there, and for the
/// host, whose access HIP does not report (quirk `host-access-not-reported`).
pub(crate) fn get(
    driver: &Driver,
    operation: Operation,
    range: AddressRange,
    offset: Bytes,
    device: DeviceId,
) -> Result<Access> {
    let at = range.base + offset;
    let location = ffi::location(device);
    let mut flags = 0;
    // SAFETY: HIP reads the location and writes one number; for an address without a mapping it returns an error.
    let code = unsafe { (driver.hip.hipMemGetAccess)(&raw mut flags, &raw const location, at.as_ptr()) };
    driver.check(operation, "hipMemGetAccess", code, || format!("{at} for {device}"))?;
    match flags {
        0 => Ok(Access::None),
        1 => Ok(Access::Read),
        3 => Ok(Access::ReadWrite),
        other => {
            let what = format!("hipMemGetAccess returned the unknown access {other} at {at} for {device}");
            Err(Error::new(operation, Detail::DriverContractViolated { what }))
        }
    }
}
