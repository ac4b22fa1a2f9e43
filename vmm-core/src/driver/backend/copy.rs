//! The driver's calls that copy and fill memory and allocate pinned host memory.

use crate::driver::{CopyStream, Pinned};
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{Address, Bytes, DeviceId, Result};

/// The driver's calls that copy and fill memory and allocate pinned host memory.
///
/// # Safety
///
/// - [`copy_from_host`](Self::copy_from_host), [`copy_to_host`](Self::copy_to_host), [`copy`](Self::copy) and
///   [`fill`](Self::fill) return `Ok` only after they have written exactly the bytes of the target.
/// - [`pin`](Self::pin) and [`copy_stream`](Self::copy_stream) return objects that meet the `# Safety` sections of their traits
///   for this driver and the given device.
pub unsafe trait CopyCalls {
    /// Copies from the host and waits until the copy is done. `device` performs the copy.
    ///
    /// # Safety
    ///
    /// The bytes at `to` lie in one reservation and are mapped. `device` owns them and has write access.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()>;

    /// Copies to the host and waits until the copy is done. `device` performs the copy.
    ///
    /// # Safety
    ///
    /// The bytes at `from` lie in one reservation and are mapped. `device` owns them and has read access.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()>;

    /// Copies between device addresses and waits until the copy is done. `device` performs the copy.
    ///
    /// # Safety
    ///
    /// The two ranges do not overlap. Each lies in one reservation or one ordinary allocation and is mapped. `device` owns the
    /// target and has write access to it, and has read access to the source.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()>;

    /// Sets every byte to `value` and waits until that is done. CUDA: `cuMemsetD8`, HIP: `hipMemset`. `device` performs the work.
    ///
    /// # Safety
    ///
    /// The bytes at `at` lie in one reservation and are mapped. `device` owns them and has write access.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()>;

    /// Allocates pinned (page-locked) host memory. CUDA: `cuMemHostRegister` of new pages, or `cuMemHostAlloc` below 2 MiB; HIP:
    /// `hipHostMalloc`.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], or any error that the driver returns: [`Detail::Driver`] if the host has too little memory.
    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>>;

    /// Creates a stream for copies between a device and [pinned](CopyCalls::pin) memory. CUDA: `cuStreamCreate`, HIP:
    /// `hipStreamCreateWithFlags`, in both cases with the flag for no implicit synchronization with the default stream.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or any error that the driver returns.
    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>>;
}
