//! Memory of the host that the driver has made: which mappings have it, access of the CPU to them, and how much there is.
//!
//! The CPU is let at memory of the host alone, so it has to be known what is mapped where. That is kept for such memory:
//! mapping device memory costs one look at its properties.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::ffi::{LOCATION_HOST_NUMA, MemAccessDesc, MemLocation};
use crate::{CudaHandle, CudaReservation};
use gpu_vmm_core::{
    Access, Bytes, Detail, DeviceId, Error, Handle, MemoryInfo, Operation, Properties, Result,
};
use std::collections::BTreeMap;

/// Why the CPU is given no access to a device's memory.
pub(crate) const NO_HOST_ACCESS: &str = "a device's memory is mapped for devices alone: copy it, or create the memory on the host (Location::HostNode)";

/// Whether the CPU can be given access to such memory.
pub(crate) fn check_access(operation: Operation, properties: &Properties) -> Result<()> {
    if properties.location.is_host() { Ok(()) } else { Err(no_access(operation)) }
}

fn no_access(operation: Operation) -> Error {
    Error::new(operation, Detail::Unsupported { reason: NO_HOST_ACCESS.to_owned() })
}

/// By what the CPU is named where access is set or asked for, whichever memory of the host it is: quirk
/// `host-access-untold`. The node does not count.
pub(crate) const CPU: MemLocation = MemLocation { kind: LOCATION_HOST_NUMA, id: 0 };

/// The mappings of a reservation that are memory of the host: how long they are, by their offsets.
#[derive(Debug, Default)]
pub(crate) struct HostMappings(BTreeMap<Bytes, Bytes>);

impl HostMappings {
    /// A handle was mapped.
    #[inline]
    pub(crate) fn mapped(&mut self, offset: Bytes, handle: &CudaHandle) {
        if handle.properties().location.is_host() {
            self.0.insert(offset, handle.size());
        }
    }

    /// Whole mappings were removed.
    #[inline]
    pub(crate) fn unmapped(&mut self, offset: Bytes, length: Bytes) {
        if !self.0.is_empty() {
            self.0.retain(|at, _| *at < offset || *at >= offset + length);
        }
    }

    /// Whether memory of the host is mapped at an offset.
    pub(crate) fn has(&self, offset: Bytes) -> bool {
        self.0.range(..=offset).next_back().is_some_and(|(start, length)| offset < *start + *length)
    }

    /// Whether whole mappings are all memory of the host.
    fn cover(&self, offset: Bytes, length: Bytes) -> bool {
        let end = offset + length;
        self.0.range(offset..end).try_fold(offset, |next, (at, size)| (*at == next).then(|| next + *size))
            == Some(end)
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
        const OPERATION: Operation = Operation::SetAccess;
        if !self.host.cover(offset, length) {
            return Err(no_access(OPERATION));
        }
        let part = self.part(offset, length);
        let desc = MemAccessDesc { location: CPU, flags: crate::reservation::flags(access) };
        // SAFETY: the part is whole mappings of memory of the host, by the caller's promise and by what was kept when they
        // were mapped; the pointer is good for one descriptor.
        let result = unsafe {
            (self.backend.functions().mem_set_access)(part.base.0, part.size.0 as usize, &raw const desc, 1)
        };
        self.backend.check_memory_at(OPERATION, "cuMemSetAccess", result, DeviceId::HOST, part)
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

    #[test]
    fn the_systems_numbers_are_read() {
        let text = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(parse(text), Some(MemoryInfo { free: Bytes::mib(8), total: Bytes::mib(16) }));
        assert_eq!(parse("MemTotal:       16384 kB\n"), None);
        assert_eq!(parse("MemTotal:\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn the_hosts_memory_is_known_by_its_mappings() {
        let at = |slot: u64| Bytes::mib(2 * slot);
        let mut mappings = HostMappings([0, 1, 2, 4].map(|slot| (at(slot), Bytes::mib(2))).into());
        assert!(mappings.cover(at(0), Bytes::mib(6)) && mappings.cover(at(1), Bytes::mib(2)));
        // Where nothing is known, a device's memory is mapped.
        for (slot, length) in [(0, 8), (3, 2), (3, 4), (4, 4), (2, 6)] {
            assert!(!mappings.cover(at(slot), Bytes::mib(length)), "{slot} {length}");
        }
        assert!(mappings.has(Bytes(at(3).0 - 1)) && !mappings.has(at(3)));
        mappings.unmapped(Bytes::ZERO, at(2));
        assert!(!mappings.has(Bytes::ZERO) && mappings.has(at(2)));
    }
}
