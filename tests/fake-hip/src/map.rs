//! Mapping: `hipMemMap`, `hipMemUnmap`.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{Answer, HipError, call, crash, current, require};
use crate::memory::PAGE;
use crate::state::{Mapping, Source, State};
use std::ffi::{c_ulonglong, c_void};
use std::time::Instant;

/// # Safety
///
/// The handle is one; another ends the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemMap(
    at: *mut c_void,
    size: usize,
    offset: usize,
    handle: *mut c_void,
    flags: c_ulonglong,
) -> HipError {
    call(|state| {
        require(!at.is_null() && !handle.is_null() && size != 0 && offset == 0 && flags == 0)?;
        let (at, raw) = (at.addr(), handle.addr());
        state.handle("hipMemMap", raw).references += 1;
        let done = state.map(at, size, raw);
        if state.bucket.map_reports_nothing {
            // Where nothing was mapped, the reference stays.
            return Ok(());
        }
        done.inspect_err(|_| state.let_go_of_handle("hipMemMap", raw))
    })
}

/// # Safety
///
/// Nothing uses the memory through these addresses any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemUnmap(at: *mut c_void, size: usize) -> HipError {
    call(|state| {
        require(!at.is_null() && size != 0)?;
        state.unmap(at.addr(), size)
    })
}

/// A number that is as good as by chance, and the same in every run (the last step of splitmix64).
const fn scattered(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl State {
    /// Maps a handle of which the new mapping's reference is taken already.
    fn map(&mut self, at: usize, size: usize, raw: usize) -> Answer {
        let handle = self.handle("hipMemMap", raw);
        let (source, device, imported) = (handle.source, handle.device, handle.imported);
        let Some(reservation) = self.reservation(at) else { return Err(HipError::INVALID_VALUE) };
        if reservation.is_lost {
            crash(format_args!(
                "hipMemMap at {at:#x}, whose reservation is lost in HIP's tables: its addresses were freed while \
                 HIP still worked on them"
            ));
        }
        if reservation.end() < at + size {
            if self.bucket.map_reports_nothing {
                crash(format_args!("hipMemMap of {size:#x} at {at:#x}, across the end of its reservation"));
            }
            return Err(HipError::INVALID_VALUE);
        }
        let overlaps = reservation
            .mappings
            .iter()
            .any(|(start, mapping)| *start < at + size && at < start + mapping.size);
        require(!overlaps && at.is_multiple_of(PAGE) && size.is_multiple_of(PAGE))?;
        if let Source::Physical(number) = source {
            let memory = &self.memory(number).memory;
            require(size <= memory.size)?;
            // ROCr exports and imports the memory for this: for a moment it takes a descriptor.
            let fd = memory.descriptor().map_err(|_| HipError::OUT_OF_MEMORY)?;
            // SAFETY: made for this, and used by nobody.
            unsafe { libc::close(fd) };
            if let Some(physical) = self.physical.get_mut(&number) {
                physical.references += 1;
            }
        }
        let mapping = Mapping {
            size,
            handle: raw,
            source,
            device,
            imported,
            access: vec![0; self.devices.len()],
            host_access: false,
            is_corrupt: false,
            order: scattered(self.number()),
        };
        if let Some(reservation) = self.reservation_mut(at) {
            reservation.mappings.insert(at, mapping);
            reservation.last_command = Some(Instant::now());
        }
        Ok(())
    }

    fn unmap(&mut self, at: usize, size: usize) -> Answer {
        if self.forgotten.iter().any(|range| range.mapping(at).is_some()) {
            crash(format_args!("hipMemUnmap({at:#x}), whose reservation was freed while this was mapped"));
        }
        let Some((start, first)) = self.reservation(at).and_then(|found| found.mapping(at)) else {
            if self.bucket.unmap_of_nothing_crashes {
                crash(format_args!("hipMemUnmap({at:#x}), where nothing is mapped"));
            }
            return Err(HipError::INVALID_VALUE);
        };
        let (first_size, owner) = (first.size, first.device);
        self.wait_before_unmap(owner);
        let tiles = self.reservation(at).and_then(|found| found.tiles(at, size));
        let Some(reservation) = self.reservation_mut(at) else { return Err(HipError::INVALID_VALUE) };
        reservation.last_command = Some(Instant::now());
        if self.bucket.unmap_knows_one {
            return self.unmap_as_if_one(at, size, (start, first_size));
        }
        for at in tiles.ok_or(HipError::INVALID_VALUE)? {
            self.unmap_one(at);
        }
        Ok(())
    }

    fn unmap_one(&mut self, at: usize) {
        let taken = self.reservation_mut(at).and_then(|reservation| reservation.mappings.remove(&at));
        if let Some(mapping) = taken {
            self.end_mapping("hipMemUnmap", at, mapping);
        }
    }

    /// HIP 6: only the first mapping's object is looked at, and what is below gets the size as it is.
    fn unmap_as_if_one(&mut self, at: usize, size: usize, (start, length): (usize, usize)) -> Answer {
        if at == start && size == length {
            self.unmap_one(at);
            return Ok(());
        }
        let Some(reservation) = self.reservation_mut(at) else { return Err(HipError::INVALID_VALUE) };
        if size < length || at != start {
            // HIP forgets the mapping; below it stays.
            reservation.mappings.remove(&start);
            reservation.lost_mappings += 1;
            return Ok(());
        }
        // Below all are gone; the references that HIP has for all but the first are never dropped.
        let others: Vec<usize> =
            reservation.mappings.range(start + 1..at + size).map(|(at, _)| *at).collect();
        for other in others {
            reservation.mappings.remove(&other);
        }
        self.unmap_one(start);
        Ok(())
    }

    fn wait_before_unmap(&mut self, owner: usize) {
        let bucket = self.bucket;
        for device in 0..self.devices.len() {
            let is_waited_for = bucket.unmap_waits_for_all
                || (bucket.unmap_waits_for_owner && device == owner)
                || (bucket.unmap_waits_for_current && device == current());
            if is_waited_for {
                self.finish(device);
            }
        }
    }
}
