//! Ranges of addresses and their mappings: `hipMemAddressReserve`, `hipMemAddressFree`, `hipMemMap`, `hipMemUnmap`.

use crate::c::{Out, give, stop};
use crate::call::current;
use crate::memory::{self, PAGE};
use crate::settings::{SETTINGS, bucket};
use crate::state::{Mapping, Reserved};
use crate::stream::null;
use std::ffi::c_ulonglong;
use std::mem::forget;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread of HIP 6 holds a range after a map or unmap: the observed holds were shorter than 20 ms.
const HELD_FOR: Duration = Duration::from_millis(20);

hip!(hipMemAddressReserve, |state,
                            base: Out<'_, usize>,
                            size: usize,
                            alignment: usize,
                            hint: usize,
                            flags: c_ulonglong| {
    let is_right = size != 0 && size.is_multiple_of(PAGE) && alignment == 0 && flags == 0;
    rule!(is_right, "hipMemAddressReserve of {size:#x}, aligned to {alignment:#x}");
    // The system returns a range that was just freed again, if it is large enough.
    let again = || state.held.iter().find(|held| size <= held.len()).map_or(0, |held| held.start);
    let is_anywhere = hint == 0 || !SETTINGS.takes_hints;
    let start = memory::reserve(if is_anywhere { again() } else { hint }, size)?;
    let mut place = Reserved { range: start..start + size, ..Reserved::default() };
    let before = state.held.len();
    state.held.retain(|held| held.end <= start || place.range.end <= held.start);
    place.is_lost = state.held.len() < before;
    state.places.insert(start, place);
    give(base, start)
});

hip!(hipMemAddressFree, |state, base: usize, size: usize| {
    let Some(place) = state.places.remove(&base).filter(|place| !place.is_plain) else {
        stop(format_args!("hipMemAddressFree({base:#x}), which is not reserved, or was freed"))
    };
    rule!(place.range.len() == size, "hipMemAddressFree({base:#x}) of {size:#x}, which is not all of it");
    rule!(place.mappings.is_empty(), "hipMemAddressFree({base:#x}), where something is mapped");
    if bucket().free_races && place.last_command.is_some_and(|last| last.elapsed() < HELD_FOR) {
        state.held.push(place.range);
    }
    memory::free(base, size);
    Ok(())
});

hip!(hipMemMap, |state, at: usize, size: usize, offset: usize, handle: usize, flags: c_ulonglong| {
    rule!(offset == 0 && flags == 0, "hipMemMap with an offset of {offset:#x}, or flags");
    let handle = Arc::clone(state.handle("hipMemMap", handle));
    let order = scattered(state.number());
    let place = state.reservation("hipMemMap", at);
    rule!(
        !place.is_lost,
        "hipMemMap at {at:#x}, whose reservation is lost in HIP's tables: its addresses were freed while HIP still \
         worked on them"
    );
    rule!(
        at + size <= place.range.end,
        "hipMemMap of {size:#x} at {at:#x}, across the end of its reservation"
    );
    let before = place.mappings.range(..at + size).next_back();
    rule!(
        before.is_none_or(|(start, mapping)| start + mapping.size <= at),
        "hipMemMap of {size:#x} at {at:#x}, where something is mapped"
    );
    let fits = handle.memory.get().is_none_or(|memory| size <= memory.size);
    let is_right = fits && size != 0 && (at | size).is_multiple_of(PAGE);
    rule!(is_right, "hipMemMap of {size:#x} at {at:#x}, which is not the size of the memory");
    // ROCr exports and imports the memory for this: it needs a descriptor for a moment.
    if let Some(Err(error)) = handle.memory.get().map(|memory| memory.descriptor()) {
        if !bucket().map_reports_nothing {
            return Err(error);
        }
        // HIP keeps its reference to the handle.
        forget(handle);
        return Ok(());
    }
    place.mappings.insert(at, Mapping::new(size, handle, order));
    place.last_command = Some(Instant::now());
    Ok(())
});

hip!(hipMemUnmap, |state, at: usize, size: usize| {
    if bucket().unmap_waits_for_current {
        state.finish(null(current()))?;
    }
    let tiles = state.tiles("hipMemUnmap", at, size);
    let place = state.reservation("hipMemUnmap", at);
    place.last_command = Some(Instant::now());
    for (count, start) in tiles.into_iter().enumerate() {
        let Some(mapping) = place.mappings.remove(&start) else { continue };
        if mapping.host_access {
            if bucket().host_access_leaves_a_hole {
                memory::free(start, mapping.size);
            } else {
                memory::hide(start, mapping.size)?;
            }
        }
        if bucket().memory_stays_until_free {
            place.stays.extend(mapping.handle.memory.get().cloned());
        }
        if count > 0 && bucket().unmap_knows_one {
            forget(mapping);
        }
    }
    Ok(())
});

/// Returns a pseudo-random number, the same in every run (the last step of splitmix64).
const fn scattered(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
