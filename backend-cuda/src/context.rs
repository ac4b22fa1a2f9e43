//! The contexts in which copies and kernels run.
//!
//! Reserving, creating, mapping and setting access need no context and create none. Other calls use the device's primary context,
//! retained on first use, or the context that the program gave. It is current only during the call; afterwards the thread's own
//! context is current again.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::device;
use crate::device_state::Context;
use crate::driver::Opened;
use crate::ffi::{CuContext, CuResult, CuStream};
use crate::lease::Attached;
use gpu_vmm_core::{Bytes, ComputeMode, Detail, DeviceId, Error, ErrorKind, MemoryInfo, Operation, Result};
use std::ffi::c_int;

/// A guard that keeps a context current on the calling thread.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    backend: &'a Opened,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = CuContext::NULL;
        // SAFETY: the pointer is valid for one context; the popped context is the one that `enter` pushed, since all calls in
        // between leave the context stack as it is.
        let result = unsafe { (self.backend.functions().ctx_pop_current)(&raw mut popped) };
        let checked = self
            .backend
            .check(Operation::LeaveContext, "cuCtxPopCurrent_v2", result, || format!("{popped:?}"));
        // A dead context is popped all the same, and the call made under this guard has already reported it.
        if let Err(error) = checked
            && error.kind() != ErrorKind::DeviceLost
        {
            self.backend.drop_log.record(error);
        }
    }
}

impl Opened {
    /// Makes a context current.
    pub(crate) fn enter(&self, operation: Operation, context: CuContext) -> Result<Entered<'_>> {
        // SAFETY: the context is a primary one that is retained and never released, or one whose owner has promised to keep it, or
        // that this backend keeps, as long as this backend lives.
        let result = unsafe { (self.functions().ctx_push_current)(context) };
        self.check(operation, "cuCtxPushCurrent_v2", result, || format!("context {context:?}"))?;
        Ok(Entered { backend: self })
    }

    /// Makes the device's context current.
    pub(crate) fn enter_device(&self, operation: Operation, device: DeviceId) -> Result<Entered<'_>> {
        let context = self.context(operation, device)?.raw;
        self.enter(operation, context)
    }

    /// Returns the context that this backend uses for a device.
    pub(crate) fn context(&self, operation: Operation, device: DeviceId) -> Result<&Context> {
        self.here(operation)?;
        match self.attached(device) {
            Some(attached) => Ok(attached),
            None => self.primary(operation, device),
        }
    }

    /// Returns the device's primary context; creates it if it does not exist.
    fn primary(&self, operation: Operation, device: DeviceId) -> Result<&Context> {
        let state = self.state(operation, device)?;
        if let Some(primary) = state.primary.get() {
            return Ok(primary);
        }
        let mut raw = CuContext::NULL;
        // SAFETY: the pointer is valid for one context, and the device exists.
        let result = unsafe { (self.functions().primary_ctx_retain)(&raw mut raw, state.raw) };
        self.check(operation, "cuDevicePrimaryCtxRetain", result, || match result {
            CuResult::DEVICE_UNAVAILABLE => self.unavailable(device, state.raw),
            _ => device.to_string(),
        })?;
        // Two threads that get here at once retain the same context twice, which is harmless.
        Ok(state.primary.get_or_init(|| Context::new(raw)))
    }

    /// Describes a device on which the driver creates no context. The mode may have changed since the backend was opened.
    #[cold]
    fn unavailable(&self, device: DeviceId, raw: c_int) -> String {
        match device::compute_mode(self.functions(), raw) {
            Some(ComputeMode::Prohibited) => format!(
                "{device}, whose compute mode is prohibited: no process can use it until an administrator changes the mode \
                 (nvidia-smi --compute-mode=DEFAULT)"
            ),
            Some(ComputeMode::ExclusiveProcess) => format!(
                "{device}, whose compute mode is exclusive process: another process uses it; choose another device, or wait \
                 until that process ends"
            ),
            _ => device.to_string(),
        }
    }

    fn attached(&self, device: DeviceId) -> Option<&Context> {
        self.attached.as_ref().filter(|attached| attached.device == device).map(|attached| &attached.context)
    }

    /// Returns the context that this backend uses for a device, if it already exists in this process. If it does not, no work can
    /// be running in it.
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

    /// Returns the device's primary context, if it exists.
    pub(crate) fn existing_primary(
        &self,
        operation: Operation,
        device: DeviceId,
    ) -> Result<Option<&Context>> {
        self.here(operation)?;
        let state = self.state(operation, device)?;
        if let Some(primary) = state.primary.get() {
            return Ok(Some(primary));
        }
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the pointers are valid for one int each, and the device exists.
        let result =
            unsafe { (self.functions().primary_ctx_get_state)(state.raw, &raw mut flags, &raw mut active) };
        self.check(operation, "cuDevicePrimaryCtxGetState", result, || device.to_string())?;
        if active == 0 { Ok(None) } else { self.primary(operation, device).map(Some) }
    }

    pub(crate) fn context_memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        const OPERATION: Operation = Operation::QueryMemory;
        let _entered = self.enter_device(OPERATION, device)?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the pointers are valid for one size each, and the device's context is current.
        let result = unsafe { (self.functions().mem_get_info)(&raw mut free, &raw mut total) };
        self.check(OPERATION, "cuMemGetInfo_v2", result, || device.to_string())?;
        Ok(MemoryInfo { free: Bytes(free as u64), total: Bytes(total as u64) })
    }

    /// Returns the context of a stream that is not a default stream.
    pub(crate) fn context_of(&self, operation: Operation, stream: CuStream) -> Result<CuContext> {
        let mut context = CuContext::NULL;
        // SAFETY: the stream is live by the contract of `Stream`, and the pointer is valid for one context.
        let result = unsafe { (self.functions().stream_get_ctx)(stream, &raw mut context) };
        self.check(operation, "cuStreamGetCtx", result, || format!("stream {stream:?}"))?;
        Ok(context)
    }

    /// Returns the device of a context.
    pub(crate) fn device_of(&self, operation: Operation, context: CuContext) -> Result<DeviceId> {
        let _entered = self.enter(operation, context)?;
        let mut raw = -1;
        // SAFETY: the pointer is valid for one CUdevice, and a context is current.
        let result = unsafe { (self.functions().ctx_get_device)(&raw mut raw) };
        self.check(operation, "cuCtxGetDevice", result, || format!("context {context:?}"))?;
        let ordinal = self.driver.states.iter().position(|state| state.raw == raw);
        ordinal.map(|ordinal| DeviceId(ordinal as u32)).ok_or_else(|| {
            Error::new(
                operation,
                Detail::DriverContractViolated {
                    what: format!(
                        "it reports that context {context:?} belongs to device {raw}, which it did not list"
                    ),
                },
            )
        })
    }
}

impl Drop for Opened {
    /// Unloads the kernels from the program's own context. cudarc's context itself is released with its `Arc`.
    fn drop(&mut self) {
        if !self.driver.process.is_usable() {
            // cudarc's destructor must not run either: it would call the driver.
            std::mem::forget(self.attached.take());
            return;
        }
        let Some(Attached { context, lease, .. }) = &mut self.attached else { return };
        self.driver.leases.end(lease);
        let Ok(Some(kernels)) = context.kernels.get_mut() else { return };
        let functions = &self.driver.loaded.functions;
        let mut popped = CuContext::NULL;
        // SAFETY: the context is alive, by its owner's promise or by the `Arc` that is dropped after this. No kernel runs any more,
        // since each call waits for the kernels it launches, and work in flight holds the backend. If the push fails, the context
        // has died, and its modules with it.
        unsafe {
            if (functions.ctx_push_current)(context.raw) == CuResult::SUCCESS {
                let _ = (functions.module_unload)(kernels.module);
                let _ = (functions.ctx_pop_current)(&raw mut popped);
            }
        }
    }
}
