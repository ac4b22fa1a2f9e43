//! Page-locked memory of the host, and the queues on which devices copy to and from it.
//!
//! A copy from pageable memory goes through the driver's own staging memory and makes the caller wait; between a device
//! and page-locked memory it runs by itself, at the speed of the link. Pinning is slow (0.3 to 0.5 s a GiB on an H200's host),
//! so whoever needs such memory has it made ahead.
#![allow(unsafe_code)]

use crate::driver::Backend;
use crate::types::{Address, Bytes, DeviceId, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;
use std::ptr::NonNull;

/// Page-locked memory of the host that all devices of a backend copy to and from at full speed. Dropping it gives it
/// back. CUDA: `cuMemHostAlloc` with `CU_MEMHOSTALLOC_PORTABLE`, HIP: `hipHostMalloc` with `hipHostMallocPortable`.
///
/// Memory of the host backend is plain memory.
///
/// # Safety
///
/// The [`size`](Pinned::size) bytes from [`start`](Pinned::start) on are allocated, can be read and written by any thread,
/// belong to nothing else, and stay so until the value is dropped. Both methods always return the same.
pub unsafe trait Pinned: Debug + Send + Sync {
    /// The first byte, aligned for any kind of variable: CUDA gives small pieces multiples of 512 bytes and no whole pages.
    /// All of it can be read and written as long as this lives; it begins with zeros or anything else.
    fn start(&self) -> NonNull<u8>;

    /// How much there is: what was asked for.
    fn size(&self) -> Bytes;
}

/// A queue of copies between one device and the host, on a stream of its own: no other stream waits for it, and it for
/// no other. Copies begin in order. Dropping it waits.
///
/// # Safety
///
/// [`finish`](CopyStream::finish) returns, and dropping ends, only after no queued copy reads or writes any more, whatever the
/// result: the buffers are reused and freed then.
pub unsafe trait CopyStream: Debug + Send {
    /// Queues a copy to the host and returns. CUDA: `cuMemcpyDtoHAsync`, HIP: `hipMemcpyAsync`.
    ///
    /// # Safety
    ///
    /// `to` lies with all `length` bytes in [pinned](Pinned) memory of this backend. `from` and the bytes behind it lie in one
    /// reservation, are mapped, and the copy stream's device owns them and may read them. Until [`CopyStream::finish`] has returned,
    /// both stay as they are and nobody else writes either.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()>;

    /// Queues a copy from the host and returns. CUDA: `cuMemcpyHtoDAsync`, HIP: `hipMemcpyAsync`.
    ///
    /// # Safety
    ///
    /// As for [`CopyStream::copy_to_host`], the other way round: the device may write `to`.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()>;

    /// Waits until all copies are done. CUDA: `cuStreamSynchronize`, HIP: `hipStreamSynchronize`.
    ///
    /// # Errors
    ///
    /// What the driver answers, for one of the copies too.
    fn finish(&mut self) -> Result<()>;
}

/// Copy streams of several devices, each made when it is first asked for. Dropping them waits.
#[derive(Debug, Default)]
pub(crate) struct CopyStreams(BTreeMap<DeviceId, Box<dyn CopyStream>>);

impl CopyStreams {
    /// The device's.
    pub(crate) fn of(&mut self, backend: &impl Backend, device: DeviceId) -> Result<&mut dyn CopyStream> {
        Ok(match self.0.entry(device) {
            Entry::Occupied(copy_stream) => copy_stream.into_mut().as_mut(),
            Entry::Vacant(free) => free.insert(backend.copy_stream(device)?).as_mut(),
        })
    }

    /// Waits until all of them are done, whatever came of queueing; the first error.
    pub(crate) fn finish(&mut self, queued: Result<()>) -> Result<()> {
        self.0.values_mut().fold(queued, |answer, copy_stream| answer.and(copy_stream.finish()))
    }
}
