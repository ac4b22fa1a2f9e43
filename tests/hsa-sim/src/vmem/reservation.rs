//! Reserved addresses.
//!
//! Rules: `hsa_amd_vmem_address_reserve(_align)`, `hsa_amd_vmem_address_free` in `hsa_ext_amd.h`. An unavailable hint is not
//! an error; the alignment applies if the hint is not taken; a range must be freed as it was reserved, once nothing is mapped
//! in it. AMD's driver library aligns ranges to up to 2 MiB even without a request, and so does the simulator.
#![allow(unsafe_code)] // exported to C

use super::stays::Stay;
use crate::abi::Status;
use crate::memory::pages::Pages;
use crate::memory::{PAGE, state};
use std::mem::MaybeUninit;

const LARGE_PAGE: usize = 2 << 20;

/// A range of addresses.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(super) pages: Pages,
    /// The number of mappings in it.
    pub(super) mappings: usize,
    /// Ranges that still keep memory although it is unmapped.
    pub(super) stays: Vec<Stay>,
}

impl Reservation {
    pub(super) const fn size(&self) -> usize {
        self.pages.size()
    }
}

/// Returns the alignment of a range for a smaller request: the alignment of the largest pages that fit.
fn natural_alignment(size: usize, asked: usize) -> usize {
    let largest_that_fits = size.checked_ilog2().map_or(PAGE, |bits| 1 << bits);
    largest_that_fits.min(LARGE_PAGE).max(asked)
}

fn reserve(
    size: usize,
    hint: u64,
    alignment: u64,
    flags: u64,
    out: Option<&mut MaybeUninit<usize>>,
) -> Status {
    let (hint, alignment) = (hint as usize, (alignment as usize).max(PAGE));
    let Some(out) = out else { return Status::INVALID_ARGUMENT };
    if size == 0 || !size.is_multiple_of(PAGE) || !alignment.is_power_of_two() {
        return Status::INVALID_ARGUMENT;
    }
    let at_hint = if hint == 0 { None } else { Pages::reserve_at(hint, size) };
    let pages = at_hint.or_else(|| Pages::reserve(size, natural_alignment(size, alignment)));
    let Some(pages) = pages else {
        trace!("vmem_address_reserve({size:#x}): no such range");
        return Status::OUT_OF_RESOURCES;
    };
    let at = pages.start();
    state().vmem.reservations.insert(at, Reservation { pages, mappings: 0, stays: Vec::new() });
    trace!(
        "vmem_address_reserve({size:#x}, hint {hint:#x}, align {alignment:#x}, flags {flags:#x}) = {at:#x}"
    );
    out.write(at);
    Status::SUCCESS
}

hsa! {
    /// Reserves addresses, at the hint if that is free.
    pub unsafe fn hsa_amd_vmem_address_reserve(
        out: Option<&mut MaybeUninit<usize>>,
        size: usize,
        hint: u64,
        flags: u64,
    ) {
        reserve(size, hint, 0, flags, out)
    }

    /// Does the same with an alignment.
    pub unsafe fn hsa_amd_vmem_address_reserve_align(
        out: Option<&mut MaybeUninit<usize>>,
        size: usize,
        hint: u64,
        alignment: u64,
        flags: u64,
    ) {
        reserve(size, hint, alignment, flags, out)
    }

    /// Frees addresses.
    pub unsafe fn hsa_amd_vmem_address_free(at: usize, size: usize) {
        let mut state = state();
        let status = match state.vmem.reservations.get(&at) {
            None => Status::INVALID_ALLOCATION,
            Some(there) if there.size() != size => Status::INVALID_ARGUMENT,
            Some(there) if there.mappings > 0 => Status::RESOURCE_FREE,
            Some(_) => Status::SUCCESS,
        };
        trace!("vmem_address_free({at:#x}, {size:#x}): {:#x}", status.0);
        if status == Status::SUCCESS {
            state.cover(at, at, size);
            state.vmem.reservations.remove(&at);
            state.vmem.freed(at);
        }
        status
    }
}
