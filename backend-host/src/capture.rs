//! A capture, and what a call waits for that captures forbid.

use crate::work::Work;
use gpu_vmm_core::DeviceId;

/// What was queued on a stream since its capture began.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// No other capture has it.
    pub(crate) number: u64,
    pub(crate) work: Vec<Work>,
    pub(crate) is_spoilt: bool,
}

/// Whom a call waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Device(DeviceId),
    Stream(usize),
    /// The device's default stream, and with it the blocking ones.
    Default(DeviceId),
}
