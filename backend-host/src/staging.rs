//! Memory of the host to copy to and from, and copies that are done when the call returns.
#![allow(unsafe_code)]

use crate::host::Host;
use crate::{copy, pages};
use gpu_vmm_core::{
    Address, AddressRange, Bytes, CopyStream, Detail, DeviceId, Error, Operation, Pinned, Result,
};
use std::ptr::NonNull;
use std::sync::Arc;

/// Pages that are nobody's device. They are not locked: nothing but the CPU copies here.
#[derive(Debug)]
struct HostPinned(AddressRange);

// SAFETY: the bytes were allocated with this size, and are given back by dropping alone.
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
        // SAFETY: the pages were mapped for this alone. Should it fail, they are lost and nothing else.
        let _ = unsafe { pages::release(Operation::FreePinned, self.0) };
    }
}

pub(crate) fn pin(host: &Host, size: Bytes) -> Result<Box<dyn Pinned>> {
    const OPERATION: Operation = Operation::PinMemory;
    host.process.check(OPERATION)?;
    if size.is_zero() {
        return Err(Error::new(OPERATION, Detail::ZeroSize));
    }
    Ok(Box::new(HostPinned(pages::allocate(size)?)))
}

/// The CPU, in a device's name.
#[derive(Debug)]
struct HostCopyStream {
    host: Arc<Host>,
    device: DeviceId,
}

pub(crate) fn copy_stream(host: &Arc<Host>, device: DeviceId) -> Result<Box<dyn CopyStream>> {
    host.account(Operation::CreateStream, device)?;
    Ok(Box::new(HostCopyStream { host: Arc::clone(host), device }))
}

// SAFETY: finishing waits for the stream on which all copies are queued.
unsafe impl CopyStream for HostCopyStream {
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()> {
        // SAFETY: pinned memory that nobody else uses meanwhile, by the caller's promise.
        let to = unsafe { std::slice::from_raw_parts_mut(to, length.0 as usize) };
        // SAFETY: the caller upholds the contract.
        unsafe { copy::to_host(&self.host, self.device, to, from) }
    }

    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()> {
        // SAFETY: pinned memory that nobody writes meanwhile, by the caller's promise.
        let from = unsafe { std::slice::from_raw_parts(from, length.0 as usize) };
        // SAFETY: the caller upholds the contract.
        unsafe { copy::from_host(&self.host, self.device, to, from) }
    }

    fn finish(&mut self) -> Result<()> {
        self.host.process.check(Operation::FinishCopies)
    }
}
