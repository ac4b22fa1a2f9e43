//! The interface between gpu-vmm and a vendor's driver: the traits that a backend implements, limited to what differs
//! between vendors.
//!
//! [`Backend`] is a loaded driver, [`Handle`] an allocation of physical memory, [`Reservation`] a range of addresses. Their
//! methods are `unsafe` if a wrong argument would be undefined behavior in the driver: for some wrong calls HIP returns
//! success, for others it crashes. Only this crate calls them ([`Region`](crate::Region),
//! [`PhysicalMemory`](crate::PhysicalMemory)). It records all mappings and checks every argument first.
//!
//! # For authors of backends
//!
//! A method's `# Safety` section states what the implementation may rely on. The trait's `# Safety` section states what the
//! implementation must guarantee. A call that fails must leave everything unchanged. Represent values that come from C as
//! integers in newtypes, never as Rust enums.
#![allow(unsafe_code)]

mod copy;
mod deferred;
mod forward;
mod handle;
mod memory;
mod reservation;
#[cfg(doctest)]
mod safe;
mod sync;

pub use copy::CopyCalls;
pub use deferred::Deferred;
pub(crate) use deferred::{Release, wait_for_devices};
pub use handle::Handle;
pub use memory::MemoryCalls;
pub use reservation::Reservation;
pub use sync::SyncCalls;

use crate::driver::DropLog;
use crate::types::{
    Capability, Detail, Device, DeviceId, DriverInfo, Error, Granularity, InstanceId, MemoryInfo, Operation,
    Properties, Quirk, Result, Vendor,
};
use std::fmt::Debug;

/// A loaded driver, its devices and their capabilities. Clones are cheap and share the driver.
///
/// The driver's calls are in three supertraits: [`MemoryCalls`], [`CopyCalls`], [`SyncCalls`].
///
/// # Safety
///
/// This crate's memory safety depends on the results of an implementation, including the results of its safe methods:
///
/// - A clone uses the same driver, and [`instance`](Backend::instance) is equal for two values only if each accepts the
///   handles of the other.
/// - [`devices`](Backend::devices), the granularities and the [reservation unit](Backend::reservation_unit) never change,
///   and the driver accepts their multiples.
/// - [`check_host_access`](Backend::check_host_access) returns `Ok` only for memory that the CPU can read and write at the
///   addresses of its mappings.
pub unsafe trait Backend:
    MemoryCalls + CopyCalls + SyncCalls + Clone + Debug + Send + Sync + 'static
{
    /// Returns the vendor of the driver.
    fn vendor(&self) -> Vendor;

    /// Identifies this backend instance. Handles can be mapped only by an instance with the same identifier.
    fn instance(&self) -> InstanceId;

    /// Returns the driver's version and library.
    fn driver(&self) -> DriverInfo;

    /// Returns all devices, usable or not. A device's ordinal is its index in this slice.
    fn devices(&self) -> &[Device];

    /// Queries the free and total memory of a device. CUDA: `cuMemGetInfo`, HIP: `hipMemGetInfo`.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or any error that the driver returns.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;

    /// Returns true if `device` can get access to memory of `owner`. CUDA: `cuDeviceCanAccessPeer`, HIP:
    /// `hipDeviceCanAccessPeer`. A device can always access its own memory.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`] for either device, or any error that the driver returns.
    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool>;

    /// Returns the capabilities of a device: each [`Feature`](crate::Feature) once, with a reason if it is missing. The first call may allocate one granule of memory for trials.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or any error that the driver returns.
    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>>;

    /// Returns the quirks of this driver version.
    fn quirks(&self) -> Vec<Quirk>;

    /// Returns true if one driver call may unmap several adjacent mappings.
    fn unmaps_runs(&self) -> bool;

    /// Returns the largest granularity of all devices, which fits mappings of any device's memory.
    fn granularity(&self) -> Granularity {
        self.devices().iter().map(|device| device.granularity).max().unwrap_or(Granularity::BYTE)
    }

    /// Returns the granularity in which memory with these properties is created and mapped. CUDA:
    /// `cuMemGetAllocationGranularity`, HIP: `hipMemGetAllocationGranularity`.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or [`Detail::Unsupported`] for properties that the driver does not support.
    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        self.device(operation, properties.device).map(|device| device.granularity)
    }

    /// Returns the granularity that the driver recommends for memory with these properties, which is at least
    /// [`granularity_of`](Backend::granularity_of). Other libraries can ask for memory in multiples of it: NCCL registers only such
    /// memory. CUDA: `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`, HIP: `hipMemAllocationGranularityRecommended`.
    ///
    /// # Errors
    ///
    /// Those of [`granularity_of`](Backend::granularity_of).
    fn recommended_granularity(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        self.granularity_of(operation, properties)
    }

    /// Checks that the CPU can get access to mapped memory with these properties.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] with the reason.
    fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()>;

    /// Returns the unit in which the driver reserves addresses, which is at least the granularity.
    ///
    /// The driver rounds the size of every reservation up to a multiple of it, and no other reservation can begin inside the
    /// last unit.
    fn reservation_unit(&self) -> Granularity {
        self.granularity()
    }

    /// Returns the log of failures in destructors.
    fn drop_log(&self) -> &DropLog;

    /// Returns the memory that destructors could not free yet because a stream was capturing.
    fn deferred(&self) -> &Deferred;

    /// Returns the device with this ordinal, if it exists and is usable.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`] if it does not exist, or [`Detail::Unsupported`] with the reason why it is not usable.
    fn device(&self, operation: Operation, device: DeviceId) -> Result<&Device> {
        usable_device(operation, self.vendor(), self.devices(), device)
    }
}

/// Returns the device with this ordinal from all devices of a backend, if it exists and is usable.
///
/// # Errors
///
/// Those of [`Backend::device`].
pub fn usable_device(
    operation: Operation,
    vendor: Vendor,
    devices: &[Device],
    device: DeviceId,
) -> Result<&Device> {
    if device.is_host() {
        let reason = "the host CPU is not a device; request memory whose location is the host";
        return Err(Error::new(operation, Detail::Unsupported { reason: reason.to_owned() }));
    }
    let count = devices.len() as u32;
    let found = devices
        .get(device.0 as usize)
        .ok_or_else(|| Error::new(operation, Detail::NoSuchDevice { device, vendor, count }))?;
    match &found.unusable {
        None => Ok(found),
        Some(reason) => {
            Err(Error::new(operation, Detail::Unsupported { reason: format!("{device}: {reason}") }))
        }
    }
}

/// Checks that a device has virtual memory management.
///
/// # Errors
///
/// Those of [`Backend::device`], and [`Detail::Unsupported`] with the reason why it has none.
pub fn check_virtual_memory<B: Backend>(operation: Operation, backend: &B, device: DeviceId) -> Result<()> {
    match &backend.device(operation, device)?.no_virtual_memory {
        None => Ok(()),
        Some(reason) => {
            let reason = format!(
                "{device} has no virtual memory management ({reason}); regions and pools on it are plain allocations, \
                 which can grow, shrink and be copied"
            );
            Err(Error::new(operation, Detail::Unsupported { reason }))
        }
    }
}

/// Checks that two values are the same backend instance, so that each accepts the handles of the other.
///
/// # Errors
///
/// [`Detail::ForeignHandle`] if they are not.
pub fn check_same<B: Backend>(operation: Operation, theirs: &B, ours: &B) -> Result<()> {
    if theirs.instance() == ours.instance() {
        return Ok(());
    }
    let label = |backend: &B| format!("{} backend {}", backend.vendor(), backend.instance().number());
    Err(Error::new(operation, Detail::ForeignHandle { theirs: label(theirs), ours: label(ours) }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::types::Bytes;

    #[test]
    fn missing_or_unusable_device_is_refused() {
        let device = |ordinal, unusable: Option<&str>| Device {
            id: DeviceId(ordinal),
            name: format!("device {ordinal}"),
            uuid: None,
            total_memory: Bytes::gib(1),
            granularity: Granularity::BYTE,
            unusable: unusable.map(str::to_owned),
            no_virtual_memory: None,
            compute_mode: None,
        };
        let devices = [device(0, None), device(1, Some("it is broken"))];
        let find = |device| usable_device(Operation::Allocate, Vendor::Host, &devices, device);
        assert_eq!(find(DeviceId(0)).unwrap().id, DeviceId(0));
        let reason = |device| match find(device).unwrap_err().into_detail() {
            Detail::Unsupported { reason } => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(DeviceId(1)), "device 1: it is broken");
        let host = "the host CPU is not a device; request memory whose location is the host";
        assert_eq!(reason(DeviceId::HOST), host);
        let error = find(DeviceId(2)).unwrap_err();
        assert!(
            matches!(error.detail(), Detail::NoSuchDevice { device: DeviceId(2), count: 2, .. }),
            "{error}"
        );
    }
}
