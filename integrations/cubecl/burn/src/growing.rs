//! Allocations that have all their addresses at once, and memory for the part that is in use.

use gpu_vmm::{AnyBackend, Bytes, DeviceId, Error, Region, WaitFor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Regions for the allocations of one size, which grow together.
///
/// cubecl's allocations have fixed sizes. A tensor whose size was [announced](Self::announce) becomes a region: cubecl sees all
/// its bytes, and [`grow_to`](Self::grow_to) maps memory at them.
pub struct Growing {
    backend: AnyBackend,
    device: DeviceId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    size: u64,
    /// The number of allocations that are still expected.
    expected: usize,
    mapped: Bytes,
    /// The regions in use, by address.
    regions: Vec<Region<AnyBackend>>,
}

impl Growing {
    /// Creates it without regions.
    pub fn new(backend: &AnyBackend, device: DeviceId) -> Self {
        Self { backend: backend.clone(), device, state: Mutex::default() }
    }

    /// Lets the next `count` allocations of `size` bytes become regions.
    pub fn announce(&self, size: Bytes, count: usize) {
        let mut state = self.state();
        (state.size, state.expected) = (size.0, count);
    }

    /// Returns the address of a region for an allocation, or none if it was not announced.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn alloc(&self, size: u64) -> Result<Option<u64>, Error> {
        let mut state = self.state();
        if size != state.size || state.expected == 0 {
            return Ok(None);
        }
        let region = self.region(&state)?;
        let address = region.address().0;
        state.expected -= 1;
        state.regions.push(region);
        Ok(Some(address))
    }

    /// Frees the region at an address. Waits for the device.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn free(&self, address: u64) -> Result<(), Error> {
        let mut state = self.state();
        let Some(at) = state.regions.iter().position(|region| region.address().0 == address) else {
            return Ok(());
        };
        state.regions.swap_remove(at).close(WaitFor::all_devices())
    }

    /// Lets every region have at least `size` bytes of memory, from its start. Addresses stay as they are, and work that uses
    /// earlier parts continues.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn grow_to(&self, size: Bytes) -> Result<(), Error> {
        let mut state = self.state();
        for region in &mut state.regions {
            region.grow_to(size)?;
        }
        state.mapped = size;
        Ok(())
    }

    /// Returns the memory of all regions.
    pub fn mapped(&self) -> Bytes {
        self.state().regions.iter().map(Region::mapped).sum()
    }

    fn region(&self, state: &State) -> Result<Region<AnyBackend>, Error> {
        let mut region = Region::builder(&self.backend).on(self.device).reserve(Bytes(state.size)).build()?;
        // cubecl creates tensors on a thread of its own, so the program may have asked for memory before.
        if state.mapped > Bytes::ZERO {
            region.grow_to(state.mapped)?;
        }
        Ok(region)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
