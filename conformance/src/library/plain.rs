//! Plain allocations beside virtual memory, and copies by a driver between addresses.
#![allow(unsafe_code)] // regions copy to and from the host only

use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, DeviceId};
use gpu_vmm_testkit::TestKit;

/// A plain allocation of one device's, given back when dropped.
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

    /// Has its device write the pattern of a seed into all of it.
    pub(crate) fn write(&mut self, seed: u64) {
        // SAFETY: all of it is the device's own plain memory.
        unsafe { self.backend.write_pattern(self.device, self.at, self.size, seed) }.unwrap();
    }

    /// How many words its device finds that differ from the pattern.
    pub(crate) fn wrong(&self, seed: u64) -> u64 {
        // SAFETY: as above.
        unsafe { self.backend.count_wrong(self.device, self.at, self.size, seed) }.unwrap()
    }
}

impl<B: TestKit> Drop for Plain<'_, B> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this device and size, and nobody else has the address any more.
        let freed = unsafe { self.backend.free_plain(self.device, self.at, self.size) };
        if let Err(error) = freed {
            self.backend.drop_log().record(error);
        }
    }
}

/// Has a device copy between two addresses.
///
/// # Safety
///
/// As for `CopyCalls::copy`: both sides are mapped in one reservation each or plain, do not overlap, and the device owns what
/// is written, may write it, and may read what is read.
#[track_caller]
pub(crate) unsafe fn copy<B: TestKit>(
    subject: &Subject<B>,
    device: DeviceId,
    to: Address,
    from: Address,
    length: Bytes,
) {
    // SAFETY: the caller's promise.
    unsafe { subject.backend.copy(device, to, from, length) }.unwrap();
}
