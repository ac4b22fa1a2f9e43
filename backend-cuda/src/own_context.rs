//! Contexts that the test kit creates, in addition to those that the backend uses.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::{CuContext, GraphFunctions};
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result};
use std::sync::Arc;

/// A context that this crate created and destroys. In a forked child dropping does nothing.
#[derive(Debug)]
pub(crate) struct OwnContext {
    pub(crate) backend: Arc<Opened>,
    pub(crate) raw: CuContext,
}

impl Opened {
    /// Returns the functions for captures and contexts, if the driver has all of them.
    pub(crate) fn graph_functions(&self, operation: Operation) -> Result<&'static GraphFunctions> {
        self.here(operation)?;
        let missing = |said: &String| Error::new(operation, Detail::Unsupported { reason: said.clone() });
        self.driver.loaded.graphs.as_ref().map_err(missing)
    }
}

impl OwnContext {
    /// Creates another context of a device. The thread's current context stays what it was.
    pub(crate) fn new(operation: Operation, backend: &Arc<Opened>, device: DeviceId) -> Result<Self> {
        let functions = backend.graph_functions(operation)?;
        backend.device(operation, device)?;
        let state = backend.state(operation, device)?;
        let (mut raw, mut popped) = (CuContext::NULL, CuContext::NULL);
        // SAFETY: the pointer is valid for one context, and the device exists; there are no flags.
        let result = unsafe { (functions.ctx_create)(&raw mut raw, 0, state.raw) };
        backend.check(operation, "cuCtxCreate_v2", result, || device.to_string())?;
        let own = Self { backend: Arc::clone(backend), raw };
        // SAFETY: the pointer is valid for one context; the popped context is the new one, which the driver has pushed.
        let result = unsafe { (backend.functions().ctx_pop_current)(&raw mut popped) };
        backend.check(operation, "cuCtxPopCurrent_v2", result, || format!("context {raw:?}"))?;
        Ok(own)
    }

    fn end(&self, operation: Operation) -> Result<()> {
        let functions = self.backend.graph_functions(operation)?;
        // SAFETY: the context was created here and is destroyed once; its stream has been waited for and destroyed.
        let result = unsafe { (functions.ctx_destroy)(self.raw) };
        self.backend.check(operation, "cuCtxDestroy_v2", result, || format!("context {:?}", self.raw))
    }
}

impl Drop for OwnContext {
    fn drop(&mut self) {
        self.backend.log_end(self.end(Operation::DestroyContext));
    }
}
