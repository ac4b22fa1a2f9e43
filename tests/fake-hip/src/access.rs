//! Access to mappings: `hipMemSetAccess`, `hipMemGetAccess`.

use crate::c::{AccessDescription, Answer, DEVICE, HipError, Location, Out, fault, give, stop};
use crate::handle::device_of;
use crate::memory;
use crate::settings::{SETTINGS, bucket};
use crate::state::{Reserved, State};
use std::ffi::c_ulonglong;
use std::sync::Arc;

hip!(hipMemSetAccess, |state,
                       at: usize,
                       size: usize,
                       description: Option<&AccessDescription>,
                       count: usize| {
    let Some(AccessDescription { location, flags }) = description.filter(|_| count == 1) else {
        stop(format_args!("hipMemSetAccess with {count} descriptions, not one"))
    };
    let device = device_of("hipMemSetAccess", *location, bucket().host_access);
    let tiles = state.tiles("hipMemSetAccess", at, size);
    if bucket().access_sums && !is_a_sum(state.reservation("hipMemSetAccess", at), size) {
        return Err(HipError::INVALID_VALUE);
    }
    let tiles = tiles.into_iter().take(SETTINGS.sets_access_of).collect();
    let flags = if SETTINGS.sets_write && *flags == 1 { 3 } else { *flags };
    state.set_access(tiles, device, flags)
});

hip!(hipMemGetAccess, |state, flags: Out<'_, c_ulonglong>, location: Option<&Location>, at: usize| {
    let location = location.filter(|location| location.kind == DEVICE).ok_or(HipError::INVALID_VALUE)?;
    let (_, mapping) = state.mapping(at).ok_or(HipError::INVALID_VALUE)?;
    let access = mapping.access.get(location.id as usize).ok_or(HipError::INVALID_VALUE)?;
    give(flags, SETTINGS.reports_access.unwrap_or((*access).into()))
});

impl State {
    /// Does ROCr's part: sets the access of a device, or of the host, to whole mappings.
    pub(crate) fn set_access(&mut self, tiles: Vec<usize>, device: Option<usize>, flags: u32) -> Answer {
        rule!(matches!(flags, 0 | 1 | 3), "access flags {flags} are invalid");
        tiles.into_iter().try_for_each(|start| self.set_one(start, device, flags))
    }

    fn set_one(&mut self, at: usize, device: Option<usize>, flags: u32) -> Answer {
        let (_, mapping) = self.mapping(at).ok_or(HipError::INVALID_VALUE)?;
        let (handle, size) = (Arc::clone(&mapping.handle), mapping.size);
        if let Some(device) = device
            && ![0, flags].contains(&mapping.access[device])
            && self.is_waiting_for(device, at, size)
        {
            fault(device, at, "Page not present: its access is being changed");
        }
        // The first access of an import: the descriptor is read now.
        let memory = match handle.memory.get() {
            Some(memory) => memory,
            None => {
                let memory = self.memory_of(handle.descriptor)?;
                handle.memory.get_or_init(|| memory)
            }
        };
        rule!(size <= memory.size, "an import of {:#x} is mapped as {size:#x}", memory.size);
        let place = self.reservation("setting access", at);
        let mapping = place.mappings.get_mut(&at).ok_or(HipError::INVALID_VALUE)?;
        let Some(device) = device else {
            mapping.host_access = flags != 0;
            return if flags == 0 { memory::hide(at, size) } else { memory.show(at) };
        };
        let after_owner = memory.device.is_some_and(|owner| owner != device && mapping.access[owner] != 0);
        let is_new = mapping.access[device] == 0 && flags != 0;
        mapping.is_corrupt |= bucket().peer_after_owner_corrupts && after_owner && is_new;
        mapping.access[device] = flags;
        Ok(())
    }
}

/// Implements HIP 7.0 to 7.2's check: from its first object on, HIP adds up the sizes of the reservation's mappings, wherever
/// the call's range is, until the sum is exactly the size.
fn is_a_sum(place: &Reserved, size: usize) -> bool {
    let mut objects: Vec<_> = place.mappings.values().map(|mapping| (mapping.order, mapping.size)).collect();
    objects.sort_unstable();
    let mut sum = 0;
    objects.iter().any(|(_, length)| {
        sum += length;
        sum == size
    })
}
