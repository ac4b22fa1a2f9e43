//! Streams, the work that is queued on them, and events.

/// The first number of null streams in the table.
pub(crate) const NULL: usize = 0x5c5c_0000_0000;

pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) is_null: bool,
    pub(crate) queue: Vec<Work>,
}

pub(crate) struct Event {
    pub(crate) device: usize,
    /// The stream of the last record.
    pub(crate) stream: Option<usize>,
}

/// A queued operation, and the device that will execute it.
pub(crate) struct Work {
    pub(crate) by: usize,
    pub(crate) to: Side,
    pub(crate) from: Side,
    pub(crate) size: usize,
}

/// A source or target of bytes.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Device(usize),
    Host(usize),
    /// All bytes are this one.
    Value(u8),
}

/// Returns the key of a device's null stream in the table.
pub(crate) const fn null(device: usize) -> usize {
    NULL + device
}
