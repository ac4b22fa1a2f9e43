//! The state that the process keeps for one device: its primary context and its capabilities.

use crate::ffi::CuContext;
use crate::kernels::Kernels;
use gpu_vmm_core::Capability;
use std::ffi::c_int;
use std::sync::{Mutex, OnceLock};

/// The state that the process keeps for one device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    /// `CUdevice`.
    pub(crate) raw: c_int,
    /// The primary context, set on first use. It is never released before the process ends.
    pub(crate) primary: OnceLock<Context>,
    /// The device's capabilities, set by the first query that can try all of them.
    pub(crate) capabilities: OnceLock<Vec<Capability>>,
}

/// A context, and the kernels loaded into it.
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
