//! State of a device that is initialized when it is first needed.
#![allow(unsafe_code)] // a name of HIP's goes from thread to thread

use crate::ffi::hipStream_t;
use crate::ffi::hsa::Agent;
use crate::kernels::Kernels;
use gpu_vmm_core::Capability;
use std::sync::OnceLock;

/// State of a device that is initialized when it is first needed.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// The HSA agent of the device.
    pub(crate) agent: OnceLock<Agent>,
    /// The stream for its copies and fills, which is never destroyed.
    pub(crate) copies: OnceLock<StreamName>,
    /// The test kit's kernels on the device, or why there are none.
    pub(crate) kernels: OnceLock<Result<Kernels, String>>,
    /// The memory types that were probed on it.
    pub(crate) tried: TriedTypes,
}

/// The results of probes, each of which runs once per device.
#[derive(Default)]
pub(crate) struct TriedTypes {
    pub(crate) host_access: OnceLock<Capability>,
    pub(crate) host_memory: OnceLock<Capability>,
    pub(crate) host_node_memory: OnceLock<Capability>,
    pub(crate) fabric: OnceLock<Capability>,
}

/// The handle of a stream, which keeps nothing alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamName(pub(crate) hipStream_t);

// SAFETY: HIP takes a stream from any thread; this crate never dereferences the pointer.
unsafe impl Send for StreamName {}
// SAFETY: as above.
unsafe impl Sync for StreamName {}
