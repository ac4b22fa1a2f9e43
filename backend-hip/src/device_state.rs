//! What is found out about a device when it is first needed.
#![allow(unsafe_code)] // a name of HIP's goes from thread to thread

use crate::ffi::hipStream_t;
use crate::ffi::hsa::Agent;
use crate::kernels::Kernels;
use gpu_vmm_core::Capability;
use std::sync::OnceLock;

/// What is found out about a device when it is first needed.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// The HSA agent behind it.
    pub(crate) agent: OnceLock<Agent>,
    /// The stream of its copies and fills, which is never destroyed.
    pub(crate) copies: OnceLock<StreamName>,
    /// The test kit's kernels there, or why there are none.
    pub(crate) kernels: OnceLock<Result<Kernels, String>>,
    /// The types of memory that were tried on it.
    pub(crate) tried: TriedTypes,
}

/// What was tried on a device, once.
#[derive(Default)]
pub(crate) struct TriedTypes {
    pub(crate) host_access: OnceLock<Capability>,
    pub(crate) host_memory: OnceLock<Capability>,
    pub(crate) host_node_memory: OnceLock<Capability>,
}

/// The name of a stream, which keeps nothing alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamName(pub(crate) hipStream_t);

// SAFETY: HIP takes a stream from any thread; the pointer is a name that this crate never follows.
unsafe impl Send for StreamName {}
// SAFETY: as above.
unsafe impl Sync for StreamName {}
