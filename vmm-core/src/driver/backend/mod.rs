//! The seam between gpu-vmm and a vendor: three traits that a backend implements, with what differs and no more.
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

mod handle;
mod reservation;
#[cfg(doctest)]
mod safe;

pub use handle::Handle;
pub use reservation::Reservation;

use crate::driver::{CopyStream, Deferred, DropLog, Event, Pinned, Stream};
use crate::types::{
    Address, Alignment, Bytes, Capability, Detail, Device, DeviceId, DriverInfo, Error, FabricHandle,
    Granularity, InstanceId, MemoryInfo, Operation, Properties, Quirk, Result, Vendor,
};
use std::fmt::Debug;

#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;

/// A loaded driver. Cloning one is cheap and gives the same driver.
///
/// # Safety
///
/// This crate's memory safety rests on what an implementation returns, so that it holds of its safe methods too:
///
/// - A clone is the same driver, and [`instance`](Backend::instance) is equal for two values only if each accepts the
///   handles of the other.
/// - [`devices`](Backend::devices), the granularities and the [reservation unit](Backend::reservation_unit) never change,
///   and what is a multiple of them is what the driver accepts.
/// - [`synchronize`](Backend::synchronize) and [`synchronize_stream`](Backend::synchronize_stream) return `Ok` only after
///   the work that they name has finished, and [`Detail::DeviceLost`] only if that work cannot run any more.
/// - [`pin`](Backend::pin), [`copy_stream`](Backend::copy_stream) and [`event`](Backend::event) return objects that keep what their
///   traits promise, for this driver and the device that was given.
/// - [`check_host_access`](Backend::check_host_access) returns `Ok` only for memory that the CPU can read and write at the
///   addresses of its mappings.
pub unsafe trait Backend: Clone + Debug + Send + Sync + 'static {
    /// A piece of physical memory of this driver.
    type Handle: Handle;
    /// A range of addresses of this driver.
    type Reservation: Reservation<Handle = Self::Handle>;

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

    /// Copies from the host and waits until it is done. The work is `device`'s.
    ///
    /// # Safety
    ///
    /// `to` and the bytes behind it lie in one reservation, are mapped, and `device` owns them and may write them.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()>;

    /// Copies to the host and waits until it is done. The work is `device`'s.
    ///
    /// # Safety
    ///
    /// `from` and the bytes behind it lie in one reservation, are mapped, and `device` owns them and may read them.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()>;

    /// Copies between addresses that do not overlap and waits until it is done. The work is `device`'s.
    ///
    /// # Safety
    ///
    /// Both sides lie in one reservation each (or are plain allocations), are mapped, and `device` owns what is
    /// written and may write it, and may read what is read.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()>;

    /// Sets every byte and waits until it is done. CUDA: `cuMemsetD8`, HIP: `hipMemset`. The work is `device`'s.
    ///
    /// # Safety
    ///
    /// As for [`copy_from_host`](Backend::copy_from_host).
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()>;

    /// Page-locked memory of the host. CUDA: `cuMemHostAlloc`, HIP: `hipHostMalloc`.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], or what the driver answers: [`Detail::Driver`] where the host has not that much.
    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>>;

    /// A queue of copies between a device and [pinned](Backend::pin) memory. CUDA: `cuStreamCreate`, HIP:
    /// `hipStreamCreateWithFlags`, with the flag that keeps it apart from the default stream.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or what the driver answers.
    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>>;

    /// Waits until a device has finished everything that this process has queued. CUDA: `cuCtxSynchronize` in each context
    /// that the backend knows, HIP: `hipDeviceSynchronize`.
    ///
    /// # Errors
    ///
    /// [`Detail::DeviceLost`] if the device has died, and with it all its work; [`Detail::Capturing`] if a stream captures,
    /// so that the driver refuses to wait; else what the driver answers.
    fn synchronize(&self, device: DeviceId) -> Result<()>;

    /// Waits for a stream; the default stream is `device`'s. CUDA: `cuStreamSynchronize`, HIP: `hipStreamSynchronize`.
    ///
    /// The [per-thread default stream](Stream::is_per_thread) is the calling thread's.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Backend::synchronize).
    fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()>;

    /// An event for streams of a device, not recorded yet. CUDA: `cuEventCreate`, HIP: `hipEventCreateWithFlags`, without
    /// the time, which nobody asks for.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], [`Detail::Unsupported`] where the driver lacks them, or what the driver answers.
    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>>;

    /// Whether what is queued on the stream goes into a graph, to be run later and any number of times, instead of to the
    /// device; true as well for a capture that has been spoilt and not ended. CUDA: `cuStreamIsCapturing`, HIP:
    /// `hipStreamIsCapturing`.
    ///
    /// Memory that work in a graph uses is in use whenever the graph runs: no [`Event`] on such a stream tells when that
    /// is over. A default stream that all threads share never captures; for that one the result is true while work on
    /// it would break the capture of another stream, as far as the driver reports it (`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`).
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool>;

    /// True if a question about an [`Event`] spoils the captures of streams that have nothing to do with it, whichever
    /// thread asks.
    fn queries_spoil_captures(&self) -> bool;

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
