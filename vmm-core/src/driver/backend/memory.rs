//! The driver's calls that create and import physical memory and reserve addresses.

#[allow(unused_imports)] // named in documentation
use super::Backend;
use super::{Handle, Reservation};
use crate::types::Detail;
use crate::types::{
    Address, AddressRange, Alignment, Bytes, DeviceId, Error, FabricHandle, Operation, Properties, Result,
};

#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;

/// The driver's calls that create and import physical memory and reserve addresses.
///
/// # Safety
///
/// Returned handles and reservations meet the `# Safety` sections of [`Handle`] and [`Reservation`] and have the requested
/// size.
pub unsafe trait MemoryCalls {
    /// The driver's handle of physical memory.
    type Handle: Handle;
    /// The driver's reservation of addresses.
    type Reservation: Reservation<Handle = Self::Handle>;

    /// Creates physical memory. CUDA: `cuMemCreate`, HIP: `hipMemCreate`.
    ///
    /// # Safety
    ///
    /// The device exists and is usable. `size` is not zero and is a multiple of the [granularity](Backend::granularity_of) of
    /// such memory.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfMemory`], [`Detail::Unsupported`] for properties that the driver does not support, or any other error that
    /// the driver returns.
    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<Self::Handle>;

    /// Imports memory that another process, or this one, has exported. CUDA: `cuMemImportFromShareableHandle`, HIP:
    /// `hipMemImportFromShareableHandle`. The caller keeps the descriptor.
    ///
    /// # Safety
    ///
    /// If a backend of this vendor exported the descriptor, it did so for memory with this size and these properties.
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`] for a descriptor of anything else, such as a pipe or another file: it can come from another process.
    /// [`Detail::Unsupported`], or any other error that the driver returns.
    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties)
    -> Result<Self::Handle>;

    /// Imports memory by a Windows handle. CUDA: `CU_MEM_HANDLE_TYPE_WIN32`, HIP: `hipMemHandleTypeWin32`. The caller keeps the
    /// handle.
    ///
    /// # Safety
    ///
    /// A backend of this vendor exported the handle for memory with this size and these properties.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`], or any other error that the driver returns.
    #[cfg(windows)]
    unsafe fn import_win32(
        &self,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle>;

    /// Imports memory that was exported as a fabric handle, on this machine or another one.
    ///
    /// # Safety
    ///
    /// A backend of this vendor exported the handle for memory with this size and these properties.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`], or any other error that the driver returns.
    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle>;

    /// Takes a reference to the memory that other code has mapped at an address. CUDA: `cuMemRetainAllocationHandle`, HIP:
    /// `hipMemRetainAllocationHandle`.
    ///
    /// Dropping the handle releases this reference alone. Size and properties are those that the driver reports, and the whole
    /// handle can be mapped. By default, a backend cannot do this.
    ///
    /// # Safety
    ///
    /// No other thread unmaps the memory at the address during the call. Nothing needs to be mapped there.
    ///
    /// # Errors
    ///
    /// [`Detail::NoMemoryAt`] for an address without a handle, [`Detail::Unsupported`] if the driver cannot do this or cannot do it
    /// safely, or any other error that the driver returns.
    unsafe fn adopt(&self, _at: Address) -> Result<Self::Handle> {
        let reason = "this backend does not look up memory by its address".to_owned();
        Err(Error::new(Operation::AdoptMemory, Detail::Unsupported { reason }))
    }

    /// Reserves addresses. CUDA: `cuMemAddressReserve`, HIP: `hipMemAddressReserve`.
    ///
    /// `hint` is advisory: the driver may return other addresses, so the caller must compare them. A backend that reports the
    /// capability [`Feature::FixedAddress`](crate::Feature::FixedAddress) follows a hint if exactly these addresses are free.
    ///
    /// # Safety
    ///
    /// `size` is not zero and is a multiple of the [reservation unit](Backend::reservation_unit). `hint` is a multiple of the
    /// granularity.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfAddresses`] if too few addresses are free, or any other error that the driver returns. The backend returns its
    /// own error if the driver's address does not have the requested alignment.
    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self::Reservation>;

    /// Reserves addresses within a range again that the backend has kept instead of freeing them, because its driver cannot free
    /// them safely. Of the places in a larger part, `random` chooses one. Returns `None` if it keeps none that fit: by default,
    /// always.
    ///
    /// # Safety
    ///
    /// As for [`reserve`](MemoryCalls::reserve).
    unsafe fn reserve_kept(
        &self,
        _size: Bytes,
        _alignment: Alignment,
        _within: AddressRange,
        _random: u64,
    ) -> Option<Self::Reservation> {
        None
    }

    /// Allocates memory of a device without virtual memory management. CUDA: `cuMemAlloc`, HIP: `hipMalloc`, the host: `mmap`.
    ///
    /// The device can read and write at least `size` bytes from the returned address on, until
    /// [`free_plain`](MemoryCalls::free_plain). Regions and pools use it on a device that
    /// [has no virtual memory management](crate::Device::no_virtual_memory).
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], [`Detail::OutOfMemory`], or any other error that the driver returns.
    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address>;

    /// Frees a plain allocation. CUDA: `cuMemFree`, HIP: `hipFree`, the host: `munmap`.
    ///
    /// # Safety
    ///
    /// [`allocate_plain`](MemoryCalls::allocate_plain) has returned the address for this device and size, the memory was not freed
    /// yet, and no work uses it.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns. The memory is then still allocated.
    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()>;
}
