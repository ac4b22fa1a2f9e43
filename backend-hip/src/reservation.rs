//! A range of addresses and its mappings: `hipMemMap` and `hipMemUnmap`.
#![allow(unsafe_code)] // calls into HIP

use crate::access::{self, MappedRange};
use crate::addresses;
use crate::driver::Driver;
use crate::error::is_invalid_value;
use crate::handle::HipHandle;
use crate::kept_addresses::Reserved;
use crate::mappings::Mappings;
use crate::quirks::{
    HOST_ACCESS_LEAVES_A_HOLE, MAP_REPORTS_NOTHING, UNMAP_ON_CURRENT_DEVICE, workaround_enabled,
};
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Bytes, Detail, DeviceId, Error, Grant, Handle, OffsetRange,
    Operation, Reservation, Result,
};
use std::sync::Arc;

/// A range of addresses that HIP reserved.
#[derive(Debug)]
pub struct HipReservation {
    driver: Arc<Driver>,
    reserved: Reserved,
    mappings: Mappings,
    /// Memory was mapped since the addresses were reserved, and may stay allocated until they are freed.
    was_mapped: bool,
    /// The addresses were freed and could not be reserved again: they may belong to another part of the process.
    lost: bool,
}

impl HipReservation {
    pub(crate) fn new(
        driver: &Arc<Driver>,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self> {
        addresses::reserve(driver, size, alignment, hint).map(|reserved| Self::of(driver, reserved))
    }

    /// Reserves kept addresses within a range, if there are some.
    pub(crate) fn kept(
        driver: &Arc<Driver>,
        size: Bytes,
        alignment: Alignment,
        within: AddressRange,
        random: u64,
    ) -> Option<Self> {
        addresses::reserve_kept(driver, size, alignment, within, random)
            .map(|reserved| Self::of(driver, reserved))
    }

    fn of(driver: &Arc<Driver>, reserved: Reserved) -> Self {
        let mappings = Mappings::default();
        Self { driver: Arc::clone(driver), reserved, mappings, was_mapped: false, lost: false }
    }

    fn address(&self, offset: Bytes) -> Address {
        self.reserved.range.base + offset
    }

    /// Explains why the addresses cannot be freed.
    fn what_is_left(&self) -> String {
        let (count, mapped) = self.mappings.total();
        format!("{count} mappings ({mapped}) are left in {}, which stay reserved", self.reserved.whole)
    }

    /// Refuses to work on lost addresses.
    fn check_held(&self, operation: Operation) -> Result<()> {
        if !self.lost {
            return Ok(());
        }
        let reason = format!(
            "{} was taken by other code while its memory was returned; regain the addresses first",
            self.reserved.whole
        );
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }
}

// SAFETY: the range stays reserved until it is dropped, or lost in `return_memory`; then no call reaches HIP until
// `regain` succeeds. Failures are returned.
unsafe impl Reservation for HipReservation {
    type Handle = HipHandle;

    fn range(&self) -> AddressRange {
        self.reserved.range
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &HipHandle) -> Result<()> {
        const OPERATION: Operation = Operation::Map;
        self.check_held(OPERATION)?;
        let driver = &self.driver;
        let owner = handle.properties().device;
        let at = AddressRange { base: self.address(offset), size: handle.size() };
        let _entered = driver.enter(OPERATION)?;
        let _current = driver.on(OPERATION, owner)?;
        self.was_mapped = true;
        // SAFETY: the range lies in this reservation and nothing is mapped there, as the caller promises; the handle is
        // alive, and the mapping holds a reference to its memory.
        let code =
            unsafe { (driver.hip.hipMemMap)(at.base.as_ptr(), at.size.0 as usize, 0, handle.raw(), 0) };
        driver.check(OPERATION, "hipMemMap", code, || at.to_string())?;
        if !workaround_enabled(&MAP_REPORTS_NOTHING) {
            self.mappings.insert(OffsetRange { offset, length: at.size }, owner, handle.is_imported());
            return Ok(());
        }
        // Up to 7.2 hipMemMap returns success in any case; only an existing mapping has an access to read.
        let verify = || access::get(driver, OPERATION, self.reserved.range, offset, owner);
        // If a call below HIP fails, HIP returns the same error as for an unmapped address, so the check is made twice.
        // An existing mapping that is missed here would be left mapped when its addresses are freed.
        let verified = verify().or_else(|_| verify());
        let nothing_there = verified.as_ref().is_err_and(is_invalid_value);
        if !nothing_there {
            // Also recorded in doubt: addresses with a mapping must not be freed.
            self.mappings.insert(OffsetRange { offset, length: at.size }, owner, handle.is_imported());
        }
        verified.map(drop).map_err(|error| {
            let what = format!("hipMemMap returned success, but {at} is not known to be mapped ({error})");
            Error::new(OPERATION, Detail::DriverContractViolated { what })
        })
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::Unmap;
        self.check_held(OPERATION)?;
        let driver = &self.driver;
        let at = AddressRange { base: self.address(offset), size: length };
        let Some(owner) = self.mappings.owner(offset) else {
            // HIP 6 would crash.
            let reason = format!("no mapping begins at offset {offset}");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        };
        let _entered = driver.enter(OPERATION)?;
        // HIP 7.0 to 7.2 unmap in the order of the current device's null stream.
        let _current =
            workaround_enabled(&UNMAP_ON_CURRENT_DEVICE).then(|| driver.on(OPERATION, owner)).transpose()?;
        // SAFETY: one whole mapping, which no device uses any more, as the caller promises.
        let code = unsafe { (driver.hip.hipMemUnmap)(at.base.as_ptr(), at.size.0 as usize) };
        driver.check(OPERATION, "hipMemUnmap", code, || at.to_string())?;
        if self.mappings.was_shown_to_host(offset) && workaround_enabled(&HOST_ACCESS_LEAVES_A_HOLE) {
            addresses::close(at);
        }
        self.mappings.remove(offset);
        Ok(())
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        const OPERATION: Operation = Operation::SetAccess;
        self.check_held(OPERATION)?;
        let _entered = self.driver.enter(OPERATION)?;
        let range = self.reserved.range;
        let mut place = MappedRange { driver: &self.driver, range, mappings: &mut self.mappings };
        place.set(OffsetRange { offset, length }, grants)
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        const OPERATION: Operation = Operation::QueryAccess;
        self.check_held(OPERATION)?;
        if device.is_host() {
            let reason = "HIP does not report the host's access".to_owned();
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let _entered = self.driver.enter(OPERATION)?;
        access::get(&self.driver, OPERATION, self.reserved.range, offset, device)
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        const OPERATION: Operation = Operation::ReturnMemory;
        self.check_held(OPERATION)?;
        if !self.driver.quirks.memory_stays || !self.was_mapped {
            return Ok(());
        }
        let entered = self.driver.enter(OPERATION)?;
        if !self.mappings.is_empty() {
            // HIP would forget the range and leave the mappings, and crash when they are unmapped.
            return Err(Error::new(OPERATION, Detail::Unsupported { reason: self.what_is_left() }));
        }
        // After any failure, HIP no longer has the addresses reserved.
        self.lost = true;
        addresses::renew(&self.driver, &entered, OPERATION, self.reserved.whole)?;
        (self.lost, self.was_mapped) = (false, false);
        Ok(())
    }

    fn regain(&mut self) -> Result<()> {
        const OPERATION: Operation = Operation::RegainAddresses;
        if !self.lost {
            return Ok(());
        }
        let entered = self.driver.enter(OPERATION)?;
        addresses::reserve_again(&self.driver, &entered, OPERATION, self.reserved.whole)?;
        (self.lost, self.was_mapped) = (false, false);
        Ok(())
    }

    #[cfg(unix)]
    unsafe fn dma_buf(&self, _: DeviceId, offset: Bytes, length: Bytes) -> Result<std::os::fd::OwnedFd> {
        const OPERATION: Operation = Operation::ExportDmaBuf;
        self.check_held(OPERATION)?;
        let _entered = self.driver.enter(OPERATION)?;
        let range = AddressRange { base: self.address(offset), size: length };
        let is_one = self.mappings.is_one(OffsetRange { offset, length });
        // SAFETY: the range is mapped, as the caller promises.
        let exported = unsafe { crate::share::dma_buf(&self.driver, range, is_one) };
        match exported {
            Err(error) if self.mappings.is_imported(offset) && crate::hsa::is_refused_export(&error) => {
                Err(crate::share::not_exported(OPERATION))
            }
            exported => exported,
        }
    }
}

impl Drop for HipReservation {
    fn drop(&mut self) {
        // In a forked child the addresses belong to the parent; lost addresses may belong to other code.
        if !self.driver.process.is_usable() || self.lost {
            return;
        }
        let given_back = if self.mappings.is_empty() {
            addresses::give_back(&self.driver, self.reserved)
        } else {
            // HIP would forget the range and leave the mappings, and crash when they are unmapped.
            Err(Error::new(Operation::FreeReservation, Detail::Unsupported { reason: self.what_is_left() }))
        };
        if let Err(error) = given_back {
            self.driver.drop_log.record(error);
        }
    }
}
