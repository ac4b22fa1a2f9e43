//! Names of streams: numbers that no other stream of the process has, with the device in the last bits. The default stream of a
//! device is named by the device alone.

use gpu_vmm_core::DeviceId;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many names have one number: one for each device that there can be.
pub(crate) const DEVICES: usize = (DeviceId::LIMIT as usize + 1).next_power_of_two();

/// A name that no stream had before.
pub(crate) fn new_name(device: DeviceId) -> usize {
    // From 1 on, since the names below are those of the default streams.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) * DEVICES + device.0 as usize
}

/// The name of a device's default stream.
pub(crate) const fn default_of(device: DeviceId) -> usize {
    device.0 as usize
}

pub(crate) const fn device_of(name: usize) -> DeviceId {
    DeviceId((name % DEVICES) as u32)
}
