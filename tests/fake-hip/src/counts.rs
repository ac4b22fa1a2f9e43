//! What there is at the moment, for leak checks.
#![allow(unsafe_code)] // C's interface

use crate::state::STATE;
use std::sync::PoisonError;

/// How much of everything there is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ranges of addresses, and those that HIP has forgotten without giving them back.
    pub reserved: usize,
    /// Mappings, and those that HIP has forgotten without taking them away.
    pub mapped: usize,
    /// HIP's objects for handles.
    pub handles: usize,
    /// Pieces of physical memory.
    pub physical: usize,
    /// Plain allocations.
    pub plain: usize,
    /// Pieces of page-locked memory.
    pub locked: usize,
    /// Streams that somebody made.
    pub streams: usize,
}

/// Counts what there is.
///
/// # Safety
///
/// The pointer is for one [`Counts`].
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_hip_counts(to: *mut Counts) {
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let places = || state.reservations.values().chain(&state.forgotten);
    let counts = Counts {
        reserved: places().count(),
        mapped: places().map(|place| place.mappings.len() + place.lost_mappings).sum(),
        handles: state.handles.len(),
        physical: state.physical.len(),
        plain: state.plain.len(),
        locked: state.locked.len(),
        streams: state.streams.len(),
    };
    // SAFETY: the caller's promise.
    unsafe { *to = counts };
}
