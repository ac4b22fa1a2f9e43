//! The driver's calls on reserved addresses.
#![allow(unsafe_code)]

#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{Access, AddressRange, Bytes, DeviceId, Grant, Result};
use std::fmt::Debug;

#[cfg(unix)]
use std::os::fd::OwnedFd;

/// A reserved range of addresses. Dropping it frees the addresses (`cuMemAddressFree`, `hipMemAddressFree`).
///
/// The code that maps memory must unmap all of it before it drops the reservation.
///
/// # Safety
///
/// [`range`](Reservation::range) never changes. No other reservation of the process overlaps it until the value is dropped or
/// [`return_memory`](Reservation::return_memory) has failed. A call that returns `Ok` has done what its documentation says. A
/// call that returns an error has left the mappings unchanged, unless its documentation says otherwise.
pub unsafe trait Reservation: Debug + Send + Sync {
    /// The type of handles that can be mapped in the reservation.
    type Handle;

    /// Returns the reserved addresses.
    fn range(&self) -> AddressRange;

    /// Maps a whole handle at `offset`. CUDA: `cuMemMap`, HIP: `hipMemMap`. No device has access to the new mapping.
    ///
    /// # Safety
    ///
    /// `offset` is a multiple of the granularity. The range from `offset` with the handle's size lies in the reservation, and
    /// nothing is mapped there. The handle belongs to this backend instance.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn map(&mut self, offset: Bytes, handle: &Self::Handle) -> Result<()>;

    /// Unmaps a range. CUDA: `cuMemUnmap`, HIP: `hipMemUnmap`.
    ///
    /// # Safety
    ///
    /// The range is one whole mapping, or several adjacent ones if the backend
    /// [unmaps runs](crate::Backend::unmaps_runs). No device uses it any more.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns. The whole range is then still mapped.
    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()>;

    /// Sets the access of devices to a range; other devices keep their access. CUDA: `cuMemSetAccess`, HIP:
    /// `hipMemSetAccess`.
    ///
    /// # Safety
    ///
    /// The range is one whole mapping or several adjacent ones. Every device exists, occurs once in `grants` and can access the
    /// memory.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns. Some devices may then already have their new access to a part of the range.
    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()>;

    /// Queries the access of a device from the driver. CUDA: `cuMemGetAccess`, HIP: `hipMemGetAccess`.
    ///
    /// For checks of a driver: [`Region`](crate::Region) relies on its own records.
    ///
    /// # Safety
    ///
    /// Memory is mapped at `offset`, and the device exists. The conformance suite also asks where nothing is mapped, and expects an
    /// error.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access>;

    /// Makes the driver return unmapped memory of this reservation to the device.
    ///
    /// HIP 7.1 and 7.2 keep unmapped memory as long as the addresses are reserved. There, this call frees the addresses and
    /// reserves them again. On other drivers it does nothing.
    ///
    /// # Safety
    ///
    /// Nothing is mapped in the reservation.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] if another reservation has taken the addresses meanwhile, or any error that the driver returns.
    /// After an error, the reservation may have lost its addresses. No call may use it until [`regain`](Reservation::regain) has
    /// succeeded. Dropping it then does not free addresses that it has lost.
    unsafe fn return_memory(&mut self) -> Result<()>;

    /// Reserves the addresses again that [`return_memory`](Reservation::return_memory) has lost. Does nothing if it has lost none.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] if another reservation still has them, or any error that the driver returns.
    fn regain(&mut self) -> Result<()>;

    /// Exports a range as one dma-buf descriptor, for network cards. CUDA: `cuMemGetHandleForAddressRange`, HIP:
    /// `hipMemGetHandleForAddressRange`.
    ///
    /// The descriptor refers to the memory that is mapped now. After a change of the mappings, a new one is needed.
    ///
    /// # Safety
    ///
    /// The range is one whole mapping or several adjacent ones, all of `owner`'s memory with the same properties.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`], or any error that the driver returns.
    #[cfg(unix)]
    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<OwnedFd>;
}
