//! The seam for multicast: what a backend that has it implements, and what one that has not answers.
#![allow(unsafe_code)]

use crate::driver::{Backend, Handle};
#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Bytes, DeviceId, FabricHandle, Granularity, Operation, Properties, Result};
use std::convert::Infallible;
use std::fmt::Debug;
use std::marker::PhantomData;
#[cfg(unix)]
use std::os::fd::BorrowedFd;

/// A backend that has been asked whether it has multicast.
///
/// # Safety
///
/// The driver that [`multicast`](MulticastBackend::multicast) returns is this backend's.
pub unsafe trait MulticastBackend: Backend {
    /// The driver's calls; [`NoMulticast`] where there are none.
    type Driver: MulticastDriver<Handle = Self::Handle>;

    /// The driver's calls, if it has them.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] with the reason that the
    /// [capability](crate::Feature::Multicast) has; [`Detail::Forked`].
    fn multicast(&self, operation: Operation) -> Result<Self::Driver>;
}

/// The driver's calls for multicast objects.
///
/// An object is a handle as memory is, which the driver exports, maps and releases by the same calls. What it is
/// not is memory: it is bound to, and never bound. Its [properties](Handle::properties) are those of a device of the team.
///
/// # Safety
///
/// As for [`Backend`] and [`Handle`]: granularities are those that the driver accepts, handles are of the driver and
/// have the size that they were made with.
pub unsafe trait MulticastDriver: Debug + Send + Sync {
    /// Handles of memory, and of objects.
    type Handle: Handle;

    /// Refuses a device that can be in no team.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] with the reason.
    fn check_device(&self, operation: Operation, device: DeviceId) -> Result<()>;

    /// What an object of `devices` devices and `size` bytes is made in. CUDA: `cuMulticastGetGranularity`.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn granularity(
        &self,
        operation: Operation,
        devices: u32,
        size: Bytes,
        properties: &Properties,
    ) -> Result<MulticastGranularity>;

    /// Makes an object for `devices` devices, of all processes together. CUDA: `cuMulticastCreate`.
    ///
    /// # Safety
    ///
    /// `size` is a multiple of the minimum granularity and not zero; the device in `properties` exists, can be in a team,
    /// and will be added by this process.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn create(&self, devices: u32, size: Bytes, properties: &Properties) -> Result<Self::Handle>;

    /// Takes in an object that another process has exported. CUDA: `cuMemImportFromShareableHandle`.
    ///
    /// # Safety
    ///
    /// The descriptor was exported by a backend of this vendor, of an object with this size and these properties.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties)
    -> Result<Self::Handle>;

    /// The same from 64 bytes.
    ///
    /// # Safety
    ///
    /// As for [`import`](Self::import).
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn import_fabric(
        &self,
        from: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self::Handle>;

    /// Adds a device, for the object's life. CUDA: `cuMulticastAddDevice`.
    ///
    /// # Safety
    ///
    /// The handle is an object's; the device exists, can be in a team, and was not added.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn add(&self, object: &Self::Handle, device: DeviceId) -> Result<()>;

    /// Binds memory to a part of the object. CUDA: `cuMulticastBindMem`. Blocks until all devices of all processes are
    /// added.
    ///
    /// # Safety
    ///
    /// The first handle is an object's, the second memory's of a device that this process has added, shareable where the
    /// object is. The offsets and the length are multiples of the minimum granularity, the length is not zero, the part lies
    /// in the object and what is bound of the memory in the memory; nothing of the device is bound there.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn bind(
        &self,
        object: &Self::Handle,
        offset: Bytes,
        memory: &Self::Handle,
        memory_offset: Bytes,
        length: Bytes,
    ) -> Result<()>;

    /// Takes out what was bound. CUDA: `cuMulticastUnbind`.
    ///
    /// # Safety
    ///
    /// The handle is an object's; memory of the device was bound with just this offset and length; this process has the
    /// object mapped nowhere.
    ///
    /// # Errors
    ///
    /// What the driver answers; then it is still bound.
    unsafe fn unbind(
        &self,
        object: &Self::Handle,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()>;
}

/// In what a multicast object is made. CUDA: `cuMulticastGetGranularity`.
///
/// The two are far apart: 2 MiB and 512 MiB have been seen on H100s. A program that rounds a size by one and maps by the
/// other has its map refused (microsoft/mscclpp#451).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MulticastGranularity {
    /// What the object's size, the offsets and lengths of bindings, and the address **must** be a multiple of
    /// (`CU_MULTICAST_GRANULARITY_MINIMUM`). Sizes are rounded up to it here, and everything is checked against it. It may be
    /// more than memory's granularity, so memory that is to be bound whole is created with the object's size, or rounded up
    /// by this.
    pub minimum: Granularity,
    /// What they **should** be a multiple of to be fast (`CU_MULTICAST_GRANULARITY_RECOMMENDED`). The address is, unless it
    /// was chosen by the caller. Nothing else is rounded to it: who wants that chooses the size by it.
    pub recommended: Granularity,
}

/// The calls of a driver that has none: a type of which there is no value.
#[derive(Debug)]
pub struct NoMulticast<H>(Infallible, PhantomData<fn(&H)>);

// SAFETY: no value of the type exists.
unsafe impl<H: Handle> MulticastDriver for NoMulticast<H> {
    type Handle = H;

    fn check_device(&self, _: Operation, _: DeviceId) -> Result<()> {
        match self.0 {}
    }

    fn granularity(&self, _: Operation, _: u32, _: Bytes, _: &Properties) -> Result<MulticastGranularity> {
        match self.0 {}
    }

    unsafe fn create(&self, _: u32, _: Bytes, _: &Properties) -> Result<H> {
        match self.0 {}
    }

    #[cfg(unix)]
    unsafe fn import(&self, _: BorrowedFd<'_>, _: Bytes, _: &Properties) -> Result<H> {
        match self.0 {}
    }

    unsafe fn import_fabric(&self, _: &FabricHandle, _: Bytes, _: &Properties) -> Result<H> {
        match self.0 {}
    }

    unsafe fn add(&self, _: &H, _: DeviceId) -> Result<()> {
        match self.0 {}
    }

    unsafe fn bind(&self, _: &H, _: Bytes, _: &H, _: Bytes, _: Bytes) -> Result<()> {
        match self.0 {}
    }

    unsafe fn unbind(&self, _: &H, _: DeviceId, _: Bytes, _: Bytes) -> Result<()> {
        match self.0 {}
    }
}
