//! Trying things out where neither a version nor an attribute can be trusted.
#![allow(unsafe_code)] // drives the backend's own traits

use crate::driver::Driver;
use crate::handle::HipHandle;
use crate::reservation::HipReservation;
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Bytes, Device, Grant, Properties, Reservation, Result,
};
use std::sync::Arc;

/// Enough to be seen beside what other processes do to the same GPU meanwhile.
const LARGE: Bytes = Bytes::mib(64);

/// Maps memory, gives it back, and looks whether it is free again while the addresses are still reserved. Tried once for
/// the process: it is the version's doing, not the device's.
pub(crate) fn memory_comes_back(driver: &Arc<Driver>, device: &Device) -> Result<bool> {
    if let Some(known) = driver.memory_comes_back.get() {
        return Ok(*known);
    }
    let free = driver.memory_info(device.id)?.free;
    let unit = device.granularity.bytes();
    let size = if free >= LARGE + LARGE { device.granularity.round_up(LARGE).unwrap_or(unit) } else { unit };
    let mut reservation = HipReservation::new(driver, size, device.granularity.into(), None)?;
    let before = driver.memory_info(device.id)?.free;
    let handle = HipHandle::create(driver, size, &Properties::on(device.id))?;
    // SAFETY: a whole handle in an empty reservation of its size, given to its own device, used by nobody.
    unsafe {
        reservation.map(Bytes::ZERO, &handle)?;
        let granted = reservation.set_access(
            Bytes::ZERO,
            size,
            &[Grant { device: device.id, access: Access::ReadWrite }],
        );
        drop(handle);
        reservation.unmap(Bytes::ZERO, size)?;
        granted?;
    }
    let after = driver.memory_info(device.id)?.free;
    let comes_back = after + Bytes(size.0 / 2) >= before;
    Ok(*driver.memory_comes_back.get_or_init(|| comes_back))
}

/// Reserves addresses at places of our own choice, a few in case one is taken. What was asked and given at the last.
pub(crate) fn fixed_address(driver: &Arc<Driver>, device: &Device) -> Result<(bool, AddressRange, Address)> {
    let size = device.granularity.bytes();
    let alignment = Alignment::from(device.granularity);
    let near = HipReservation::new(driver, size, alignment, None)?.range().base;
    let mut steps =
        [16, 64, 256, 1024].into_iter().map(|step| Address(near.0.saturating_sub(Bytes::gib(step).0)));
    let attempt = |hint: Address| -> Result<_> {
        let given = HipReservation::new(driver, size, alignment, Some(hint))?.range();
        Ok((given.base == hint, given, hint))
    };
    let mut last = attempt(steps.next().unwrap_or(near))?;
    for hint in steps {
        if last.0 {
            break;
        }
        last = attempt(hint)?;
    }
    Ok(last)
}

/// Creates a granule that can be shared and exports it.
#[cfg(unix)]
pub(crate) fn export(driver: &Arc<Driver>, device: &Device) -> Result<()> {
    use gpu_vmm_core::Handle;
    let properties = Properties::on(device.id).shareable();
    HipHandle::create(driver, device.granularity.bytes(), &properties)?.export().map(drop)
}

/// Maps a granule for reading and asks back what the device may do.
pub(crate) fn read_only(driver: &Arc<Driver>, device: &Device) -> Result<Access> {
    let size = device.granularity.bytes();
    let mut reservation = HipReservation::new(driver, size, device.granularity.into(), None)?;
    let handle = HipHandle::create(driver, size, &Properties::on(device.id))?;
    // SAFETY: as above.
    unsafe {
        reservation.map(Bytes::ZERO, &handle)?;
        let set =
            reservation.set_access(Bytes::ZERO, size, &[Grant { device: device.id, access: Access::Read }]);
        let access = set.and_then(|()| reservation.access(Bytes::ZERO, device.id));
        reservation.unmap(Bytes::ZERO, size)?;
        access
    }
}
