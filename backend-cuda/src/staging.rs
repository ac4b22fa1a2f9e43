//! Page-locked host memory, and asynchronous copies between it and a device.
//!
//! The memory is page-locked for every context (`CU_MEMHOSTALLOC_PORTABLE`) but allocated in one. Any context will do, since all
//! share one address space, so an existing one is preferred.
//!
//! `cuMemHostAlloc` takes 0.4 s per GiB. Pages of this process that exist already, in large pages, are page-locked in 0.025 s per GiB
//! by `cuMemHostRegister` (an H200's host, driver 580.159.04), and threads can provide the pages side by side. Copies are as fast.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::copy::part;
use crate::device::attribute;
use crate::device_state::DeviceState;
use crate::driver::Opened;
use crate::ffi::attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
use crate::ffi::{
    CuContext, CuResult, HOST_ALLOC_PORTABLE, HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE,
    STREAM_NON_BLOCKING,
};
use crate::stream::OwnStream;
use gpu_vmm_core::extend::HostPages;
use gpu_vmm_core::{
    Address, Bytes, CopyStream, Detail, DeviceId, Error, Event, Operation, Pinned, Result, Stream,
};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Page-locked memory. In a forked child dropping does nothing: the pages are the parent's.
#[derive(Debug)]
struct CudaPinned {
    backend: Arc<Opened>,
    context: CuContext,
    start: NonNull<u8>,
    size: Bytes,
    /// The memory, if this process allocated it and the driver only page-locked it.
    pages: Option<HostPages>,
}

// SAFETY: the memory is the process's and bound to no thread; callers access it only through raw pointers, under contracts of their
// own.
unsafe impl Send for CudaPinned {}
// SAFETY: as above.
unsafe impl Sync for CudaPinned {}

impl Opened {
    /// Allocates host memory that all devices copy to and from at full speed.
    pub(crate) fn host_alloc(self: &Arc<Self>, size: Bytes) -> Result<Box<dyn Pinned>> {
        const OPERATION: Operation = Operation::PinMemory;
        if size.is_zero() {
            return Err(Error::new(OPERATION, Detail::ZeroSize));
        }
        let context = self.any_context(OPERATION)?;
        let _entered = self.enter(OPERATION, context)?;
        let _relaxed = self.relax(OPERATION)?;
        if let Some(pages) = self.registered(OPERATION, size) {
            let (backend, start) = (Arc::clone(self), pages.start());
            return Ok(Box::new(CudaPinned { backend, context, start, size, pages: Some(pages) }));
        }
        let mut start = null_mut();
        // SAFETY: the pointer is valid for one address, and a context is current; the driver returns an error for a size it cannot
        // allocate.
        let result = unsafe {
            (self.functions().mem_host_alloc)(&raw mut start, size.0 as usize, HOST_ALLOC_PORTABLE)
        };
        self.check_memory(OPERATION, "cuMemHostAlloc", result, DeviceId::HOST, size)?;
        let start = NonNull::new(start.cast()).ok_or_else(|| {
            Error::new(
                OPERATION,
                Detail::DriverContractViolated {
                    what: format!("it returned address 0 for {size} of host memory"),
                },
            )
        })?;
        Ok(Box::new(CudaPinned { backend: Arc::clone(self), context, start, size, pages: None }))
    }

    /// Page-locks pages of this process, in the current context. Returns `None` if `cuMemHostAlloc` should allocate them instead: it
    /// serves small sizes, and kernels of devices that see registered memory at other addresses than the host.
    fn registered(&self, operation: Operation, size: Bytes) -> Option<HostPages> {
        let sees = |device: &DeviceState| {
            attribute(self.functions(), device.raw, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) == Ok(1)
        };
        if !cfg!(target_os = "linux") || size < HostPages::LARGE || !self.driver.states.iter().all(sees) {
            return None;
        }
        let pages = HostPages::new(operation, size).ok()?;
        pages.populate();
        let flags = HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP;
        // SAFETY: this process owns the pages, which stay until they are registered no more; a context is current. The driver returns
        // an error for pages that it cannot lock.
        let result = unsafe {
            (self.functions().mem_host_register)(pages.start().as_ptr().cast(), size.0 as usize, flags)
        };
        (result == CuResult::SUCCESS).then_some(pages)
    }

    /// Returns an existing context, or else the context of the first usable device. So no context is created if the program already
    /// has one on another device.
    fn any_context(&self, operation: Operation) -> Result<CuContext> {
        self.here(operation)?;
        let usable = || self.devices().iter().filter(|device| device.unusable.is_none());
        for device in usable() {
            if let Some(context) = self.existing_context(operation, device.id)? {
                return Ok(context.raw);
            }
        }
        let first = usable().next().map_or(DeviceId(0), |device| device.id);
        self.device(operation, first)?;
        Ok(self.context(operation, first)?.raw)
    }

    /// Creates a copy stream.
    pub(crate) fn open_copy_stream(self: &Arc<Self>, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        const OPERATION: Operation = Operation::CreateStream;
        Ok(Box::new(OwnStream::new(OPERATION, self, device, STREAM_NON_BLOCKING)?))
    }
}

// SAFETY: the bytes were allocated with this size, and are freed only by dropping.
unsafe impl Pinned for CudaPinned {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn size(&self) -> Bytes {
        self.size
    }
}

impl CudaPinned {
    fn free(&self, operation: Operation) -> Result<()> {
        self.backend.here(operation)?;
        let _entered = self.backend.enter(operation, self.context)?;
        let _relaxed = self.backend.relax(operation)?;
        let (functions, start) = (self.backend.functions(), self.start.as_ptr().cast());
        let (call, free) = match self.pages {
            None => ("cuMemFreeHost", functions.mem_free_host),
            Some(_) => ("cuMemHostUnregister", functions.mem_host_unregister),
        };
        // SAFETY: the memory was allocated or registered in this context and is freed only here; no copy uses it any more, by the
        // contract of the call that queued it.
        let result = unsafe { free(start) };
        self.backend.check(operation, call, result, || format!("{} of the host", self.size))
    }
}

impl Drop for CudaPinned {
    fn drop(&mut self) {
        let freed = self.free(Operation::FreePinned);
        if freed.is_err() {
            // The device may still reach the pages: they must not serve anything else.
            std::mem::forget(self.pages.take());
        }
        self.backend.log_end(freed);
    }
}

// SAFETY: finishing waits for the stream on which all copies are queued.
unsafe impl CopyStream for OwnStream {
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::QueueCopyToHost;
        let _entered = self.enter(OPERATION)?;
        if length.is_zero() {
            return Ok(());
        }
        let length = length.0 as usize;
        let functions = self.backend.functions();
        // SAFETY: both sides are valid for the length and stay untouched until the stream has been waited for, by the caller's
        // promise; the stream's context is current.
        let result = unsafe { (functions.memcpy_to_host_async)(to.cast(), from.0, length, self.raw()) };
        self.backend.check(OPERATION, "cuMemcpyDtoHAsync_v2", result, || part(from, length))
    }

    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::QueueCopyFromHost;
        let _entered = self.enter(OPERATION)?;
        if length.is_zero() {
            return Ok(());
        }
        let length = length.0 as usize;
        let functions = self.backend.functions();
        // SAFETY: as above.
        let result = unsafe { (functions.memcpy_to_device_async)(to.0, from.cast(), length, self.raw()) };
        self.backend.check(OPERATION, "cuMemcpyHtoDAsync_v2", result, || part(to, length))
    }

    unsafe fn hold(&mut self, event: &dyn Event) -> Result<()> {
        // SAFETY: the stream lives as long as this object, and the event is of the same driver, as the caller promises.
        event.hold(unsafe { Stream::from_raw(self.raw().0) })
    }

    unsafe fn record(&mut self, event: &mut dyn Event) -> Result<()> {
        // SAFETY: as above.
        event.record(unsafe { Stream::from_raw(self.raw().0) })
    }

    fn finish(&mut self) -> Result<()> {
        self.wait(Operation::FinishCopies)
    }
}
