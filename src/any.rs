//! The backend of any vendor, chosen at run time: one enum over the backends that are built in.
//!
//! Calls that take microseconds get one more branch. Code that is generic over [`Backend`] runs with [`AnyBackend`] as well as
//! with one vendor's backend, which has no branch. A short macro writes the branches. The crate `enum_dispatch` (0.3.13) was
//! tried: it refuses a trait with an associated type ("Unsupported trait item"), and for a trait of another crate it writes no
//! implementation, without an error.
#![allow(unsafe_code)]
// Without any backend the enums have no variant, and the functions have no branch that uses their arguments.
#![cfg_attr(
    not(any(feature = "cuda", feature = "hip", feature = "host")),
    allow(unused_variables, unused_imports)
)]

use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId};
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Detail,
    Device, DeviceId, DriverInfo, Error, Event, FabricHandle, Grant, Granularity, Handle, MemoryCalls,
    MemoryInfo, Operation, Pinned, Properties, Quirk, Reservation, Result, Stream, SyncCalls, Vendor,
};
#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};
#[cfg(windows)]
use std::os::windows::io::{BorrowedHandle, OwnedHandle};

#[cfg(feature = "cuda")]
use gpu_vmm_cuda::{CudaBackend, MaybeCuda};
#[cfg(feature = "hip")]
use gpu_vmm_hip::{HipBackend, MaybeHip};
#[cfg(feature = "host")]
use gpu_vmm_host::HostBackend;

/// One branch for each vendor that is built in. `$inner` is the content of the variant. `$wrap`, if given, constructs the
/// vendor's variant of the enum `$out`.
macro_rules! dispatch {
    ($value:expr, $enum:ident, ref $inner:ident $(, $out:ident as $wrap:ident)? => $body:expr) => {
        dispatch!(@ $value, $enum, (ref $inner) $inner $(, $out as $wrap)? => $body)
    };
    ($value:expr, $enum:ident, ref mut $inner:ident => $body:expr) => {
        dispatch!(@ $value, $enum, (ref mut $inner) $inner => $body)
    };
    (@ $value:expr, $enum:ident, ($($binding:tt)*) $inner:ident $(, $out:ident as $wrap:ident)? => $body:expr) => {
        match $value {
            #[cfg(feature = "cuda")]
            $enum::Cuda($($binding)*) => { $(let $wrap = $out::Cuda;)? $body }
            #[cfg(feature = "hip")]
            $enum::Hip($($binding)*) => { $(let $wrap = $out::Hip;)? $body }
            #[cfg(feature = "host")]
            $enum::Host($($binding)*) => { $(let $wrap = $out::Host;)? $body }
        }
    };
}

#[cfg(feature = "experimental-multicast")]
mod multicast;
#[cfg(feature = "testkit")]
mod testkit;

#[cfg(feature = "experimental-multicast")]
pub use multicast::AnyMulticast;

macro_rules! any {
    ($(#[$doc:meta])* $name:ident of $associated:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum $name {
            /// Of the CUDA backend.
            #[cfg(feature = "cuda")]
            Cuda(<CudaBackend as MemoryCalls>::$associated),
            /// Of the HIP backend.
            #[cfg(feature = "hip")]
            Hip(<HipBackend as MemoryCalls>::$associated),
            /// Of the host backend.
            #[cfg(feature = "host")]
            Host(<HostBackend as MemoryCalls>::$associated),
        }
    };
}

/// A backend of any vendor that is built in.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyBackend {
    /// NVIDIA's CUDA driver.
    #[cfg(feature = "cuda")]
    Cuda(CudaBackend),
    /// AMD's HIP runtime.
    #[cfg(feature = "hip")]
    Hip(HipBackend),
    /// Host memory.
    #[cfg(feature = "host")]
    Host(HostBackend),
}

any! {
    /// A handle of physical memory of an [`AnyBackend`].
    AnyHandle of Handle
}
any! {
    /// A reservation of addresses of an [`AnyBackend`].
    AnyReservation of Reservation
}

#[cfg(feature = "cuda")]
impl From<CudaBackend> for AnyBackend {
    fn from(backend: CudaBackend) -> Self {
        Self::Cuda(backend)
    }
}

#[cfg(feature = "hip")]
impl From<HipBackend> for AnyBackend {
    fn from(backend: HipBackend) -> Self {
        Self::Hip(backend)
    }
}

#[cfg(feature = "host")]
impl From<HostBackend> for AnyBackend {
    fn from(backend: HostBackend) -> Self {
        Self::Host(backend)
    }
}

#[cfg(feature = "cuda")]
impl MaybeCuda for AnyBackend {
    fn as_cuda(&self) -> Option<&CudaBackend> {
        match self {
            Self::Cuda(backend) => Some(backend),
            #[allow(unreachable_patterns)] // with one vendor built in
            _ => None,
        }
    }
}

#[cfg(feature = "hip")]
impl MaybeHip for AnyBackend {
    fn as_hip(&self) -> Option<&HipBackend> {
        match self {
            Self::Hip(backend) => Some(backend),
            #[allow(unreachable_patterns)] // with one vendor built in
            _ => None,
        }
    }
}

// SAFETY: every call goes to the vendor's implementation, which fulfils the contract of the trait.
unsafe impl Backend for AnyBackend {
    fn vendor(&self) -> Vendor {
        dispatch!(*self, Self, ref backend => backend.vendor())
    }

    fn instance(&self) -> InstanceId {
        dispatch!(*self, Self, ref backend => backend.instance())
    }

    fn driver(&self) -> DriverInfo {
        dispatch!(*self, Self, ref backend => backend.driver())
    }

    fn devices(&self) -> &[Device] {
        dispatch!(*self, Self, ref backend => backend.devices())
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        dispatch!(*self, Self, ref backend => backend.memory_info(device))
    }

    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        dispatch!(*self, Self, ref backend => backend.can_access(device, owner))
    }

    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        dispatch!(*self, Self, ref backend => backend.capabilities(device))
    }

    fn quirks(&self) -> Vec<Quirk> {
        dispatch!(*self, Self, ref backend => backend.quirks())
    }

    fn unmaps_runs(&self) -> bool {
        dispatch!(*self, Self, ref backend => backend.unmaps_runs())
    }

    fn granularity(&self) -> Granularity {
        dispatch!(*self, Self, ref backend => backend.granularity())
    }

    fn granularity_of(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        dispatch!(*self, Self, ref backend => backend.granularity_of(operation, properties))
    }

    fn recommended_granularity(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        dispatch!(*self, Self, ref backend => backend.recommended_granularity(operation, properties))
    }

    fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()> {
        dispatch!(*self, Self, ref backend => backend.check_host_access(operation, properties))
    }

    fn reservation_unit(&self) -> Granularity {
        dispatch!(*self, Self, ref backend => backend.reservation_unit())
    }

    fn deferred(&self) -> &Deferred {
        dispatch!(*self, Self, ref backend => backend.deferred())
    }

    fn drop_log(&self) -> &DropLog {
        dispatch!(*self, Self, ref backend => backend.drop_log())
    }
}

// SAFETY: as above.
unsafe impl MemoryCalls for AnyBackend {
    type Handle = AnyHandle;

    type Reservation = AnyReservation;

    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<AnyHandle> {
        // SAFETY: the caller's promises are the ones that the vendor's function asks for; so below.
        dispatch!(*self, Self, ref backend, AnyHandle as wrap => unsafe { backend.create(size, properties) }.map(wrap))
    }

    #[cfg(unix)]
    unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<AnyHandle> {
        dispatch!(*self, Self, ref backend, AnyHandle as wrap => {
            // SAFETY: as in `create`.
            unsafe { backend.import(fd, size, properties) }.map(wrap)
        })
    }

    #[cfg(windows)]
    unsafe fn import_win32(
        &self,
        from: BorrowedHandle<'_>,
        size: Bytes,
        properties: &Properties,
    ) -> Result<AnyHandle> {
        dispatch!(*self, Self, ref backend, AnyHandle as wrap => {
            // SAFETY: as in `create`.
            unsafe { backend.import_win32(from, size, properties) }.map(wrap)
        })
    }

    unsafe fn import_fabric(
        &self,
        handle: &FabricHandle,
        size: Bytes,
        properties: &Properties,
    ) -> Result<AnyHandle> {
        dispatch!(*self, Self, ref backend, AnyHandle as wrap => {
            // SAFETY: as in `create`.
            unsafe { backend.import_fabric(handle, size, properties) }.map(wrap)
        })
    }

    unsafe fn adopt(&self, at: Address) -> Result<AnyHandle> {
        dispatch!(*self, Self, ref backend, AnyHandle as wrap => {
            // SAFETY: as in `create`.
            unsafe { backend.adopt(at) }.map(wrap)
        })
    }

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<AnyReservation> {
        dispatch!(*self, Self, ref backend, AnyReservation as wrap => {
            // SAFETY: as in `create`.
            unsafe { backend.reserve(size, alignment, hint) }.map(wrap)
        })
    }

    unsafe fn reserve_kept(
        &self,
        size: Bytes,
        alignment: Alignment,
        within: AddressRange,
        random: u64,
    ) -> Option<AnyReservation> {
        dispatch!(*self, Self, ref backend, AnyReservation as wrap => {
            // SAFETY: as in `create`.
            unsafe { backend.reserve_kept(size, alignment, within, random) }.map(wrap)
        })
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        dispatch!(*self, Self, ref backend => backend.allocate_plain(device, size))
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.free_plain(device, at, size) })
    }
}

// SAFETY: as above.
unsafe impl CopyCalls for AnyBackend {
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.copy_from_host(device, to, from) })
    }

    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.copy_to_host(device, to, from) })
    }

    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.copy(device, to, from, length) })
    }

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        // SAFETY: as in `create`.
        dispatch!(*self, Self, ref backend => unsafe { backend.fill(device, at, length, value) })
    }

    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        dispatch!(*self, Self, ref backend => backend.pin(size))
    }

    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        dispatch!(*self, Self, ref backend => backend.copy_stream(device))
    }
}

// SAFETY: as above.
unsafe impl SyncCalls for AnyBackend {
    fn synchronize(&self, device: DeviceId) -> Result<()> {
        dispatch!(*self, Self, ref backend => backend.synchronize(device))
    }

    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        dispatch!(*self, Self, ref backend => backend.synchronize_stream(device, stream))
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        dispatch!(*self, Self, ref backend => backend.event(device))
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        dispatch!(*self, Self, ref backend => backend.is_capturing(stream))
    }

    fn queries_spoil_captures(&self) -> bool {
        dispatch!(*self, Self, ref backend => backend.queries_spoil_captures())
    }

    fn waits_spoil_captures(&self) -> bool {
        dispatch!(*self, Self, ref backend => backend.waits_spoil_captures())
    }
}

// SAFETY: every call goes to the vendor's implementation, which fulfils the contract of the trait.
unsafe impl Handle for AnyHandle {
    fn size(&self) -> Bytes {
        dispatch!(*self, Self, ref handle => handle.size())
    }

    fn properties(&self) -> Properties {
        dispatch!(*self, Self, ref handle => handle.properties())
    }

    #[cfg(unix)]
    fn export(&self) -> Result<OwnedFd> {
        dispatch!(*self, Self, ref handle => handle.export())
    }

    #[cfg(windows)]
    fn export_win32(&self) -> Result<OwnedHandle> {
        dispatch!(*self, Self, ref handle => handle.export_win32())
    }

    fn export_fabric(&self) -> Result<FabricHandle> {
        dispatch!(*self, Self, ref handle => handle.export_fabric())
    }
}

// SAFETY: every call goes to the vendor's implementation, which fulfils the contract of the trait.
unsafe impl Reservation for AnyReservation {
    type Handle = AnyHandle;

    fn range(&self) -> AddressRange {
        dispatch!(*self, Self, ref reservation => reservation.range())
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &AnyHandle) -> Result<()> {
        match (self, handle) {
            #[cfg(feature = "cuda")]
            // SAFETY: the caller's promises are the ones that the vendor's function asks for.
            (Self::Cuda(reservation), AnyHandle::Cuda(handle)) => unsafe { reservation.map(offset, handle) },
            #[cfg(feature = "hip")]
            // SAFETY: the caller's promises are the ones that the vendor's function asks for.
            (Self::Hip(reservation), AnyHandle::Hip(handle)) => unsafe { reservation.map(offset, handle) },
            #[cfg(feature = "host")]
            // SAFETY: the caller's promises are the ones that the vendor's function asks for.
            (Self::Host(reservation), AnyHandle::Host(handle)) => unsafe { reservation.map(offset, handle) },
            #[allow(unreachable_patterns)] // with one vendor built in
            (reservation, handle) => Err(Error::new(
                Operation::Map,
                Detail::ForeignHandle { theirs: format!("{handle:?}"), ours: format!("{reservation:?}") },
            )),
        }
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        // SAFETY: as in `map`.
        dispatch!(*self, Self, ref mut reservation => unsafe { reservation.unmap(offset, length) })
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        // SAFETY: as in `map`.
        dispatch!(*self, Self, ref mut reservation => unsafe { reservation.set_access(offset, length, grants) })
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: as in `map`.
        dispatch!(*self, Self, ref reservation => unsafe { reservation.access(offset, device) })
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        // SAFETY: as in `map`.
        dispatch!(*self, Self, ref mut reservation => unsafe { reservation.return_memory() })
    }

    fn regain(&mut self) -> Result<()> {
        dispatch!(*self, Self, ref mut reservation => reservation.regain())
    }

    #[cfg(unix)]
    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<OwnedFd> {
        // SAFETY: as in `map`.
        dispatch!(*self, Self, ref reservation => unsafe { reservation.dma_buf(owner, offset, length) })
    }
}
