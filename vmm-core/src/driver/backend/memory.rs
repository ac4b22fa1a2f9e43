//! The driver's calls for physical memory and addresses.

#[cfg(doc)]
use super::Backend;
use super::{Handle, Reservation};
#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Address, Alignment, Bytes, FabricHandle, Properties, Result};

#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;

/// Creating and importing physical memory, and reserving addresses.
///
/// # Safety
///
/// A handle and a reservation that are returned keep what [`Handle`] and [`Reservation`] promise, with the size that was
/// asked for.
pub unsafe trait MemoryCalls {
    /// A piece of physical memory of this driver.
    type Handle: Handle;
    /// A range of addresses of this driver.
    type Reservation: Reservation<Handle = Self::Handle>;

    /// Creates physical memory. CUDA: `cuMemCreate`, HIP: `hipMemCreate`.
    ///
    /// # Safety
    ///
    /// The device exists and is usable; `size` is a multiple of the
    /// [granularity](Backend::granularity_of) of such memory and not zero.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfMemory`], [`Detail::Unsupported`] for properties that the driver does not have, or what the
    /// driver answers.
    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<Self::Handle>;

    /// Takes in memory that another process, or this one, has exported. CUDA: `cuMemImportFromShareableHandle`,
    /// HIP: `hipMemImportFromShareableHandle`. The descriptor stays the caller's.
    ///
    /// # Safety
    ///
    /// The descriptor was exported by a backend of this vendor, of memory with this size and these properties.
    ///
    /// # Errors
    ///
    /// What the driver answers, or [`Detail::Unsupported`].
    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties)
    -> Result<Self::Handle>;

    /// The same on Windows, from a handle of its kernel's. CUDA: `CU_MEM_HANDLE_TYPE_WIN32`, HIP:
    /// `hipMemHandleTypeWin32`. The handle stays the caller's.
    ///
    /// # Safety
    ///
    /// The handle was exported by a backend of this vendor, of memory with this size and these properties.
    ///
    /// # Errors
    ///
    /// What the driver answers, or [`Detail::Unsupported`].
    #[cfg(windows)]
    unsafe fn import_win32(
        &self,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle>;

    /// Takes in memory that was exported as a fabric handle, on this machine or another one.
    ///
    /// # Safety
    ///
    /// The bytes were exported by a backend of this vendor, of memory with this size and these properties.
    ///
    /// # Errors
    ///
    /// What the driver answers, or [`Detail::Unsupported`].
    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle>;

    /// Reserves addresses; `hint` is a wish, and the caller compares. CUDA: `cuMemAddressReserve`, HIP:
    /// `hipMemAddressReserve`.
    ///
    /// # Safety
    ///
    /// `size` is a multiple of the [reservation unit](Backend::reservation_unit) and not zero, `hint` one
    /// of the granularity.
    ///
    /// # Errors
    ///
    /// What the driver answers. A base that is not aligned as asked is an error of the backend's own.
    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self::Reservation>;
}
