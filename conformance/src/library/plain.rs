//! Plain allocations outside of virtual memory management, and driver copies between addresses.
#![allow(unsafe_code)] // regions copy only to and from the host

use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, DeviceId};
use gpu_vmm_testkit::TestKit;

/// A plain allocation of one device, freed when dropped.
pub(crate) struct Plain<'a, B: TestKit> {
    backend: &'a B,
    device: DeviceId,
    at: Address,
    size: Bytes,
}

impl<'a, B: TestKit> Plain<'a, B> {
    pub(crate) fn new(subject: &'a Subject<B>, device: DeviceId, size: Bytes) -> Self {
        let at = subject.backend.allocate_plain(device, size).unwrap();
        Self { backend: &subject.backend, device, at, size }
    }

    pub(crate) fn address(&self) -> Address {
        self.at
    }

    /// Writes the pattern of a seed into the whole allocation with its device.
    pub(crate) fn write(&mut self, seed: u64) {
        // SAFETY: all of it is the device's plain memory.
        unsafe { self.backend.write_pattern(self.device, self.at, self.size, seed) }.unwrap();
    }

    /// The number of words that differ from the pattern, as its device reads them.
    pub(crate) fn wrong(&self, seed: u64) -> u64 {
        // SAFETY: as above.
        unsafe { self.backend.count_wrong(self.device, self.at, self.size, seed) }.unwrap()
    }
}

impl<B: TestKit> Drop for Plain<'_, B> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this device and size, and the address is no longer used.
        let freed = unsafe { self.backend.free_plain(self.device, self.at, self.size) };
        if let Err(error) = freed {
            self.backend.drop_log().record(error);
        }
    }
}

/// Copies between two addresses with a device.
///
/// # Safety
///
/// As for `CopyCalls::copy`: each side is plain memory or mapped in one reservation, the sides do not overlap, and the device
/// owns the target, may write it, and may read the source.
#[track_caller]
pub(crate) unsafe fn copy<B: TestKit>(
    subject: &Subject<B>,
    device: DeviceId,
    to: Address,
    from: Address,
    length: Bytes,
) {
    // SAFETY: the caller guarantees the requirements of `copy`.
    unsafe { subject.backend.copy(device, to, from, length) }.unwrap();
}
