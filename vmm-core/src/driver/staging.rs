//! Pinned (page-locked) host memory, and the streams on which devices copy to and from it.
//!
//! A copy from pageable memory goes through the driver's own staging buffer and blocks the caller. A copy between a device
//! and pinned memory runs asynchronously at the speed of the link. Pinning is slower than a copy, so pinned memory should be
//! allocated ahead of need.
#![allow(unsafe_code)]

use crate::driver::{Backend, Event};
use crate::types::{Address, Bytes, DeviceId, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;
use std::ptr::NonNull;

/// Pinned (page-locked) host memory that all devices of a backend can copy to and from at full speed. Dropping it frees the
/// memory. CUDA: `cuMemHostRegister` or `cuMemHostAlloc`, HIP: `hipHostMalloc`, with the flag that the memory is pinned for all
/// contexts.
///
/// On the host backend it is ordinary memory.
///
/// # Safety
///
/// The [`size`](Pinned::size) bytes from [`start`](Pinned::start) are allocated, readable and writable by any thread, and not
/// part of any other object, until the value is dropped. Both methods always return the same values.
pub unsafe trait Pinned: Debug + Send + Sync {
    /// Returns the address of the first byte, aligned for any type. The initial contents are unspecified.
    ///
    /// CUDA aligns small allocations to 512 bytes, not to pages. The memory can be read and written as long as this value lives.
    fn start(&self) -> NonNull<u8>;

    /// Returns the requested size.
    fn size(&self) -> Bytes;
}

/// A stream for copies between one device and the host. It has no implicit ordering with any other stream. Copies begin in
/// order. Dropping it waits until they are done.
///
/// # Safety
///
/// [`finish`](CopyStream::finish) and the destructor return only after no queued copy reads or writes memory any more, even
/// after an error: the caller then reuses or frees the buffers.
pub unsafe trait CopyStream: Debug + Send {
    /// Queues a copy to the host and returns without waiting. CUDA: `cuMemcpyDtoHAsync`, HIP: `hipMemcpyAsync`.
    ///
    /// # Safety
    ///
    /// - The `length` bytes at `to` lie in [pinned](Pinned) memory of this backend.
    /// - The `length` bytes at `from` lie in one reservation and are mapped. The copy stream's device owns them and has read
    ///   access.
    /// - Until [`CopyStream::finish`] has returned, both ranges stay valid and no other code writes to either.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()>;

    /// Queues a copy from the host and returns without waiting. CUDA: `cuMemcpyHtoDAsync`, HIP: `hipMemcpyAsync`.
    ///
    /// # Safety
    ///
    /// The same as for [`CopyStream::copy_to_host`] with the sides exchanged: `from` is pinned memory, and the device has write
    /// access to `to`.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()>;

    /// Makes all copies that are queued from now on wait for the work that an event has recorded. CUDA: `cuStreamWaitEvent`, HIP:
    /// `hipStreamWaitEvent`. The CPU does not wait, except on host memory, where it performs the copies.
    ///
    /// # Safety
    ///
    /// The event comes from the backend of this stream, and records no work of a stream that captures: later copies would become
    /// part of the graph, and [`finish`](Self::finish) would not wait for them.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns.
    unsafe fn hold(&mut self, event: &dyn Event) -> Result<()>;

    /// Records the copies that are queued now in an event of the same device, and replaces its earlier record. CUDA:
    /// `cuEventRecord`, HIP: `hipEventRecord`.
    ///
    /// # Safety
    ///
    /// The event comes from the backend of this stream.
    ///
    /// # Errors
    ///
    /// Those of [`Event::record`].
    unsafe fn record(&mut self, event: &mut dyn Event) -> Result<()>;

    /// Waits until all queued copies are done. CUDA: `cuStreamSynchronize`, HIP: `hipStreamSynchronize`.
    ///
    /// # Errors
    ///
    /// Any error that the driver returns, including the error of a queued copy.
    fn finish(&mut self) -> Result<()>;
}

/// The copy streams of several devices, each created on first use. Dropping them waits for their copies.
#[derive(Debug, Default)]
pub(crate) struct CopyStreams(BTreeMap<DeviceId, Box<dyn CopyStream>>);

impl CopyStreams {
    /// Returns the copy stream of `device`.
    pub(crate) fn of(&mut self, backend: &impl Backend, device: DeviceId) -> Result<&mut dyn CopyStream> {
        Ok(match self.0.entry(device) {
            Entry::Occupied(copy_stream) => copy_stream.into_mut().as_mut(),
            Entry::Vacant(free) => free.insert(backend.copy_stream(device)?).as_mut(),
        })
    }

    /// Waits until the copies of all streams are done, even if `queued` is an error. Returns the first error.
    pub(crate) fn finish(&mut self, queued: Result<()>) -> Result<()> {
        self.0.values_mut().fold(queued, |answer, copy_stream| answer.and(copy_stream.finish()))
    }
}
