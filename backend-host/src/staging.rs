//! Host buffers for copies, and copies that are complete when the call returns.
#![allow(unsafe_code)]

use crate::host::Host;
use crate::{copy, pages};
use gpu_vmm_core::extend::host_out_of_memory;
use gpu_vmm_core::extend::system::is_no_memory;
use gpu_vmm_core::{
    Address, AddressRange, Bytes, CopyStream, Detail, DeviceId, Error, Event, Operation, Pinned, Result,
    Stream,
};
use std::ptr::NonNull;
use std::sync::Arc;

/// Pages that belong to no device. They are not page-locked, since only the CPU copies here.
#[derive(Debug)]
struct HostPinned(AddressRange);

// SAFETY: the bytes were allocated with this size, and are freed only by dropping.
unsafe impl Pinned for HostPinned {
    fn start(&self) -> NonNull<u8> {
        NonNull::new(self.0.base.as_ptr()).unwrap_or(NonNull::dangling())
    }

    fn size(&self) -> Bytes {
        self.0.size
    }
}

impl Drop for HostPinned {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped for this buffer only. If this fails, they are leaked.
        let _ = unsafe { pages::release(Operation::FreePinned, self.0) };
    }
}

pub(crate) fn pin(host: &Host, size: Bytes) -> Result<Box<dyn Pinned>> {
    const OPERATION: Operation = Operation::PinMemory;
    host.process.check(OPERATION)?;
    if size.is_zero() {
        return Err(Error::new(OPERATION, Detail::ZeroSize));
    }
    let pages = pages::allocate(size).map_err(|error| match error.into_detail() {
        Detail::Driver { source, .. } if is_no_memory(&source) => host_out_of_memory(OPERATION, size, source),
        other => Error::new(OPERATION, other),
    })?;
    Ok(Box::new(HostPinned(pages)))
}

/// A copy stream: the CPU copies on behalf of a device.
#[derive(Debug)]
struct HostCopyStream {
    host: Arc<Host>,
    device: DeviceId,
}

pub(crate) fn copy_stream(host: &Arc<Host>, device: DeviceId) -> Result<Box<dyn CopyStream>> {
    host.device_memory(Operation::CreateStream, device)?;
    Ok(Box::new(HostCopyStream { host: Arc::clone(host), device }))
}

// SAFETY: each copy is complete when its call returns.
unsafe impl CopyStream for HostCopyStream {
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()> {
        // SAFETY: pinned memory that no other code uses meanwhile, by the caller's promise.
        let to = unsafe { std::slice::from_raw_parts_mut(to, length.0 as usize) };
        // SAFETY: the caller upholds the contract.
        unsafe { copy::to_host(&self.host, self.device, to, from) }
    }

    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()> {
        // SAFETY: pinned memory that no other code writes meanwhile, by the caller's promise.
        let from = unsafe { std::slice::from_raw_parts(from, length.0 as usize) };
        // SAFETY: the caller upholds the contract.
        unsafe { copy::from_host(&self.host, self.device, to, from) }
    }

    unsafe fn hold(&mut self, event: &dyn Event) -> Result<()> {
        // The CPU performs each copy within its call.
        event.wait()
    }

    unsafe fn record(&mut self, event: &mut dyn Event) -> Result<()> {
        // Every copy is done, so any stream of the device serves.
        event.record(Stream::DEFAULT)
    }

    fn finish(&mut self) -> Result<()> {
        self.host.process.check(Operation::FinishCopies)
    }
}
