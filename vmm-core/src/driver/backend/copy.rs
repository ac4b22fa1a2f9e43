//! The driver's calls for contents.

use crate::driver::{CopyStream, Pinned};
#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Address, Bytes, DeviceId, Result};

/// Copying and filling memory, and pinned memory of the host.
///
/// # Safety
///
/// - [`copy_from_host`](Self::copy_from_host), [`copy_to_host`](Self::copy_to_host), [`copy`](Self::copy) and
///   [`fill`](Self::fill) return `Ok` only after they have written exactly the bytes that they name.
/// - [`pin`](Self::pin) and [`copy_stream`](Self::copy_stream) return objects that keep what their traits promise, for this
///   driver and the device that was given.
pub unsafe trait CopyCalls {
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
    /// As for [`copy_from_host`](CopyCalls::copy_from_host).
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

    /// A queue of copies between a device and [pinned](CopyCalls::pin) memory. CUDA: `cuStreamCreate`, HIP:
    /// `hipStreamCreateWithFlags`, with the flag that keeps it apart from the default stream.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or what the driver answers.
    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>>;
}
