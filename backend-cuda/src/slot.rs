//! What the process keeps for one device.

use crate::context::Context;
use gpu_vmm_core::Capability;
use std::ffi::c_int;
use std::sync::OnceLock;

/// What the process keeps for one device.
#[derive(Debug)]
pub(crate) struct Slot {
    /// `CUdevice`.
    pub(crate) raw: c_int,
    /// The primary context, once something has needed it. It is never released: the process's end does that.
    pub(crate) primary: OnceLock<Context>,
    /// What the device can do, once that has been asked.
    pub(crate) capabilities: OnceLock<Vec<Capability>>,
}
