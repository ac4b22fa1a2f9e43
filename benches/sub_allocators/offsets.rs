//! `offset-allocator`: a port of Sebastian Aaltonen's allocator of numbers in one range, with two levels of bins.

use gpu_vmm::Bytes;
use gpu_vmm_bench::{Allocator, StepResult, Stop};
use offset_allocator::Allocation;
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// Its numbers have 32 bits; one represents the pool's alignment. 256 GiB in all.
const UNIT: u64 = 256;
const UNITS: u32 = 1 << 30;

fn alloc(allocator: &mut offset_allocator::Allocator, size: Bytes) -> StepResult<Allocation> {
    u32::try_from(size.0.div_ceil(UNIT))
        .ok()
        .and_then(|units| allocator.allocate(units))
        .ok_or_else(|| Stop::Failed(format!("offset-allocator has no space for {size}")))
}

/// The plain allocator, for one thread.
pub(crate) struct Offsets(RefCell<offset_allocator::Allocator>);

impl Offsets {
    pub(crate) fn new() -> Self {
        Self(RefCell::new(offset_allocator::Allocator::new(UNITS)))
    }
}

impl Allocator for Offsets {
    type Block = Allocation;

    fn name(&self) -> String {
        "offset-allocator".to_owned()
    }

    fn alloc(&self, size: Bytes) -> StepResult<Allocation> {
        alloc(&mut self.0.borrow_mut(), size)
    }

    fn free(&self, block: Allocation) -> StepResult {
        self.0.borrow_mut().free(block);
        Ok(())
    }
}

/// The allocator behind a lock, for several threads.
pub(crate) struct Locked(Mutex<offset_allocator::Allocator>);

impl Locked {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(offset_allocator::Allocator::new(UNITS)))
    }
}

impl Allocator for Locked {
    type Block = Allocation;

    fn name(&self) -> String {
        "offset-allocator, locked".to_owned()
    }

    fn alloc(&self, size: Bytes) -> StepResult<Allocation> {
        alloc(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), size)
    }

    fn free(&self, block: Allocation) -> StepResult {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).free(block);
        Ok(())
    }
}
