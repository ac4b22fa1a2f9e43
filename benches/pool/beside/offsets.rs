//! `offset-allocator`: a port of Sebastian Aaltonen's allocator of numbers in one range, by two levels of bins.

use crate::patterns::{Allocator, Failed};
use gpu_vmm::Bytes;
use offset_allocator::Allocation;
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// Its numbers are 32 bits; one stands for as much as a pool aligns to. 256 GiB in all.
const UNIT: u64 = 256;
const UNITS: u32 = 1 << 30;

fn alloc(allocator: &mut offset_allocator::Allocator, size: Bytes) -> Result<Allocation, Failed> {
    allocator
        .allocate(u32::try_from(size.0.div_ceil(UNIT))?)
        .ok_or_else(|| "offset-allocator has no room".into())
}

/// As it is: one thread's.
pub(crate) struct Offsets(RefCell<offset_allocator::Allocator>);

impl Offsets {
    pub(crate) fn new() -> Self {
        Self(RefCell::new(offset_allocator::Allocator::new(UNITS)))
    }
}

impl Allocator for Offsets {
    type Block = Allocation;

    const NAME: &'static str = "offset-allocator";

    fn alloc(&self, size: Bytes) -> Result<Allocation, Failed> {
        alloc(&mut self.0.borrow_mut(), size)
    }

    fn free(&self, block: Allocation) -> Result<(), Failed> {
        self.0.borrow_mut().free(block);
        Ok(())
    }
}

/// Behind a lock, as several threads would have it.
pub(crate) struct Locked(Mutex<offset_allocator::Allocator>);

impl Locked {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(offset_allocator::Allocator::new(UNITS)))
    }
}

impl Allocator for Locked {
    type Block = Allocation;

    const NAME: &'static str = "offsets, locked";

    fn alloc(&self, size: Bytes) -> Result<Allocation, Failed> {
        alloc(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), size)
    }

    fn free(&self, block: Allocation) -> Result<(), Failed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).free(block);
        Ok(())
    }
}
