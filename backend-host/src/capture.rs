//! A capture, and the waits that captures forbid.

use crate::work::Work;
use gpu_vmm_core::DeviceId;

/// The work queued on a stream since its capture began.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// Unique among the captures of the backend.
    pub(crate) number: u64,
    pub(crate) work: Vec<Work>,
    pub(crate) is_spoilt: bool,
}

/// The work that a call waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Device(DeviceId),
    Stream(usize),
    /// The device's default stream and its blocking streams.
    Default(DeviceId),
}
