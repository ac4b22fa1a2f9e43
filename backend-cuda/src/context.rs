//! The contexts in which copies and kernels run.
//!
//! Reserving, creating, mapping and protecting need no context and have none made. What does need one uses the
//! device's primary context, retained on first use, unless the program has given a context of its own. It is current
//! for the length of the call only, so that the thread's own current context stays what it was.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::{CuContext, CuResult, CuStream};
use crate::kernels::Kernels;
use crate::lease::Lease;
use crate::{CudaBackend, Inner};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, ErrorKind, MemoryInfo, Operation, Result};
use std::sync::{Arc, Mutex};

/// A context, and what has been loaded into it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) raw: CuContext,
    pub(crate) kernels: Mutex<Option<Kernels>>,
}

impl Context {
    pub(crate) const fn new(raw: CuContext) -> Self {
        Self { raw, kernels: Mutex::new(None) }
    }
}

/// A context that the program has given, to be used for its device.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) device: DeviceId,
    pub(crate) context: Context,
    /// What lets other backends wait for its work.
    pub(crate) lease: Arc<Lease>,
    /// What keeps the context alive, where it is cudarc's.
    pub(crate) _keep: Option<Arc<cudarc::driver::CudaContext>>,
}

/// While this lives, a context is the calling thread's current one.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    backend: &'a CudaBackend,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = CuContext::NULL;
        // SAFETY: the pointer is good for one context; what is popped is what `enter` pushed, since all that is
        // called between the two leaves the stack of contexts as it is.
        let result = unsafe { (self.backend.functions().ctx_pop_current)(&raw mut popped) };
        let checked = self
            .backend
            .check(Operation::LeaveContext, "cuCtxPopCurrent_v2", result, || format!("{popped:?}"));
        // A dead context is popped all the same, and whoever entered it has been told.
        if let Err(error) = checked
            && error.kind() != ErrorKind::DeviceLost
        {
            self.backend.inner.drop_log.record(error);
        }
    }
}

impl CudaBackend {
    /// Makes a context current.
    pub(crate) fn enter(&self, operation: Operation, context: CuContext) -> Result<Entered<'_>> {
        // SAFETY: the context is a primary one that is retained and never released, or one that its owner has
        // promised, or holds, for as long as this backend lives.
        let result = unsafe { (self.functions().ctx_push_current)(context) };
        self.check(operation, "cuCtxPushCurrent_v2", result, || format!("context {context:?}"))?;
        Ok(Entered { backend: self })
    }

    /// Makes the device's context current.
    pub(crate) fn enter_device(&self, operation: Operation, device: DeviceId) -> Result<Entered<'_>> {
        let context = self.context(operation, device)?.raw;
        self.enter(operation, context)
    }

    /// The context that this backend uses for a device.
    pub(crate) fn context(&self, operation: Operation, device: DeviceId) -> Result<&Context> {
        self.here(operation)?;
        match self.attached(device) {
            Some(attached) => Ok(attached),
            None => self.primary(operation, device),
        }
    }

    /// The device's primary context, made if there is none.
    fn primary(&self, operation: Operation, device: DeviceId) -> Result<&Context> {
        let slot = self.slot(operation, device)?;
        if let Some(primary) = slot.primary.get() {
            return Ok(primary);
        }
        let mut raw = CuContext::NULL;
        // SAFETY: the pointer is good for one context, and the device exists.
        let result = unsafe { (self.functions().primary_ctx_retain)(&raw mut raw, slot.raw) };
        self.check(operation, "cuDevicePrimaryCtxRetain", result, || device.to_string())?;
        // Two threads that come here at once retain the same context twice, which does no harm.
        Ok(slot.primary.get_or_init(|| Context::new(raw)))
    }

    fn attached(&self, device: DeviceId) -> Option<&Context> {
        self.inner
            .attached
            .as_ref()
            .filter(|attached| attached.device == device)
            .map(|attached| &attached.context)
    }

    /// The same where it exists already, in this process at all; otherwise nothing can be running in it.
    pub(crate) fn existing_context(
        &self,
        operation: Operation,
        device: DeviceId,
    ) -> Result<Option<&Context>> {
        match self.attached(device) {
            Some(attached) => self.here(operation).map(|()| Some(attached)),
            None => self.existing_primary(operation, device),
        }
    }

    /// The device's primary context, if it exists.
    pub(crate) fn existing_primary(
        &self,
        operation: Operation,
        device: DeviceId,
    ) -> Result<Option<&Context>> {
        self.here(operation)?;
        let slot = self.slot(operation, device)?;
        if let Some(primary) = slot.primary.get() {
            return Ok(Some(primary));
        }
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the pointers are good for one int each, and the device exists.
        let result =
            unsafe { (self.functions().primary_ctx_get_state)(slot.raw, &raw mut flags, &raw mut active) };
        self.check(operation, "cuDevicePrimaryCtxGetState", result, || device.to_string())?;
        if active == 0 { Ok(None) } else { self.primary(operation, device).map(Some) }
    }

    pub(crate) fn context_memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        const OPERATION: Operation = Operation::QueryMemory;
        let _entered = self.enter_device(OPERATION, device)?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the pointers are good for one size each, and the device's context is current.
        let result = unsafe { (self.functions().mem_get_info)(&raw mut free, &raw mut total) };
        self.check(OPERATION, "cuMemGetInfo_v2", result, || device.to_string())?;
        Ok(MemoryInfo { free: Bytes(free as u64), total: Bytes(total as u64) })
    }

    /// The context of a stream that is no default one.
    pub(crate) fn context_of(&self, operation: Operation, stream: CuStream) -> Result<CuContext> {
        let mut context = CuContext::NULL;
        // SAFETY: the stream is a live one by the promise of `Stream`, and the pointer is good for one context.
        let result = unsafe { (self.functions().stream_get_ctx)(stream, &raw mut context) };
        self.check(operation, "cuStreamGetCtx", result, || format!("stream {stream:?}"))?;
        Ok(context)
    }

    /// The device of a context.
    pub(crate) fn device_of(&self, operation: Operation, context: CuContext) -> Result<DeviceId> {
        let _entered = self.enter(operation, context)?;
        let mut raw = -1;
        // SAFETY: the pointer is good for one CUdevice, and a context is current.
        let result = unsafe { (self.functions().ctx_get_device)(&raw mut raw) };
        self.check(operation, "cuCtxGetDevice", result, || format!("context {context:?}"))?;
        let ordinal = self.inner.driver.slots.iter().position(|slot| slot.raw == raw);
        ordinal.map(|ordinal| DeviceId(ordinal as u32)).ok_or_else(|| {
            Error::new(
                operation,
                Detail::DriverContractViolated {
                    what: format!(
                        "it says that context {context:?} is of device {raw}, which it has not listed"
                    ),
                },
            )
        })
    }
}

impl Drop for Inner {
    /// Takes what was loaded out of the program's own context. cudarc's context itself goes with its `Arc`.
    fn drop(&mut self) {
        if !self.driver.process.is_this() {
            // In a forked child cudarc's destructor is not for running either.
            std::mem::forget(self.attached.take());
            return;
        }
        let Some(Attached { context, lease, .. }) = &mut self.attached else { return };
        self.driver.leases.end(lease);
        let Ok(Some(kernels)) = context.kernels.get_mut() else { return };
        let functions = &self.driver.loaded.functions;
        let mut popped = CuContext::NULL;
        // SAFETY: the context is alive, by its owner's promise or by the `Arc` that is dropped after this; nothing
        // runs the kernels any more, since each call waits for what it starts, and work in flight holds the backend.
        // Where an answer is an error, the context has died and everything in it with it.
        unsafe {
            if (functions.ctx_push_current)(context.raw) == CuResult::SUCCESS {
                let _ = (functions.module_unload)(kernels.module);
                let _ = (functions.ctx_pop_current)(&raw mut popped);
            }
        }
    }
}
