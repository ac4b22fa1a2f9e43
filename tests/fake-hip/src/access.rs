//! Who may use a mapping: `hipMemSetAccess`, `hipMemGetAccess`.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{AccessDescription, Answer, DEVICE, HOST, HipError, Location, call, fault, require};
use crate::memory;
use crate::state::{Mapping, Reservation, Source, State};
use std::ffi::{c_ulonglong, c_void};

/// To whom access is given.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    Device(usize),
    Host,
}

/// # Safety
///
/// As HIP has it: `descriptions` is null or for `count` of HIP's structures.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemSetAccess(
    at: *mut c_void,
    size: usize,
    descriptions: *const AccessDescription,
    count: usize,
) -> HipError {
    call(|state| {
        require(!at.is_null() && size != 0 && !descriptions.is_null() && count != 0)?;
        // SAFETY: not null, so as many as are said.
        let descriptions = unsafe { std::slice::from_raw_parts(descriptions, count) };
        state.hip_set_access(at.addr(), size, descriptions)
    })
}

/// # Safety
///
/// As HIP has it: `flags` is null or for one number, `location` null or of HIP's structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const Location,
    at: *mut c_void,
) -> HipError {
    call(|state| {
        require(!flags.is_null() && !location.is_null() && !at.is_null())?;
        // SAFETY: not null, so what HIP's header says.
        let location = unsafe { *location };
        require(location.kind == DEVICE)?;
        let device = state.device(location).ok_or(HipError::INVALID_VALUE)?;
        let found = state.reservation(at.addr()).and_then(|reservation| reservation.mapping(at.addr()));
        let (_, mapping) = found.ok_or(HipError::INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { *flags = mapping.access[device].into() };
        Ok(())
    })
}

impl State {
    fn hip_set_access(&mut self, at: usize, size: usize, descriptions: &[AccessDescription]) -> Answer {
        let mut wanted = Vec::new();
        for AccessDescription { location, flags } in descriptions {
            let device = self.device(*location).ok_or(HipError::INVALID_VALUE)?;
            let who = match location.kind {
                _ if self.bucket.access_is_unchecked => Who::Device(device),
                DEVICE => Who::Device(device),
                HOST if self.bucket.host_access => Who::Host,
                _ => return Err(HipError::INVALID_VALUE),
            };
            require(self.bucket.access_is_unchecked || matches!(flags, 0 | 1 | 3))?;
            wanted.push((who, *flags));
        }
        let reservation = self.reservation(at).ok_or(HipError::INVALID_VALUE)?;
        if self.bucket.access_sums {
            require(is_a_sum(reservation, size))?;
        } else if !self.bucket.access_rounds_up {
            require(reservation.tiles(at, size).is_some())?;
        }
        wanted.into_iter().try_for_each(|(who, flags)| self.set_access(at, size, who, flags))
    }

    /// What ROCr does: sets one access to mappings that follow each other, the last one wholly.
    pub(crate) fn set_access(&mut self, at: usize, size: usize, who: Who, flags: u32) -> Answer {
        let reservation = self.reservation(at).ok_or(HipError::INVALID_VALUE)?;
        require(at + size <= reservation.end())?;
        let mut next = at;
        let mut places = Vec::new();
        while next < at + size {
            let mapping = reservation.mappings.get(&next).ok_or(HipError::INVALID_VALUE)?;
            places.push(next);
            next += mapping.size;
        }
        for place in places {
            self.read_descriptor(place)?;
            match who {
                Who::Device(device) => self.set_for_device(place, device, flags),
                Who::Host => self.set_for_host(place, flags)?,
            }
        }
        Ok(())
    }

    fn set_for_device(&mut self, at: usize, device: usize, flags: u32) {
        let corrupts = self.bucket.peer_after_owner_corrupts;
        let Some((before, owner)) = self.mapped(at).map(|mapping| {
            let Source::Physical(number) = mapping.source else { return (mapping.access[device], None) };
            (mapping.access[device], self.memory(number).device)
        }) else {
            return;
        };
        if before == flags {
            return;
        }
        if before != 0 && self.is_waiting_for(device, at) {
            fault(device, at, "Page not present: its access is being changed");
        }
        if let Some(mapping) = self.mapped_mut(at) {
            let owner_has = owner.is_some_and(|owner| owner != device && mapping.access[owner] != 0);
            mapping.is_corrupt |= corrupts && owner_has && before == 0;
            mapping.access[device] = flags;
        }
    }

    fn set_for_host(&mut self, at: usize, flags: u32) -> Answer {
        let Some(mapping) = self.mapped(at) else { return Err(HipError::INVALID_VALUE) };
        require(!(mapping.imported && self.bucket.no_host_access_on_imports))?;
        let Source::Physical(number) = mapping.source else { return Err(HipError::INVALID_VALUE) };
        if flags == 0 {
            memory::hide(at, mapping.size);
        } else {
            self.memory(number).memory.show(at).map_err(|_| HipError::INVALID_VALUE)?;
        }
        if let Some(mapping) = self.mapped_mut(at) {
            mapping.host_access = flags != 0;
        }
        Ok(())
    }

    pub(crate) fn mapped(&self, at: usize) -> Option<&Mapping> {
        self.reservation(at)?.mappings.get(&at)
    }

    pub(crate) fn mapped_mut(&mut self, at: usize) -> Option<&mut Mapping> {
        self.reservation_mut(at)?.mappings.get_mut(&at)
    }
}

/// HIP 7.0 to 7.2 add the sizes of the reservation's mappings up, from its first object on, wherever the call is about,
/// until the sum is the size exactly.
fn is_a_sum(reservation: &Reservation, size: usize) -> bool {
    let mut objects: Vec<_> =
        reservation.mappings.values().map(|mapping| (mapping.order, mapping.size)).collect();
    objects.sort_unstable();
    let sums = objects.iter().scan(0, |sum, (_, length)| {
        *sum += length;
        Some(*sum)
    });
    sums.into_iter().any(|sum| sum == size)
}
