//! Plain allocations: the memory of a device without virtual memory management, which has one address from the beginning.
#![allow(unsafe_code)]

use crate::driver::Backend;
use crate::types::{Address, AddressRange, Alignment, Bytes, DeviceId, ErrorKind, Result};

/// A plain allocation, which is freed when it is dropped. All work on it must be over by then.
#[derive(Debug)]
pub(super) struct Plain<B: Backend> {
    backend: B,
    device: DeviceId,
    /// What the driver has allocated: more than requested if the driver's address was not aligned.
    allocated: AddressRange,
    address: Address,
}

impl<B: Backend> Plain<B> {
    /// Allocates `size` bytes at a multiple of `alignment`.
    pub(super) fn allocate(backend: &B, device: DeviceId, size: Bytes, alignment: Alignment) -> Result<Self> {
        let unit = alignment.bytes();
        let allocate = |size| {
            let base = backend.allocate_plain(device, size)?;
            let address = Address(base.0.next_multiple_of(unit.0));
            Ok(Self { backend: backend.clone(), device, allocated: AddressRange { base, size }, address })
        };
        let plain = allocate(size)?;
        if plain.address == plain.allocated.base {
            return Ok(plain);
        }
        // The driver promises 256 bytes alone. The first allocation is freed before the larger one is made.
        drop(plain);
        allocate(size + unit)
    }

    /// Returns the first address, which is aligned.
    pub(super) fn address(&self) -> Address {
        self.address
    }
}

impl<B: Backend> Drop for Plain<B> {
    fn drop(&mut self) {
        let AddressRange { base, size } = self.allocated;
        // SAFETY: the memory was allocated with this device and size. Regions wait for the work on it before they drop it.
        match unsafe { self.backend.free_plain(self.device, base, size) } {
            Ok(()) => {}
            // In a forked child the memory belongs to the parent, and the memory of a lost device is gone.
            Err(error) if matches!(error.kind(), ErrorKind::Forked | ErrorKind::DeviceLost) => {}
            Err(error) => self.backend.drop_log().record(error),
        }
    }
}
