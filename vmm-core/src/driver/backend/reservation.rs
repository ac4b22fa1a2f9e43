//! A range of a driver's addresses.
#![allow(unsafe_code)]

#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Access, AddressRange, Bytes, DeviceId, Grant, Result};
use std::fmt::Debug;

#[cfg(unix)]
use std::os::fd::OwnedFd;

/// A range of addresses. Dropping it gives the addresses back (`cuMemAddressFree`, `hipMemAddressFree`).
///
/// Nothing may be mapped in it when it is dropped: whoever maps sees to that.
///
/// # Safety
///
/// [`range`](Reservation::range) never changes, and no other reservation of the process has an address of it, from the
/// moment that the value exists until it is dropped or [`return_memory`](Reservation::return_memory) has failed. A call that
/// returns `Ok` has done what it says, one that returns an error has left the mappings as they were, unless its
/// documentation says otherwise.
pub unsafe trait Reservation: Debug + Send + Sync {
    /// The handles that can be mapped in it.
    type Handle;

    /// The addresses.
    fn range(&self) -> AddressRange;

    /// Maps a whole handle. CUDA: `cuMemMap`, HIP: `hipMemMap`. No device has access yet.
    ///
    /// # Safety
    ///
    /// `offset` is a multiple of the granularity; the handle's size from it on lies in the reservation and nothing
    /// is mapped there; the handle is of this backend instance.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn map(&mut self, offset: Bytes, handle: &Self::Handle) -> Result<()>;

    /// Removes mappings. CUDA: `cuMemUnmap`, HIP: `hipMemUnmap`.
    ///
    /// # Safety
    ///
    /// The part is one whole mapping, or several that follow each other without a hole where the backend
    /// [unmaps runs](crate::Backend::unmaps_runs). No device uses it any more.
    ///
    /// # Errors
    ///
    /// What the driver answers; then all of it is still mapped.
    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()>;

    /// Sets what devices may do with mappings; devices that are not named keep what they have. CUDA:
    /// `cuMemSetAccess`, HIP: `hipMemSetAccess`.
    ///
    /// # Safety
    ///
    /// The part is one or several whole mappings that follow each other without a hole; every device exists, is
    /// named once and can reach the memory.
    ///
    /// # Errors
    ///
    /// What the driver answers. Some of the devices may then have their new access already, on some of the part.
    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()>;

    /// What the driver says that a device may do at an address. CUDA: `cuMemGetAccess`, HIP: `hipMemGetAccess`. For
    /// checking a driver; the books of [`Region`](crate::Region) decide.
    ///
    /// # Safety
    ///
    /// Something is mapped at `offset`, and the device exists.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access>;

    /// Sees to it that memory that was mapped here and is not any more has gone back to its device. HIP 7.1 and 7.2 keep it
    /// as long as the addresses are reserved: there they are given back and reserved again. Nothing is done where that is
    /// not needed.
    ///
    /// # Safety
    ///
    /// Nothing is mapped in the reservation.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] if another reservation has taken the addresses
    /// meanwhile, or what the driver answers. After any error the reservation may be without its addresses: nothing can
    /// be done in it until [`regain`](Reservation::regain) has succeeded, and dropping it gives nothing back that it has
    /// not.
    unsafe fn return_memory(&mut self) -> Result<()>;

    /// Reserves addresses again that [`return_memory`](Reservation::return_memory) has lost; nothing where it has not.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] if another reservation still has them, or what
    /// the driver answers.
    fn regain(&mut self) -> Result<()>;

    /// One descriptor (dma-buf) for a part, which network cards can be given. CUDA: `cuMemGetHandleForAddressRange`,
    /// HIP: `hipMemGetHandleForAddressRange`. It stands for the memory that is mapped now: after a change of the
    /// mappings a new one is needed.
    ///
    /// # Safety
    ///
    /// The part is one or several whole mappings that follow each other without a hole, all of `owner`'s memory with
    /// the same properties.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`], or what the driver answers.
    #[cfg(unix)]
    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<OwnedFd>;
}
