//! Physical memory with shared ownership of a backend's handle.
#![allow(unsafe_code)]

use crate::driver::{Backend, Handle, check_same, check_virtual_memory};
use crate::memory::common::{Common, Shared};
use crate::memory::free_handles::FreeHandles;
use crate::memory::plain::Plain;
use crate::memory::poison;
use crate::trace::span;
use crate::types::{
    Address, Alignment, Bytes, Detail, DeviceId, Error, FabricHandle, Granularity, Lock, Operation,
    Properties, Result,
};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};
#[cfg(windows)]
use std::os::windows::io::{BorrowedHandle, OwnedHandle};

/// Physical memory of one device, which has no address until it is mapped.
///
/// Clones share the memory. It can be mapped at several addresses at once (aliases), in one region or in several. The device
/// gets it back after the last clone has been dropped and the last mapping removed. The memory keeps its contents when it is
/// unmapped. CUDA: `CUmemGenericAllocationHandle`, HIP: `hipMemGenericAllocationHandle_t`.
///
/// Two mappings of the same memory show the same bytes after the writing operation has completed. Within one kernel they may
/// differ: on AMD's RDNA, the first-level cache is not coherent between two addresses of the same memory.
#[derive(Debug)]
pub struct PhysicalMemory<B: Backend>(Arc<Owned<B>>);

/// An identifier of physical memory that does not keep the memory alive. No other memory of this process ever has an equal identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemoryId(u64);

impl MemoryId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Owned<B: Backend> {
    id: MemoryId,
    /// Taken out when the last clone is dropped.
    source: ManuallyDrop<Source<B>>,
    size: Bytes,
    properties: Properties,
    granularity: Granularity,
    backend: B,
    /// Whether another process may have the memory too.
    leaves: Leaves,
    /// The list to which the memory returns; it may be gone, and most memory has none.
    list: Weak<FreeHandles<B::Handle>>,
    /// The suspended regions that have the memory in common with others, if there are any.
    common: Lock<Weak<Common<B, PhysicalMemory<B>>>>,
}

/// What the driver knows the memory by.
#[derive(Debug)]
enum Source<B: Backend> {
    Handle(B::Handle),
    Plain(Plain<B>),
}

/// Where the memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Origin {
    /// This backend has created it.
    #[default]
    Created,
    /// Another process has exported it, or this one.
    Imported,
    /// Other code of this process has created and mapped it.
    Adopted,
}

/// Whether another process or other code may have the memory, and whether it is overwritten before it is freed.
#[derive(Debug, Default)]
struct Leaves {
    origin: Origin,
    exported: AtomicBool,
    /// Whether the contents are overwritten before the memory is freed.
    poisoned: AtomicBool,
}

impl<B: Backend> Shared<B> for PhysicalMemory<B> {
    fn size(&self) -> Bytes {
        self.0.size
    }

    fn properties(&self) -> Properties {
        self.0.properties
    }

    fn common(&self) -> &Lock<Weak<Common<B, Self>>> {
        &self.0.common
    }
}

impl<B: Backend> Clone for PhysicalMemory<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> PhysicalMemory<B> {
    /// Creates physical memory of at least `size` bytes. CUDA: `cuMemCreate`, HIP: `hipMemCreate`.
    ///
    /// The size is rounded up to the granularity of such memory. [`PhysicalMemory::size`] returns the result.
    ///
    /// # Errors
    ///
    /// - [`Detail::ZeroSize`] or [`Detail::NoSuchDevice`].
    /// - [`Detail::ExceedsDevice`] if `size` exceeds the total memory of the device.
    /// - [`Detail::OutOfMemory`] if `size` exceeds the free memory, even after the backend has freed
    ///   [deferred memory](crate::extend::Deferred).
    /// - [`Detail::Unsupported`] for properties that the driver does not support.
    pub fn create(backend: &B, size: Bytes, properties: Properties) -> Result<Self> {
        let (size, granularity) = rounded_size(backend, Operation::CreateMemory, size, &properties)?;
        span!(CreateMemory, bytes = size.0, device = properties.device.0);
        let handle = Self::create_handle(backend, size, &properties)?;
        Ok(Self::own(backend, handle, granularity, Origin::Created, Weak::new()))
    }

    /// Creates a handle, after freeing deferred memory if necessary. [`rounded_size`] has returned the size for the properties.
    pub(super) fn create_handle(backend: &B, size: Bytes, properties: &Properties) -> Result<B::Handle> {
        or_again(backend, || create_handle_now(backend, size, properties))
    }

    /// Makes a plain allocation of a device without virtual memory management, and returns it with its first address, which is a
    /// multiple of `alignment`. [`rounded_size`] has returned the size and the granularity for the properties.
    pub(crate) fn allocate(
        backend: &B,
        (size, granularity): (Bytes, Granularity),
        properties: Properties,
        alignment: Alignment,
    ) -> Result<(Self, Address)> {
        let plain = or_again(backend, || Plain::allocate(backend, properties.device, size, alignment))?;
        let (address, leaves, list) = (plain.address(), Leaves::default(), Weak::new());
        let source = Source::Plain(plain);
        let memory = Self::new(backend, source, (size, granularity), properties, leaves, list);
        Ok((memory, address))
    }

    /// Creates the memory of a handle that returns to a list with the last clone and the last mapping.
    pub(super) fn of_list(
        backend: &B,
        handle: B::Handle,
        granularity: Granularity,
        list: &Arc<FreeHandles<B::Handle>>,
    ) -> Self {
        Self::own(backend, handle, granularity, Origin::Created, Arc::downgrade(list))
    }

    /// Imports memory that another process exported as a file descriptor. The descriptor can be closed afterwards. CUDA:
    /// `cuMemImportFromShareableHandle`, HIP: `hipMemImportFromShareableHandle`.
    ///
    /// # Safety
    ///
    /// The same vendor's driver exported the descriptor, for memory of exactly this size on this device. No driver reports size
    /// or device to the importer.
    ///
    /// # Errors
    ///
    /// The same as for [`PhysicalMemory::create`], and any error that the driver returns for another kind of descriptor.
    #[cfg(unix)]
    pub unsafe fn import(
        backend: &B,
        fd: BorrowedFd<'_>,
        size: Bytes,
        properties: Properties,
    ) -> Result<Self> {
        let granularity = imported_size(backend, size, &properties)?;
        span!(ImportMemory, bytes = size.0, device = properties.device.0);
        // SAFETY: the caller guarantees the descriptor, size and properties.
        let handle = unsafe { backend.import(fd, size, &properties) }?;
        Ok(Self::own(backend, handle, granularity, Origin::Imported, Weak::new()))
    }

    /// Imports memory that another process exported as a Windows handle. The handle can be closed afterwards. CUDA:
    /// `cuMemImportFromShareableHandle` with `CU_MEM_HANDLE_TYPE_WIN32`.
    ///
    /// gpu-vmm-share's `win32` passes handles from one process to another.
    ///
    /// # Safety
    ///
    /// The same vendor's driver exported the handle, for memory of exactly this size on this device. No driver reports size or
    /// device to the importer.
    ///
    /// # Errors
    ///
    /// The same as for [`PhysicalMemory::create`], and any error that the driver returns for another kind of handle.
    #[cfg(windows)]
    pub unsafe fn import_win32(
        backend: &B,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: Properties,
    ) -> Result<Self> {
        let granularity = imported_size(backend, size, &properties)?;
        span!(ImportMemory, bytes = size.0, device = properties.device.0);
        // SAFETY: the caller guarantees the handle, size and properties.
        let handle = unsafe { backend.import_win32(from, size, &properties) }?;
        Ok(Self::own(backend, handle, granularity, Origin::Imported, Weak::new()))
    }

    /// Imports memory that was exported as a fabric handle, on this machine or another one of its fabric.
    ///
    /// # Safety
    ///
    /// The same vendor's driver exported the handle, for memory of exactly this size on this device.
    ///
    /// # Errors
    ///
    /// The same as for [`PhysicalMemory::create`], and any error that the driver returns for an invalid handle.
    /// [`Detail::Unsupported`] if the driver has no fabric handles.
    pub unsafe fn import_fabric(
        backend: &B,
        from: &FabricHandle,
        size: Bytes,
        properties: Properties,
    ) -> Result<Self> {
        let granularity = imported_size(backend, size, &properties)?;
        span!(ImportMemory, bytes = size.0, device = properties.device.0);
        // SAFETY: the caller guarantees the handle, size and properties.
        let handle = unsafe { backend.import_fabric(from, size, &properties) }?;
        Ok(Self::own(backend, handle, granularity, Origin::Imported, Weak::new()))
    }

    pub(super) fn own(
        backend: &B,
        handle: B::Handle,
        granularity: Granularity,
        origin: Origin,
        list: Weak<FreeHandles<B::Handle>>,
    ) -> Self {
        let (size, properties) = (handle.size(), handle.properties());
        let leaves = Leaves { origin, ..Leaves::default() };
        Self::new(backend, Source::Handle(handle), (size, granularity), properties, leaves, list)
    }

    fn new(
        backend: &B,
        source: Source<B>,
        (size, granularity): (Bytes, Granularity),
        properties: Properties,
        leaves: Leaves,
        list: Weak<FreeHandles<B::Handle>>,
    ) -> Self {
        let owned = Owned {
            id: MemoryId::next(),
            source: ManuallyDrop::new(source),
            size,
            properties,
            granularity,
            backend: backend.clone(),
            leaves,
            list,
            common: Lock::default(),
        };
        Self(Arc::new(owned))
    }

    /// Returns the size of the memory: the requested size, rounded up to the granularity.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.0.size
    }

    /// Returns the device that owns the memory.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.properties.device
    }

    /// Returns the properties of the memory.
    ///
    /// They are the requested ones, except that `compressible` and `remote_dma` are false if the driver did not grant them. Those of
    /// [adopted](PhysicalMemory::adopt) memory are all from the driver.
    #[must_use]
    pub fn properties(&self) -> Properties {
        self.0.properties
    }

    /// Returns the granularity: the size, and every address at which the memory is mapped, are multiples of it.
    #[must_use]
    pub fn granularity(&self) -> Granularity {
        self.0.granularity
    }

    /// Returns the backend that created the memory.
    pub(crate) fn backend(&self) -> &B {
        &self.0.backend
    }

    /// Returns the backend's handle. Callers must not export it, because the memory would not be recorded as
    /// [exported](PhysicalMemory::is_exported).
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for a plain allocation.
    pub(crate) fn handle(&self, operation: Operation) -> Result<&B::Handle> {
        match &*self.0.source {
            Source::Handle(handle) => Ok(handle),
            Source::Plain(_) => Err(self.plain_error(operation)),
        }
    }

    #[cold]
    fn plain_error(&self, operation: Operation) -> Error {
        let reason = || "a plain allocation has no handle".to_owned();
        check_virtual_memory(operation, &self.0.backend, self.device())
            .err()
            .unwrap_or_else(|| Error::new(operation, Detail::Unsupported { reason: reason() }))
    }

    /// Returns true if `other` is a clone of this value, so that both share one handle.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns an identifier of the memory, which is equal for all clones.
    #[must_use]
    pub fn id(&self) -> MemoryId {
        self.0.id
    }

    /// Exports the memory as a new file descriptor. The memory must have been created [shareable](Properties::shareable).
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if it was not, or if the driver cannot share memory.
    #[cfg(unix)]
    pub fn export(&self) -> Result<OwnedFd> {
        self.exporting(|handle| handle.export())
    }

    /// Exports the memory as a new Windows handle. The memory must have been created [shareable](Properties::shareable).
    ///
    /// Child processes do not inherit the handle; gpu-vmm-share's `win32` passes it to other processes.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if it was not, or if the driver cannot share memory.
    #[cfg(windows)]
    pub fn export_win32(&self) -> Result<OwnedHandle> {
        self.exporting(|handle| handle.export_win32())
    }

    /// Exports the memory as a fabric handle. The memory must have been created for
    /// [fabric handles](crate::HandleTypes::FABRIC).
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if it was not, or if the driver has no fabric handles.
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        self.exporting(|handle| handle.export_fabric())
    }

    fn exporting<T>(&self, export: impl FnOnce(&B::Handle) -> Result<T>) -> Result<T> {
        span!(ExportMemory, bytes = self.size().0, device = self.device().0);
        let exported = export(self.handle(Operation::ExportMemory)?)?;
        self.mark_exported();
        Ok(exported)
    }

    /// Records that another process or a network card may use the memory. The record is permanent, because no driver reports
    /// when that use ends.
    pub(crate) fn mark_exported(&self) {
        self.0.leaves.exported.store(true, Ordering::Relaxed);
    }

    /// Returns true if this memory has been exported, from this value or a clone.
    #[must_use]
    pub fn is_exported(&self) -> bool {
        self.0.leaves.exported.load(Ordering::Relaxed)
    }

    /// Returns true if this memory was imported, from another process or from an export of this process.
    pub(crate) fn is_imported(&self) -> bool {
        self.0.leaves.origin == Origin::Imported
    }

    /// Returns true if other code of this process has created the memory, and may have it mapped.
    pub(crate) fn is_adopted(&self) -> bool {
        self.0.leaves.origin == Origin::Adopted
    }

    /// Requests that the contents are overwritten when the last clone is dropped. Exported, imported or adopted memory is not
    /// overwritten, because another process or other code may still use it.
    pub(crate) fn poison_when_freed(&self) {
        self.0.leaves.poisoned.store(true, Ordering::Relaxed);
    }

    /// Returns the number of holders: clones of this value, itself included, and mappings. All suspended regions that have the memory
    /// in common count as one. Another thread can change the number at any time.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Returns true if others than one clone or mapping may hold the memory: further clones and mappings, another process that has
    /// imported it or exported it, or other code from which it was [adopted](PhysicalMemory::adopt).
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.holders() > 1 || self.is_exported() || self.0.leaves.origin != Origin::Created
    }

    /// Checks that `backend` created the memory, so that it can map it.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`] if another backend instance created it. [`Detail::Unsupported`] for a
    /// [plain allocation](crate::Region::is_plain), which cannot be mapped.
    pub fn check_belongs_to(&self, operation: Operation, backend: &B) -> Result<()> {
        check_same(operation, &self.0.backend, backend)?;
        self.handle(operation).map(drop)
    }
}

/// Creates physical memory as [`PhysicalMemory::create`] does, of the memory that the device has now. It frees no
/// [deferred memory](crate::extend::Deferred), since that waits for devices and calls observers: a caller that holds a lock calls
/// this, and [`free_deferred`] without the lock before it tries again.
///
/// # Errors
///
/// Those of [`PhysicalMemory::create`].
pub fn create_now<B: Backend>(backend: &B, size: Bytes, properties: Properties) -> Result<PhysicalMemory<B>> {
    let (size, granularity) = rounded_size(backend, Operation::CreateMemory, size, &properties)?;
    span!(CreateMemory, bytes = size.0, device = properties.device.0);
    let handle = create_handle_now(backend, size, &properties)?;
    Ok(PhysicalMemory::own(backend, handle, granularity, Origin::Created, Weak::new()))
}

/// Creates a handle. [`rounded_size`] has returned the size for the properties.
fn create_handle_now<B: Backend>(backend: &B, size: Bytes, properties: &Properties) -> Result<B::Handle> {
    check_virtual_memory(Operation::CreateMemory, backend, properties.device)?;
    // SAFETY: the device exists and is usable, and the size is a multiple of the granularity and not zero.
    unsafe { backend.create(size, properties) }
}

/// Creates memory, and tries again after freeing deferred memory if the device is out of memory.
pub(crate) fn or_again<B: Backend, T>(backend: &B, mut create: impl FnMut() -> Result<T>) -> Result<T> {
    match create() {
        Err(error) if matches!(error.detail(), Detail::OutOfMemory { .. }) && free_deferred(backend) => {
            create()
        }
        other => other,
    }
}

/// Frees the memory that destructors had to keep, after an allocation has failed. Returns true if any was freed. Waits for the
/// devices of that memory, and calls the observers of its regions, unless none is kept or a capture is known.
pub fn free_deferred<B: Backend>(backend: &B) -> bool {
    let deferred = backend.deferred();
    let waited = deferred.wait_for_releases();
    let before = deferred.kept();
    if before == Bytes::ZERO || deferred.knows_capture(backend) {
        return waited;
    }
    // An error concerns the dropped memory, not this allocation. Some memory may have been freed all the same.
    if let Err(error) = deferred.collect(backend)
        && !matches!(error.detail(), Detail::Capturing { .. })
    {
        backend.drop_log().record(error);
    }
    deferred.wait_for_releases() || waited || deferred.kept() < before
}

impl<B: Backend> Drop for Owned<B> {
    fn drop(&mut self) {
        let Leaves { origin, exported, poisoned } = &mut self.leaves;
        let leaves = *exported.get_mut() || *origin != Origin::Created;
        // SAFETY: the source is taken once, and this value is not used any more.
        let Source::Handle(handle) = (unsafe { ManuallyDrop::take(&mut self.source) }) else { return };
        if *poisoned.get_mut() && !leaves {
            poison(&self.backend, &handle, self.granularity);
        }
        match self.list.upgrade() {
            None => drop(handle),
            Some(list) if leaves => list.forget(1),
            Some(list) => list.put(handle),
        }
    }
}

/// Rounds `size` up to the granularity of memory with these properties, and returns the result and the granularity.
///
/// # Errors
///
/// [`Detail::ZeroSize`], [`Detail::NoSuchDevice`], [`Detail::ExceedsDevice`], or [`Detail::Unsupported`] for properties that the
/// device does not support.
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
    // The total size of host memory is not known here; the driver checks it.
    if size > total && !properties.location.is_host() {
        return Err(exceeds());
    }
    let granularity = backend.granularity_of(operation, properties)?;
    granularity.round_up(size).map(|rounded| (rounded, granularity)).ok_or_else(exceeds)
}

/// Checks that imported memory can have this size, and returns the granularity of such memory.
fn imported_size<B: Backend>(backend: &B, size: Bytes, properties: &Properties) -> Result<Granularity> {
    let operation = Operation::ImportMemory;
    properties.handle_types.check_here(operation)?;
    check_virtual_memory(operation, backend, properties.device)?;
    let granularity = backend.granularity_of(operation, properties)?;
    if size.is_zero() {
        return Err(Error::new(operation, Detail::ZeroSize));
    }
    if !granularity.divides(size) {
        return Err(Error::new(operation, Detail::Unaligned { what: "size", value: size.0, granularity }));
    }
    Ok(granularity)
}
