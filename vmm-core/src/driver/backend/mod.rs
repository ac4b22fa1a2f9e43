//! The seam between gpu-vmm and a vendor: the traits that a backend implements, with what differs and no more.
//!
//! [`Backend`] is a loaded driver, [`Handle`] a piece of physical memory, [`Reservation`] a range of addresses. Their
//! methods that reach the driver are `unsafe` where a wrong argument would be undefined there: HIP answers some wrong
//! calls with success and some with a crash. The one caller is this crate ([`Region`](crate::Region),
//! [`PhysicalMemory`](crate::PhysicalMemory)), which keeps the books and has checked everything first.
//!
//! # For authors of a backend
//!
//! What you may rely on is in each method's `# Safety`; what you must hold is in its rules. A call that fails leaves
//! everything as it was. Values that come from C are integers in newtypes, never Rust enums.
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

/// A loaded driver: what it is and what it can do. Cloning one is cheap and gives the same driver.
///
/// Its calls are in three traits that it includes, one for each subject: [`MemoryCalls`], [`CopyCalls`], [`SyncCalls`].
///
/// # Safety
///
/// This crate's memory safety rests on what an implementation returns, so that it holds of its safe methods too:
///
/// - A clone is the same driver, and [`instance`](Backend::instance) is equal for two values only if each accepts the
///   handles of the other.
/// - [`devices`](Backend::devices), the granularities and the [reservation unit](Backend::reservation_unit) never change,
///   and what is a multiple of them is what the driver accepts.
/// - [`check_host_access`](Backend::check_host_access) returns `Ok` only for memory that the CPU can read and write at the
///   addresses of its mappings.
pub unsafe trait Backend:
    MemoryCalls + CopyCalls + SyncCalls + Clone + Debug + Send + Sync + 'static
{
    /// Whose driver it is.
    fn vendor(&self) -> Vendor;

    /// Which opened backend this is: its memory can be mapped where this number is the same.
    fn instance(&self) -> InstanceId;

    /// The driver's version and library.
    fn driver(&self) -> DriverInfo;

    /// All devices, usable or not; a device's ordinal is its place here.
    fn devices(&self) -> &[Device];

    /// Free and total memory of a device now. CUDA: `cuMemGetInfo`, HIP: `hipMemGetInfo`.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or what the driver answers.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;

    /// Whether `device` can be given access to memory of `owner`. CUDA: `cuDeviceCanAccessPeer`, HIP:
    /// `hipDeviceCanAccessPeer`; a device can always reach its own.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool>;

    /// What a device can do; the first call may try things out on a granule of memory.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or what the driver answers.
    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>>;

    /// The quirks that this driver's version has.
    fn quirks(&self) -> Vec<Quirk>;

    /// True where one call may unmap several mappings that follow each other.
    fn unmaps_runs(&self) -> bool;

    /// What every size, offset and address of a mapping is a multiple of, whichever device's memory it is: the largest
    /// granularity of all devices.
    fn granularity(&self) -> Granularity {
        self.devices().iter().map(|device| device.granularity).max().unwrap_or(Granularity::BYTE)
    }

    /// What memory with these properties is created and mapped in multiples of. CUDA:
    /// `cuMemGetAllocationGranularity`, HIP: `hipMemGetAllocationGranularity`.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], [`Detail::Unsupported`] for memory that the driver does not have.
    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        self.device(operation, properties.device).map(|device| device.granularity)
    }

    /// Whether the CPU can be given access to mapped memory with these properties, or why not.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] with the reason.
    fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()>;

    /// The unit in which the driver hands out addresses: a reservation takes a multiple of it whatever size was asked
    /// for, and nothing else can begin inside of the last one. The granularity, or more.
    fn reservation_unit(&self) -> Granularity {
        self.granularity()
    }

    /// What failed in destructors.
    fn drop_log(&self) -> &DropLog;

    /// What destructors could not give back yet, since a stream was captured.
    fn deferred(&self) -> &Deferred;

    /// The device, where there is a usable one of that ordinal.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or [`Detail::Unsupported`] with the reason.
    fn device(&self, operation: Operation, device: DeviceId) -> Result<&Device> {
        if device.is_host() {
            let reason =
                "the host is given access and is no device; its memory is a device's, in another place";
            return Err(Error::new(operation, Detail::Unsupported { reason: reason.to_owned() }));
        }
        let devices = self.devices();
        let count = devices.len() as u32;
        let found = devices.get(device.0 as usize).ok_or_else(|| {
            Error::new(operation, Detail::NoSuchDevice { device, vendor: self.vendor(), count })
        })?;
        match &found.unusable {
            None => Ok(found),
            Some(reason) => {
                Err(Error::new(operation, Detail::Unsupported { reason: format!("{device}: {reason}") }))
            }
        }
    }
}

/// Checks that two values are the same opened backend, so that each takes what the other has made.
///
/// # Errors
///
/// [`Detail::ForeignHandle`].
pub fn check_same<B: Backend>(operation: Operation, theirs: &B, ours: &B) -> Result<()> {
    if theirs.instance() == ours.instance() {
        return Ok(());
    }
    let label = |backend: &B| format!("{} backend {}", backend.vendor(), backend.instance().number());
    Err(Error::new(operation, Detail::ForeignHandle { theirs: label(theirs), ours: label(ours) }))
}
