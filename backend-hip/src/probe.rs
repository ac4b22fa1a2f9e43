//! Probes: trials for features that neither a version nor an attribute reports reliably.
#![allow(unsafe_code)] // drives the backend's own traits

use crate::driver::Driver;
use crate::handle::HipHandle;
use crate::reservation::HipReservation;
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Bytes, Detail, Device, DeviceId, Error, Grant, HandleTypes,
    Location, Operation, Properties, Reservation, Result,
};
use std::sync::Arc;

#[cfg(unix)]
use crate::quirks::{HOST_ACCESS_FAULTS, workaround_enabled};
#[cfg(unix)]
use gpu_vmm_core::DriverError;

/// Large enough to be noticed among the allocations of other processes on the same GPU.
const LARGE: Bytes = Bytes::mib(64);

/// Maps memory, releases it, and compares the free memory while the addresses are still reserved. The result depends on
/// the version and not on the device, so the probe runs once per process.
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
    // SAFETY: a whole handle in an empty reservation of its size; no work uses it.
    unsafe {
        reservation.map(Bytes::ZERO, &handle)?;
        let granted = reservation.set_access(Bytes::ZERO, size, &[read_write(device.id)]);
        drop(handle);
        reservation.unmap(Bytes::ZERO, size)?;
        granted?;
    }
    let after = driver.memory_info(device.id)?.free;
    let comes_back = after + Bytes(size.0 / 2) >= before;
    Ok(*driver.memory_comes_back.get_or_init(|| comes_back))
}

/// Reserves addresses at chosen places, up to four in case one is taken. Returns whether the last attempt got its hint,
/// the range it got, and the hint.
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

/// Creates a shareable granule and exports it.
#[cfg(unix)]
pub(crate) fn export(driver: &Arc<Driver>, device: &Device) -> Result<()> {
    use gpu_vmm_core::Handle;
    let properties = Properties::on(device.id).shareable();
    HipHandle::create(driver, device.granularity.bytes(), &properties)?.export().map(drop)
}

/// Creates a granule for fabric handles and exports it.
pub(crate) fn fabric(driver: &Arc<Driver>, device: &Device) -> Result<()> {
    let properties = Properties::on(device.id).exported_as(HandleTypes::FABRIC);
    HipHandle::create(driver, device.granularity.bytes(), &properties)?.export_for_fabric().map(drop)
}

/// Maps a granule read-only and reads the device's access back.
pub(crate) fn read_only(driver: &Arc<Driver>, device: &Device) -> Result<Access> {
    let grant = Grant { device: device.id, access: Access::Read };
    // SAFETY: a granule is mapped, and the device exists.
    mapped(driver, device, &Properties::on(device.id), &[grant], |granule| unsafe {
        granule.access(Bytes::ZERO, device.id)
    })
}

/// Maps a granule for the device and exports it as a dma-buf.
#[cfg(unix)]
pub(crate) fn dma_buf(driver: &Arc<Driver>, device: &Device) -> Result<()> {
    // SAFETY: a granule is mapped, which is all of the reservation.
    mapped(driver, device, &Properties::on(device.id), &[read_write(device.id)], |granule| unsafe {
        granule.dma_buf(device.id, Bytes::ZERO, granule.range().size).map(drop)
    })
}

/// Maps a granule of device memory for the host, which uses it.
pub(crate) fn host_access(driver: &Arc<Driver>, device: &Device) -> Result<()> {
    mapped(driver, device, &Properties::on(device.id), &[read_write(DeviceId::HOST)], used_by_host)
}

/// Writes to the beginning of a reservation from the CPU.
///
/// The kernel does it, by the system call `uname`: if the memory cannot be written, the call fails with EFAULT, and the process
/// gets no SIGBUS ([`HOST_ACCESS_FAULTS`]). `process_vm_writev` cannot replace it: it refuses the kind of mapping that amdgpu
/// makes (`VM_PFNMAP`).
fn used_by_host(granule: &HipReservation) -> Result<()> {
    cfg_if::cfg_if! {
        if #[cfg(unix)] {
            let range = granule.range();
            // SAFETY: the mapping has room for the structure, and no other code uses it; the kernel checks the address.
            if !workaround_enabled(&HOST_ACCESS_FAULTS) || unsafe { libc::uname(range.base.as_ptr()) } == 0 {
                return Ok(());
            }
            let source = DriverError::system("uname", &std::io::Error::last_os_error());
            let context = format!("the CPU's access to {range}, which hipMemSetAccess had set");
            Err(Error::new(Operation::SetAccess, Detail::Driver { source, context }))
        } else {
            let _ = granule;
            Ok(())
        }
    }
}

/// Maps a granule of host memory for the device and the host, which uses it, and checks that the device's free memory has not
/// shrunk.
pub(crate) fn host_memory(driver: &Arc<Driver>, device: &Device, location: Location) -> Result<()> {
    let free = || driver.memory_info(device.id).map(|info| info.free);
    let properties = Properties::on(device.id).located(location);
    let size = device.granularity.bytes();
    let before = free()?;
    let grants = [read_write(device.id), read_write(DeviceId::HOST)];
    let meanwhile = mapped(driver, device, &properties, &grants, |granule| {
        used_by_host(granule)?;
        free()
    })?;
    check_not_the_devices(size, &properties, before, meanwhile)
}

/// Refuses memory of the host that takes its whole size of the device's free memory.
fn check_not_the_devices(
    size: Bytes,
    properties: &Properties,
    before: Bytes,
    meanwhile: Bytes,
) -> Result<()> {
    if meanwhile + size <= before {
        let what = format!("{size} of {properties} took {} of the device's memory", before - meanwhile);
        return Err(Error::new(Operation::CreateMemory, Detail::DriverContractViolated { what }));
    }
    Ok(())
}

const fn read_write(device: DeviceId) -> Grant {
    Grant { device, access: Access::ReadWrite }
}

/// Maps a granule of memory, sets access to it, calls `look`, and unmaps it.
fn mapped<T>(
    driver: &Arc<Driver>,
    device: &Device,
    properties: &Properties,
    grants: &[Grant],
    look: impl FnOnce(&HipReservation) -> Result<T>,
) -> Result<T> {
    let size = device.granularity.bytes();
    let mut reservation = HipReservation::new(driver, size, device.granularity.into(), None)?;
    let handle = HipHandle::create(driver, size, properties)?;
    // SAFETY: a whole handle in an empty reservation of its size; no work uses it.
    unsafe {
        reservation.map(Bytes::ZERO, &handle)?;
        let seen = reservation.set_access(Bytes::ZERO, size, grants).and_then(|()| look(&reservation));
        reservation.unmap(Bytes::ZERO, size)?;
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_memory_shows_in_the_free_size() {
        let (size, before) = (Bytes::mib(2), Bytes::mib(100));
        let properties = Properties::on(DeviceId(0)).located(Location::Host);
        for (meanwhile, is_the_hosts) in [(100, true), (99, true), (98, false), (90, false), (110, true)] {
            let answer = check_not_the_devices(size, &properties, before, Bytes::mib(meanwhile));
            assert_eq!(answer.is_ok(), is_the_hosts, "{meanwhile} MiB are free");
        }
    }
}
