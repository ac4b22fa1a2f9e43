//! The traits that a backend with multicast implements, and the driver of a backend without it.
#![allow(unsafe_code)]

use crate::driver::{Backend, Handle};
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{Bytes, DeviceId, FabricHandle, Granularity, Operation, Properties, Result};
use std::convert::Infallible;
use std::fmt::Debug;
use std::marker::PhantomData;
#[cfg(unix)]
use std::os::fd::BorrowedFd;

/// A backend that may have multicast.
///
/// # Safety
///
/// The driver that [`multicast`](MulticastBackend::multicast) returns must work on this backend's handles.
pub unsafe trait MulticastBackend: Backend {
    /// The driver's calls; [`NoMulticast`] if there are none.
    type Driver: MulticastDriver<Handle = Self::Handle>;

    /// Returns the driver's calls.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] with the reason of the [capability](crate::Feature::Multicast); [`Detail::Forked`].
    fn multicast(&self, operation: Operation) -> Result<Self::Driver>;
}

/// The driver's calls for multicast objects.
///
/// An object is a handle. The driver exports, maps and releases it by the same calls as memory. It is not memory: memory is
/// bound to it. Its [properties](Handle::properties) describe memory of a device of the team.
///
/// # Safety
///
/// As for [`Backend`] and [`Handle`]: granularities must be those that the driver accepts. Handles must belong to the driver and
/// have the size that they were created with.
pub unsafe trait MulticastDriver: Debug + Send + Sync {
    /// Handles of memory, and of objects.
    type Handle: Handle;

    /// Refuses a device that cannot be in a team.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] with the reason.
    fn check_device(&self, operation: Operation, device: DeviceId) -> Result<()>;

    /// Returns the granularity of an object of `devices` devices and `size` bytes. CUDA: `cuMulticastGetGranularity`.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn granularity(
        &self,
        operation: Operation,
        devices: u32,
        size: Bytes,
        properties: &Properties,
    ) -> Result<MulticastGranularity>;

    /// Creates an object for `devices` devices, counted over all processes. CUDA: `cuMulticastCreate`.
    ///
    /// # Safety
    ///
    /// `size` must be a multiple of the minimum granularity and not zero. The device in `properties` must exist and be able to join
    /// a team, and this process must add it.
    ///
    /// # Errors
    ///
    /// The driver's error.
    unsafe fn create(&self, devices: u32, size: Bytes, properties: &Properties) -> Result<Self::Handle>;

    /// Imports an object that another process has exported. CUDA: `cuMemImportFromShareableHandle`.
    ///
    /// # Safety
    ///
    /// A backend of this vendor must have exported the descriptor, from an object with this size and these properties.
    ///
    /// # Errors
    ///
    /// The driver's error.
    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties)
    -> Result<Self::Handle>;

    /// Imports an object from the 64 bytes of a fabric handle.
    ///
    /// # Safety
    ///
    /// As for [`import`](Self::import).
    ///
    /// # Errors
    ///
    /// The driver's error.
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
    /// The handle must be an object's. The device must exist, be able to join a team, and not be in it already.
    ///
    /// # Errors
    ///
    /// The driver's error.
    unsafe fn add(&self, object: &Self::Handle, device: DeviceId) -> Result<()>;

    /// Binds memory to a part of the object. CUDA: `cuMulticastBindMem`. Blocks until all devices of all processes are
    /// added.
    ///
    /// # Safety
    ///
    /// `object` must be an object, and `memory` the memory of a device that this process has added; it must be shareable if the
    /// object is. The offsets and the length must be multiples of the minimum granularity, and the length must not be zero. The
    /// part must lie within the object and within the memory. The device must have no binding there.
    ///
    /// # Errors
    ///
    /// The driver's error.
    unsafe fn bind(
        &self,
        object: &Self::Handle,
        offset: Bytes,
        memory: &Self::Handle,
        memory_offset: Bytes,
        length: Bytes,
    ) -> Result<()>;

    /// Removes a binding. CUDA: `cuMulticastUnbind`.
    ///
    /// # Safety
    ///
    /// The handle must be an object's. Memory of the device must have been bound with exactly this offset and length. This process
    /// must not have the object mapped.
    ///
    /// # Errors
    ///
    /// The driver's error; the memory is still bound then.
    unsafe fn unbind(
        &self,
        object: &Self::Handle,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()>;
}

/// The granularities of a multicast object. CUDA: `cuMulticastGetGranularity`.
///
/// They differ much: 2 MiB and 512 MiB were seen on H100s. If a program rounds a size by one and maps by the other, the driver
/// refuses the mapping (microsoft/mscclpp#451).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MulticastGranularity {
    /// The unit of the object's size, of the offsets and lengths of bindings, and of the address
    /// (`CU_MULTICAST_GRANULARITY_MINIMUM`). gpu-vmm rounds sizes up to it and checks everything else. It can be larger than the
    /// granularity of memory: to bind memory as a whole, create it with the object's size, or round its size up to this unit.
    pub minimum: Granularity,
    /// The unit for the best speed (`CU_MULTICAST_GRANULARITY_RECOMMENDED`). gpu-vmm aligns the address to it, unless the caller
    /// chooses the address. It rounds nothing else to it; callers can choose such a size.
    pub recommended: Granularity,
}

/// The driver of a backend without multicast. The type has no value.
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
