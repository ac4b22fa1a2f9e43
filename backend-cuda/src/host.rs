//! Memory of the host that the driver has made: which mappings have it, access of the CPU to them, and how much there is.
//!
//! The CPU is named to `cuMemSetAccess` by the place of the memory, so it has to be known what is mapped where.
//! That is kept for memory of the host alone: mapping device memory costs one look at its properties.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::{MemAccessDesc, MemLocation};
use crate::{CudaHandle, CudaReservation, kinds};
use gpu_vmm_core::{Access, Bytes, DeviceId, Error, Handle, MemoryInfo, Properties, Result};
use std::collections::BTreeMap;

/// Why the CPU is given no access to a device's memory.
pub(crate) const NO_HOST_ACCESS: &str = "a device's memory is mapped for devices alone: copy it, or create the memory on the host (Location::HostNode)";

/// Whether the CPU can be given access to such memory.
pub(crate) fn check_access(operation: &'static str, properties: &Properties) -> Result<()> {
    if properties.location.is_host() { Ok(()) } else { Err(no_access(operation)) }
}

fn no_access(operation: &'static str) -> Error {
    Error::Unsupported { operation, reason: NO_HOST_ACCESS.to_owned() }
}

/// The mappings of a reservation that are memory of the host, by their offsets.
#[derive(Debug, Default)]
pub(crate) struct HostMappings(BTreeMap<Bytes, Place>);

/// How long a mapping is, and where its memory is.
#[derive(Clone, Copy, Debug)]
struct Place {
    length: Bytes,
    location: MemLocation,
}

impl HostMappings {
    /// A handle was mapped.
    #[inline]
    pub(crate) fn mapped(&mut self, offset: Bytes, handle: &CudaHandle) {
        let properties = handle.properties();
        if properties.location.is_host() {
            let location = kinds::location(&properties);
            self.0.insert(offset, Place { length: handle.size(), location });
        }
    }

    /// Whole mappings were removed.
    #[inline]
    pub(crate) fn unmapped(&mut self, offset: Bytes, length: Bytes) {
        if !self.0.is_empty() {
            self.0.retain(|at, _| *at < offset || *at >= offset + length);
        }
    }

    /// Where the memory is that is mapped at an offset.
    pub(crate) fn at(&self, offset: Bytes) -> Option<MemLocation> {
        let (start, place) = self.0.range(..=offset).next_back()?;
        (offset < *start + place.length).then_some(place.location)
    }

    /// The runs of a part whose memory is in places of one type, which one call can name; nothing where some of it is
    /// a device's.
    fn runs(&self, offset: Bytes, length: Bytes) -> Option<Vec<(Bytes, Place)>> {
        let mut runs: Vec<(Bytes, Place)> = Vec::new();
        let mut next = offset;
        for (at, place) in self.0.range(offset..offset + length) {
            if *at != next {
                return None;
            }
            next += place.length;
            match runs.last_mut() {
                Some((_, run)) if run.location.kind == place.location.kind => run.length += place.length,
                _ => runs.push((*at, *place)),
            }
        }
        (next == offset + length).then_some(runs)
    }
}

impl CudaReservation {
    /// Sets what the CPU may do with whole mappings.
    ///
    /// # Safety
    ///
    /// As [`Reservation::set_access`](gpu_vmm_core::Reservation::set_access).
    #[cold]
    pub(crate) unsafe fn set_host_access(
        &mut self,
        offset: Bytes,
        length: Bytes,
        access: Access,
    ) -> Result<()> {
        const OPERATION: &str = "set access";
        let runs = self.host.runs(offset, length).ok_or_else(|| no_access(OPERATION))?;
        for (offset, Place { length, location }) in runs {
            let part = self.part(offset, length);
            let desc = MemAccessDesc { location, flags: crate::reservation::flags(access) };
            // SAFETY: the run is whole mappings of memory of the host, by the caller's promise and by what was kept when
            // they were mapped; the pointer is good for one descriptor.
            let result = unsafe {
                (self.backend.functions().mem_set_access)(
                    part.base.0,
                    part.size.0 as usize,
                    &raw const desc,
                    1,
                )
            };
            self.backend.check_memory_at(OPERATION, "cuMemSetAccess", result, DeviceId::HOST, part)?;
        }
        Ok(())
    }
}

/// How much memory the host has, as far as the system tells.
pub(crate) fn memory_info() -> Option<MemoryInfo> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Reads `MemAvailable:   123 kB`.
fn parse(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(Bytes::kib(line.split_whitespace().next()?.parse().ok()?))
    };
    Some(MemoryInfo { free: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::{LOCATION_HOST, LOCATION_HOST_NUMA};

    #[test]
    fn the_systems_numbers_are_read() {
        let text = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(parse(text), Some(MemoryInfo { free: Bytes::mib(8), total: Bytes::mib(16) }));
        assert_eq!(parse("MemTotal:       16384 kB\n"), None);
        assert_eq!(parse("MemTotal:\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn one_call_names_places_of_one_type() {
        let place = |kind, id| Place { length: Bytes::mib(2), location: MemLocation { kind, id } };
        let mut mappings = HostMappings::default();
        for (slot, place) in [
            (0, place(LOCATION_HOST_NUMA, 0)),
            (1, place(LOCATION_HOST_NUMA, 1)),
            (2, place(LOCATION_HOST, 0)),
            (4, place(LOCATION_HOST, 0)),
        ] {
            mappings.0.insert(Bytes::mib(2 * slot), place);
        }
        let runs = mappings.runs(Bytes::ZERO, Bytes::mib(6)).unwrap();
        let shown: Vec<_> =
            runs.iter().map(|(at, run)| (at.0 >> 20, run.length.0 >> 20, run.location.kind)).collect();
        assert_eq!(shown, [(0, 4, LOCATION_HOST_NUMA), (4, 2, LOCATION_HOST)]);
        // Where nothing is known, a device's memory is mapped.
        for (from, length) in [(0, 8), (6, 2), (6, 4), (8, 4)] {
            assert!(mappings.runs(Bytes::mib(from), Bytes::mib(length)).is_none(), "{from} {length}");
        }
        assert_eq!(mappings.at(Bytes(Bytes::mib(4).0 - 1)).map(|place| place.id), Some(1));
        assert_eq!(mappings.at(Bytes::mib(6)), None);
        mappings.unmapped(Bytes::ZERO, Bytes::mib(4));
        assert!(mappings.at(Bytes::ZERO).is_none() && mappings.at(Bytes::mib(4)).is_some());
    }
}
