//! The state that the process keeps for one device.

use crate::context::Context;
use gpu_vmm_core::Capability;
use std::ffi::c_int;
use std::sync::OnceLock;

/// The state that the process keeps for one device.
#[derive(Debug)]
pub(crate) struct Slot {
    /// `CUdevice`.
    pub(crate) raw: c_int,
    /// The primary context, set on first use. It is never released before the process ends.
    pub(crate) primary: OnceLock<Context>,
    /// The device's capabilities, set by the first query that can try all of them.
    pub(crate) capabilities: OnceLock<Vec<Capability>>,
}
