//! Ranges of addresses: `hipMemAddressReserve`, `hipMemAddressFree`.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{Answer, HipError, call, crash, require};
use crate::memory::{self, PAGE};
use crate::state::{Reservation, State};
use std::ffi::{c_ulonglong, c_void};
use std::ptr::without_provenance_mut;
use std::time::Duration;

/// For how long after a map or unmap a thread of HIP 6 holds a range: 20 ms were enough where that was seen.
const HELD_FOR: Duration = Duration::from_millis(20);

/// # Safety
///
/// As HIP has it: `base` is null or for one address.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemAddressReserve(
    base: *mut *mut c_void,
    size: usize,
    alignment: usize,
    hint: *mut c_void,
    flags: c_ulonglong,
) -> HipError {
    call(|state| {
        require(!base.is_null() && flags == 0)?;
        let found = state.reserve(size, alignment, Some(hint.addr()).filter(|hint| *hint != 0))?;
        // SAFETY: not null, so for one address.
        unsafe { *base = without_provenance_mut(found) };
        Ok(())
    })
}

/// # Safety
///
/// Nothing uses the addresses any more; wrong ones end the process on the versions that crash.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemAddressFree(base: *mut c_void, size: usize) -> HipError {
    call(|state| {
        require(!base.is_null() && size != 0)?;
        state.free(base.addr())
    })
}

impl State {
    fn reserve(&mut self, size: usize, alignment: usize, hint: Option<usize>) -> Answer<usize> {
        let is_right =
            size != 0 && size.is_multiple_of(PAGE) && (alignment == 0 || alignment.is_power_of_two());
        if !is_right && self.bucket.reserve_calls_bad_size_no_memory {
            return Err(HipError::OUT_OF_MEMORY);
        }
        require(is_right)?;
        // The system gives a range that was just freed again, where it has room.
        let again = self.held.iter().find(|(_, held)| size <= *held).map(|(base, _)| *base);
        let base = memory::reserve(hint.or(again), size).map_err(|_| HipError::OUT_OF_MEMORY)?;
        let mut reservation = Reservation::new(base, size);
        let before = self.held.len();
        self.held.retain(|(held, length)| held + length <= base || base + size <= *held);
        reservation.is_lost = self.held.len() < before;
        self.reservations.insert(base, reservation);
        Ok(base)
    }

    /// Frees the reservation that holds the address, whatever the size said.
    fn free(&mut self, address: usize) -> Answer {
        let Some(base) = self.reservation(address).map(|found| found.base) else {
            if self.bucket.free_of_unknown_crashes {
                crash(format_args!(
                    "hipMemAddressFree({address:#x}), which is not reserved, or not any more"
                ));
            }
            return Err(HipError::INVALID_VALUE);
        };
        let Some(reservation) = self.reservations.remove(&base) else { return Err(HipError::UNKNOWN) };
        if !reservation.mappings.is_empty() || reservation.lost_mappings > 0 {
            // The addresses stay taken, and HIP knows nothing of them any more.
            self.forgotten.push(reservation);
            return if self.bucket.free_while_mapped_succeeds { Ok(()) } else { Err(HipError::UNKNOWN) };
        }
        for number in &reservation.stays {
            self.let_go_of_memory(*number);
        }
        let is_held = reservation.last_command.is_some_and(|last| last.elapsed() < HELD_FOR);
        if self.bucket.free_races && is_held {
            self.held.push((base, reservation.size));
        }
        memory::free(base, reservation.size);
        Ok(())
    }
}
