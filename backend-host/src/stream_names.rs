//! Names of streams: numbers that are unique in the process, with the device in the low bits. The name of a device's default stream
//! is the device number.

use gpu_vmm_core::DeviceId;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of names per stream number: one for each possible device.
pub(crate) const DEVICES: usize = (DeviceId::LIMIT as usize + 1).next_power_of_two();

/// Returns a name that no stream had before.
pub(crate) fn new_name(device: DeviceId) -> usize {
    // Begins at 1, since the names below `DEVICES` belong to the default streams.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) * DEVICES + device.0 as usize
}

/// Returns the name of a device's default stream.
pub(crate) const fn default_of(device: DeviceId) -> usize {
    device.0 as usize
}

pub(crate) const fn device_of(name: usize) -> DeviceId {
    DeviceId((name % DEVICES) as u32)
}
