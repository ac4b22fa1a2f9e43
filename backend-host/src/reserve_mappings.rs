//! Mappings kept in reserve, so that unmapping works where the kernel allows no more mappings.
//!
//! A process that has reached `vm.max_map_count` cannot unmap either: what takes pages away and keeps the addresses
//! is itself an `mmap`, which the kernel then refuses, and giving back a part in the middle of a mapping needs one
//! more. Nothing could be freed but by ending the process. So each backend holds a few useless mappings, gives them
//! up when that happens, and takes them again when there is room.
#![allow(unsafe_code)]

use crate::pages;
use gpu_vmm_core::extend::system::is_no_memory;
use gpu_vmm_core::{AddressRange, Operation, Result};
use std::sync::{Mutex, PoisonError};

/// The reserve; empty where the kernel did not give it.
#[derive(Debug)]
pub(crate) struct Spare(Mutex<Option<AddressRange>>);

impl Spare {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(pages::spare_mappings().ok()))
    }

    /// Does what gives mappings back; once more without the reserve where the kernel allows no more mappings.
    pub(crate) fn help(&self, mut call: impl FnMut() -> Result<()>) -> Result<()> {
        let first = call();
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match &first {
            Err(error) if error.driver_error().is_some_and(is_no_memory) && give_up(&mut spare) => call(),
            _ => first,
        };
        if spare.is_none() && answer.is_ok() {
            *spare = pages::spare_mappings().ok();
        }
        answer
    }

    /// Gives the reserve back for good.
    pub(crate) fn release(&self) -> Result<()> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: nothing is ever done with these addresses.
        taken.map_or(Ok(()), |range| unsafe { pages::release(Operation::FreeReservation, range) })
    }
}

/// True where there was a reserve and it is given up now.
fn give_up(spare: &mut Option<AddressRange>) -> bool {
    // SAFETY: nothing is ever done with these addresses.
    spare.take().is_some_and(|range| unsafe { pages::release(Operation::FreeReservation, range) }.is_ok())
}
