//! Host memory that the driver created: which mappings have it, and why the CPU has access to no other.
//!
//! The CPU can be granted access to host memory only, so the offsets of its mappings are recorded. For device memory this costs one
//! check of the properties. A region's records cannot be used: they change when an operation has succeeded, and access is set in
//! the middle of one.

use crate::ffi::{LOCATION_HOST_NUMA, MemLocation};
use crate::handle::CudaHandle;
use gpu_vmm_core::{Bytes, Detail, Error, Handle, Operation, Properties, Result};
use std::collections::BTreeMap;

/// The error text for a request to grant the CPU access to device memory.
pub(crate) const NO_HOST_ACCESS: &str =
    "device memory is mapped for devices only: copy it, or create the memory on a NUMA node of the host";

/// Checks that the CPU can be granted access to such memory.
pub(crate) fn check_access(operation: Operation, properties: &Properties) -> Result<()> {
    if properties.location.is_host() { Ok(()) } else { Err(no_access(operation)) }
}

pub(crate) fn no_access(operation: Operation) -> Error {
    Error::new(operation, Detail::Unsupported { reason: NO_HOST_ACCESS.to_owned() })
}

/// The location that names the CPU when access is set or queried, for any host memory: quirk `host-access-not-reported`. The node number
/// does not matter.
pub(crate) const CPU: MemLocation = MemLocation { kind: LOCATION_HOST_NUMA, id: 0 };

/// The mappings of a reservation that are host memory: lengths by offset.
#[derive(Debug, Default)]
pub(crate) struct HostMappings(BTreeMap<Bytes, Bytes>);

impl HostMappings {
    /// Records that a handle was mapped.
    #[inline]
    pub(crate) fn mapped(&mut self, offset: Bytes, handle: &CudaHandle) {
        if handle.properties().location.is_host() {
            self.0.insert(offset, handle.size());
        }
    }

    /// Records that whole mappings were removed.
    #[inline]
    pub(crate) fn unmapped(&mut self, offset: Bytes, length: Bytes) {
        if !self.0.is_empty() {
            self.0.retain(|at, _| *at < offset || *at >= offset + length);
        }
    }

    /// Returns whether host memory is mapped at an offset.
    pub(crate) fn has(&self, offset: Bytes) -> bool {
        self.0.range(..=offset).next_back().is_some_and(|(start, length)| offset < *start + *length)
    }

    /// Returns whether a range of whole mappings is host memory throughout.
    pub(crate) fn cover(&self, offset: Bytes, length: Bytes) -> bool {
        let end = offset + length;
        self.0.range(offset..end).try_fold(offset, |next, (at, size)| (*at == next).then(|| next + *size))
            == Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_known_by_its_mappings() {
        let at = |state: u64| Bytes::mib(2 * state);
        let mut mappings = HostMappings([0, 1, 2, 4].map(|state| (at(state), Bytes::mib(2))).into());
        assert!(mappings.cover(at(0), Bytes::mib(6)) && mappings.cover(at(1), Bytes::mib(2)));
        // A range without an entry is device memory.
        for (state, length) in [(0, 8), (3, 2), (3, 4), (4, 4), (2, 6)] {
            assert!(!mappings.cover(at(state), Bytes::mib(length)), "{state} {length}");
        }
        assert!(mappings.has(Bytes(at(3).0 - 1)) && !mappings.has(at(3)));
        mappings.unmapped(Bytes::ZERO, at(2));
        assert!(!mappings.has(Bytes::ZERO) && !mappings.has(at(1)) && mappings.has(at(2)));
    }
}
