//! Ranges of mapped memory that one driver call may use.

use crate::types::{Address, Bytes, DeviceId};

/// A range of mapped memory of one device in one reservation.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The first address.
    pub address: Address,
    /// The length of the range.
    pub length: Bytes,
    /// The device that owns the memory.
    pub device: DeviceId,
}
