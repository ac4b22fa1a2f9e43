//! Physical memory as a user holds it: shared ownership of a backend's handle.
#![allow(unsafe_code)]

use crate::driver::{Backend, Handle, check_same};
use crate::memory::poison;
use crate::types::{
    Bytes, Detail, DeviceId, Error, FabricHandle, Granularity, Operation, Properties, Result,
};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};
#[cfg(windows)]
use std::os::windows::io::{BorrowedHandle, OwnedHandle};

/// A piece of physical memory of one device, with no address until it is mapped.
///
/// Clones are the same memory. It can be mapped at several addresses at once (aliases), in one region or in several;
/// it is given back to the device when the last clone is dropped and the last mapping removed. Its contents stay with
/// it from one mapping to the next. CUDA: `CUmemGenericAllocationHandle`, HIP: `hipMemGenericAllocationHandle_t`.
///
/// Two mappings of one piece show the same bytes once the writing operation has completed. Inside one kernel they may
/// differ: on AMD's RDNA the first-level cache is not coherent between two addresses of the same memory.
#[derive(Debug)]
pub struct PhysicalMemory<B: Backend>(Arc<Owned<B>>);

/// Which piece of memory something is, without keeping the memory. No other piece has an equal one, now or later.
#[derive(Debug)]
pub struct MemoryId<B: Backend>(Weak<Owned<B>>);

impl<B: Backend> MemoryId<B> {
    fn key(&self) -> usize {
        // The allocation of what is counted stays as long as this does, so that it is no other piece's.
        Weak::as_ptr(&self.0).addr()
    }
}

impl<B: Backend> PartialEq for MemoryId<B> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<B: Backend> Eq for MemoryId<B> {}

impl<B: Backend> Hash for MemoryId<B> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

#[derive(Debug)]
struct Owned<B: Backend> {
    handle: B::Handle,
    size: Bytes,
    properties: Properties,
    granularity: Granularity,
    backend: B,
    /// Whether another process may have it too.
    leaves: Leaves,
}

/// Whether memory is another process's as well.
#[derive(Debug, Default)]
struct Leaves {
    imported: bool,
    exported: AtomicBool,
    /// What is in it is to be overwritten before it is freed.
    poisoned: AtomicBool,
}

impl<B: Backend> Clone for PhysicalMemory<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> PhysicalMemory<B> {
    /// Creates at least `size` bytes: the size is rounded up to the granularity of such memory, and
    /// [`PhysicalMemory::size`] tells what it became. CUDA: `cuMemCreate`, HIP: `hipMemCreate`.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], [`Detail::NoSuchDevice`], [`Detail::ExceedsDevice`] for more than the device has at all,
    /// [`Detail::OutOfMemory`] for more than is free, when what the backend [keeps](crate::extend::Deferred) has been given back;
    /// [`Detail::Unsupported`] for properties that the driver does not
    /// have.
    pub fn create(backend: &B, size: Bytes, properties: Properties) -> Result<Self> {
        let (size, granularity) = rounded_size(backend, Operation::CreateMemory, size, &properties)?;
        // SAFETY: the device exists and is usable, and the size is a multiple of the granularity and not zero.
        let create = || unsafe { backend.create(size, &properties) };
        let handle = match create() {
            Err(error) if matches!(error.detail(), Detail::OutOfMemory { .. }) && collected(backend) => {
                create()
            }
            other => other,
        }?;
        Ok(Self::own(backend, handle, granularity, false))
    }

    /// Takes in memory that another process exported. The descriptor can be closed afterwards. CUDA:
    /// `cuMemImportFromShareableHandle`, HIP: `hipMemImportFromShareableHandle`.
    ///
    /// # Safety
    ///
    /// The descriptor was exported by the same vendor's driver, of memory with exactly this size and on this device:
    /// no driver tells the importer.
    ///
    /// # Errors
    ///
    /// The same as for [`PhysicalMemory::create`], and what the driver answers to a descriptor of another kind.
    #[cfg(unix)]
    pub unsafe fn import(
        backend: &B,
        fd: BorrowedFd<'_>,
        size: Bytes,
        properties: Properties,
    ) -> Result<Self> {
        let granularity = imported_size(backend, size, &properties)?;
        // SAFETY: the caller vouches for the descriptor, size and properties.
        let handle = unsafe { backend.import(fd, size, &properties) }?;
        Ok(Self::own(backend, handle, granularity, true))
    }

    /// Takes in memory that another process exported, on Windows. The handle can be closed afterwards. How it comes from
    /// one process into another: gpu-vmm-share's `win32`. CUDA: `cuMemImportFromShareableHandle` with
    /// `CU_MEM_HANDLE_TYPE_WIN32`.
    ///
    /// # Safety
    ///
    /// The handle was exported by the same vendor's driver, of memory with exactly this size and on this device: no
    /// driver tells the importer.
    ///
    /// # Errors
    ///
    /// The same as for [`PhysicalMemory::create`], and what the driver answers to a handle of another kind.
    #[cfg(windows)]
    pub unsafe fn import_win32(
        backend: &B,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: Properties,
    ) -> Result<Self> {
        let granularity = imported_size(backend, size, &properties)?;
        // SAFETY: the caller vouches for the handle, size and properties.
        let handle = unsafe { backend.import_win32(from, size, &properties) }?;
        Ok(Self::own(backend, handle, granularity, true))
    }

    /// Takes in memory that was exported as 64 bytes, on this machine or another one of its fabric.
    ///
    /// # Safety
    ///
    /// The bytes were exported by the same vendor's driver, of memory with exactly this size and on this device.
    ///
    /// # Errors
    ///
    /// The same as for [`PhysicalMemory::create`], and what the driver answers to other bytes; [`Detail::Unsupported`] where it
    /// has no such handles.
    pub unsafe fn import_fabric(
        backend: &B,
        from: &FabricHandle,
        size: Bytes,
        properties: Properties,
    ) -> Result<Self> {
        let granularity = imported_size(backend, size, &properties)?;
        // SAFETY: the caller vouches for the bytes, size and properties.
        let handle = unsafe { backend.import_fabric(from, size, &properties) }?;
        Ok(Self::own(backend, handle, granularity, true))
    }

    fn own(backend: &B, handle: B::Handle, granularity: Granularity, imported: bool) -> Self {
        let (size, properties) = (handle.size(), handle.properties());
        let leaves = Leaves { imported, ..Leaves::default() };
        Self(Arc::new(Owned { handle, size, properties, granularity, backend: backend.clone(), leaves }))
    }

    /// How much memory: what was asked for, rounded up to the granularity.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.0.size
    }

    /// Whose memory it is.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.properties.device
    }

    /// What it is: what was asked for, but for what the driver did not give. Memory that was asked for as compressible
    /// and is not says so here.
    #[must_use]
    pub fn properties(&self) -> Properties {
        self.0.properties
    }

    /// What its size, and every address that it is mapped at, is a multiple of.
    #[must_use]
    pub fn granularity(&self) -> Granularity {
        self.0.granularity
    }

    /// The backend that made it.
    pub(crate) fn backend(&self) -> &B {
        &self.0.backend
    }

    /// The backend's handle, for what does not export it: the memory would not be known to be
    /// [exported](PhysicalMemory::is_exported).
    pub(crate) fn handle(&self) -> &B::Handle {
        &self.0.handle
    }

    /// True where both are the same piece of memory of one handle.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Which piece of memory this is: equal for all clones.
    #[must_use]
    pub fn id(&self) -> MemoryId<B> {
        MemoryId(Arc::downgrade(&self.0))
    }

    /// A new file descriptor for the memory, which must have been created [shareable](Properties::shareable).
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where it was not, or where the driver cannot share.
    #[cfg(unix)]
    pub fn export(&self) -> Result<OwnedFd> {
        self.exporting(|handle| handle.export())
    }

    /// A new handle of Windows for the memory, which must have been created [shareable](Properties::shareable). Child
    /// processes do not inherit it; gpu-vmm-share's `win32` carries it to others.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where it was not, or where the driver cannot share.
    #[cfg(windows)]
    pub fn export_win32(&self) -> Result<OwnedHandle> {
        self.exporting(|handle| handle.export_win32())
    }

    /// The memory as 64 bytes; it must have been created for [fabric handles](crate::HandleTypes::FABRIC).
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where it was not, or where the driver has none.
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        self.exporting(|handle| handle.export_fabric())
    }

    fn exporting<T>(&self, export: impl FnOnce(&B::Handle) -> Result<T>) -> Result<T> {
        let exported = export(&self.0.handle)?;
        self.mark_exported();
        Ok(exported)
    }

    /// Notes that another process, or a network card, may have the memory from now on: nobody tells when it has not.
    pub(crate) fn mark_exported(&self) {
        self.0.leaves.exported.store(true, Ordering::Relaxed);
    }

    /// True where this, or a clone of it, has been exported.
    #[must_use]
    pub fn is_exported(&self) -> bool {
        self.0.leaves.exported.load(Ordering::Relaxed)
    }

    /// True for memory that was imported, from another process or by a descriptor of this one.
    pub(crate) fn is_imported(&self) -> bool {
        self.0.leaves.imported
    }

    /// Has the contents be overwritten when the last clone is dropped. Memory that another process may have as well is left
    /// alone: that it goes on there may be what was wanted.
    pub(crate) fn poison_when_freed(&self) {
        self.0.leaves.poisoned.store(true, Ordering::Relaxed);
    }

    /// How many clones there are, each mapping with its own.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Checks that a backend made the memory, so that it can map it.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`].
    pub fn check_belongs_to(&self, operation: Operation, backend: &B) -> Result<()> {
        check_same(operation, &self.0.backend, backend)
    }
}

/// Gives back what destructors had to keep, now that memory has run out. True if there is any more memory for it.
fn collected<B: Backend>(backend: &B) -> bool {
    let deferred = backend.deferred();
    let before = deferred.kept();
    if before == Bytes::ZERO || deferred.is_capturing() {
        return false;
    }
    // What fails here is the business of what was dropped. Some of it may have come back all the same.
    if let Err(error) = deferred.collect(backend)
        && !matches!(error.detail(), Detail::Capturing { .. })
    {
        backend.drop_log().record(error);
    }
    deferred.kept() < before
}

impl<B: Backend> Drop for Owned<B> {
    fn drop(&mut self) {
        let Leaves { imported, exported, poisoned } = &mut self.leaves;
        if *poisoned.get_mut() && !*exported.get_mut() && !*imported {
            poison(&self.backend, &self.handle, self.granularity);
        }
    }
}

/// `size` rounded up to what such memory is created in, if it can be had at all; and that granularity.
///
/// # Errors
///
/// [`Detail::ZeroSize`], [`Detail::NoSuchDevice`], [`Detail::ExceedsDevice`], [`Detail::Unsupported`] for memory that the device
/// does not have.
pub fn rounded_size<B: Backend>(
    backend: &B,
    operation: Operation,
    size: Bytes,
    properties: &Properties,
) -> Result<(Bytes, Granularity)> {
    if size.is_zero() {
        return Err(Error::new(operation, Detail::ZeroSize));
    }
    properties.handle_types.check_here(operation)?;
    let device = properties.device;
    let total = backend.device(operation, device)?.total_memory;
    let exceeds = || Error::new(operation, Detail::ExceedsDevice { requested: size, device, total });
    // How much memory the host has, nobody but the driver says.
    if size > total && !properties.location.is_host() {
        return Err(exceeds());
    }
    let granularity = backend.granularity_of(operation, properties)?;
    granularity.round_up(size).map(|rounded| (rounded, granularity)).ok_or_else(exceeds)
}

/// Refuses a size that memory to be imported cannot have; the granularity of such memory.
fn imported_size<B: Backend>(backend: &B, size: Bytes, properties: &Properties) -> Result<Granularity> {
    let operation = Operation::ImportMemory;
    properties.handle_types.check_here(operation)?;
    backend.device(operation, properties.device)?;
    let granularity = backend.granularity_of(operation, properties)?;
    if size.is_zero() {
        return Err(Error::new(operation, Detail::ZeroSize));
    }
    if !granularity.divides(size) {
        return Err(Error::new(operation, Detail::Unaligned { what: "size", value: size.0, granularity }));
    }
    Ok(granularity)
}
