//! Mapped bytes that one call of a driver may be given.

use crate::types::{Address, Bytes, DeviceId};

/// Some of a part, in one reservation and of one device's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) address: Address,
    pub(crate) length: Bytes,
    /// Whose memory it is.
    pub(crate) device: DeviceId,
}
