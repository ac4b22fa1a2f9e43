//! Mappings kept in reserve, so that unmapping works at the kernel's limit of mappings.
//!
//! A process that has reached `vm.max_map_count` cannot unmap either. Removing pages while keeping the addresses is itself an
//! `mmap`, which the kernel then refuses, and releasing the middle of a mapping needs one more mapping. Memory could be freed only
//! by ending the process. So each backend holds a few unused mappings, releases them in that case, and creates them again when
//! there is room.
#![allow(unsafe_code)]

use crate::pages;
use gpu_vmm_core::extend::system::is_no_memory;
use gpu_vmm_core::{AddressRange, Operation, Result};
use std::sync::{Mutex, PoisonError};

/// The reserve; empty if the kernel refused it.
#[derive(Debug)]
pub(crate) struct ReserveMappings(Mutex<Option<AddressRange>>);

impl ReserveMappings {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(pages::reserve_mappings().ok()))
    }

    /// Calls `call`, which releases mappings. If the kernel allows no more mappings, releases the reserve and calls it again.
    pub(crate) fn help(&self, mut call: impl FnMut() -> Result<()>) -> Result<()> {
        let first = call();
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match &first {
            Err(error) if error.driver_error().is_some_and(is_no_memory) && give_up(&mut spare) => call(),
            _ => first,
        };
        if spare.is_none() && answer.is_ok() {
            *spare = pages::reserve_mappings().ok();
        }
        answer
    }

    /// Releases the reserve for good.
    pub(crate) fn release(&self) -> Result<()> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: no code uses these addresses.
        taken.map_or(Ok(()), |range| unsafe { pages::release(Operation::FreeReservation, range) })
    }
}

/// Releases the reserve. Returns whether there was one.
fn give_up(spare: &mut Option<AddressRange>) -> bool {
    // SAFETY: no code uses these addresses.
    spare.take().is_some_and(|range| unsafe { pages::release(Operation::FreeReservation, range) }.is_ok())
}
