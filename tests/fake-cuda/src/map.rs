//! Maps physical memory at reserved addresses: `cuMemMap`, `cuMemUnmap`.
//!
//! Measured: only whole handles can be mapped, and a mapping starts without any access. One unmapping removes any number of
//! whole mappings, and accepts holes and even a range without mappings. Neither call waits for work. Calls that the driver
//! accepts against its documentation succeed here as violations.
#![allow(unsafe_code)] // exported to C

use crate::c::access;
use crate::code::{Answer, Code};
use crate::context;
use crate::reserve::end_of;
use crate::space::Space;
use crate::state::{Mapping, Object, State, state};
use crate::violation::{note, refuse, stop};

impl State {
    fn map(&mut self, at: u64, size: u64, offset: u64, raw: u64, flags: u64) -> Answer {
        let end = end_of(at, size)?;
        if flags != 0 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        let (whole, imported) = match &self.handle(raw)?.object {
            Object::Memory { memory, imported } => {
                memory.kind.home.device().map_or(Ok(()), context::check_device)?;
                (memory.size, *imported)
            }
            Object::Multicast { team, imported } => {
                let (team, imported) = (*team, *imported);
                (self.teams.get(&team).ok_or(Code::UNKNOWN)?.mappable(at)?, imported)
            }
        };
        if offset != 0 || size != whole {
            let what = format_args!("{size:#x} from {offset:#x} of a handle of {whole:#x}");
            // Only the driver can know the size of an import.
            let is_unknown = imported && offset == 0;
            return Err(if is_unknown { Code::NOT_SUPPORTED } else { refuse(Code::NOT_SUPPORTED, what) });
        }
        self.check_place(at, end)?;
        self.mappings.insert(at, Mapping::new(size, raw));
        self.handle(raw)?.mappings += 1;
        Ok(())
    }

    /// Checks whether a range can be mapped. A range that begins in a reservation and ends after it is accepted in the
    /// driver's own arena, and anywhere if another reservation follows.
    fn check_place(&self, at: u64, end: u64) -> Answer {
        let wrong =
            |what: &str| Err(refuse(Code::INVALID_VALUE, format_args!("{at:#x} to {end:#x}: {what}")));
        let Some((base, reservation)) = self.space.around(at) else { return wrong("it is not reserved") };
        if !self.mappings_in(at, end).is_empty() {
            return wrong("something is mapped there");
        }
        if end <= base + reservation.size {
            return Ok(());
        }
        if Space::is_in_arena(at) {
            note(format_args!("{at:#x} to {end:#x} exceeds its reservation"));
            return Ok(());
        }
        if self.covers(at, end) { Ok(()) } else { wrong("it exceeds its reservation") }
    }

    fn unmap(&mut self, at: u64, size: u64) -> Answer {
        let end = end_of(at, size)?;
        let starts = self.whole_mappings(at, end)?;
        let mapped: u64 = starts.iter().map(|start| self.mappings[start].size).sum();
        if mapped < size {
            note(format_args!("{at:#x} to {end:#x}: only {mapped:#x} are mapped"));
        }
        for start in starts {
            self.remove(start);
        }
        Ok(())
    }

    /// Returns the mappings in a reserved range. Refuses a range that contains a part of a mapping.
    pub(crate) fn whole_mappings(&self, at: u64, end: u64) -> Answer<Vec<u64>> {
        let wrong =
            |what: &str| Err(refuse(Code::INVALID_VALUE, format_args!("{at:#x} to {end:#x}: {what}")));
        if !self.covers(at, end) {
            return wrong("not all of it is reserved");
        }
        let starts = self.mappings_in(at, end);
        let is_whole = |start: &u64| *start >= at && *start + self.mappings[start].size <= end;
        if starts.iter().all(is_whole) { Ok(starts) } else { wrong("it has a part of a mapping") }
    }

    fn remove(&mut self, start: u64) {
        let Some(mapping) = self.mappings.remove(&start) else { return };
        if let Some(handle) = self.handles.get_mut(&mapping.handle) {
            if let Object::Memory { memory, .. } = &handle.object
                && mapping.host != access::NONE
                && memory.show(start, access::NONE).is_err()
            {
                stop(format_args!("the pages at {start:#x} cannot be protected"));
            }
            handle.mappings -= 1;
        }
        self.drop_if_unused(mapping.handle);
    }
}

cuda! {
    /// Maps a handle.
    fn cuMemMap(at: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        state().map(at, size as u64, offset as u64, handle, flags)
    }

    /// Unmaps the mappings in a range.
    fn cuMemUnmap(at: u64, size: usize) {
        state().unmap(at, size as u64)
    }
}
