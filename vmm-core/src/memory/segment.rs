//! Mapped bytes that one call of a driver may be given.

use crate::types::{Address, Bytes, DeviceId};

/// Mapped bytes in one reservation, all of them one device's memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Where they begin.
    pub address: Address,
    /// How many there are.
    pub length: Bytes,
    /// Whose memory it is.
    pub device: DeviceId,
}
