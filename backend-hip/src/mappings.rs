//! The current mappings of one reservation. HIP's own records are unreliable, and the arguments that `hipMemSetAccess`
//! accepts depend on all other mappings.
//!
//! A region's records cannot be used: they change when an operation has succeeded, and this backend needs the state in
//! the middle of one.

use gpu_vmm_core::{Access, AccessMap, Bytes, DeviceId, OffsetRange};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Mapping {
    length: Bytes,
    owner: DeviceId,
    /// The memory was imported.
    imported: bool,
    access: AccessMap,
    /// The host's access has been set, to any value.
    shown_to_host: bool,
}

/// The mappings of one reservation, by offset.
#[derive(Debug, Default)]
pub(crate) struct Mappings(BTreeMap<Bytes, Mapping>);

impl Mappings {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn insert(&mut self, at: OffsetRange, owner: DeviceId, imported: bool) {
        let access = AccessMap::NONE;
        let mapping = Mapping { length: at.length, owner, imported, access, shown_to_host: false };
        self.0.insert(at.offset, mapping);
    }

    pub(crate) fn remove(&mut self, offset: Bytes) {
        self.0.remove(&offset);
    }

    /// Returns the owner of the memory of the mapping that begins at `offset`.
    pub(crate) fn owner(&self, offset: Bytes) -> Option<DeviceId> {
        self.0.get(&offset).map(|mapping| mapping.owner)
    }

    /// True if the range is one whole mapping.
    #[cfg_attr(not(unix), allow(dead_code))] // only descriptors need it
    pub(crate) fn is_one(&self, part: OffsetRange) -> bool {
        self.0.get(&part.offset).is_some_and(|mapping| mapping.length == part.length)
    }

    /// True if the memory of the mapping that begins at `offset` was imported.
    #[cfg_attr(not(unix), allow(dead_code))] // only descriptors need it
    pub(crate) fn is_imported(&self, offset: Bytes) -> bool {
        self.0.get(&offset).is_some_and(|mapping| mapping.imported)
    }

    /// True if the host has, or once had, access to the mapping that begins at `offset`.
    pub(crate) fn was_shown_to_host(&self, offset: Bytes) -> bool {
        self.0.get(&offset).is_some_and(|mapping| mapping.shown_to_host)
    }

    /// Returns the number of mappings and their total size.
    pub(crate) fn total(&self) -> (usize, Bytes) {
        (self.0.len(), self.0.values().map(|mapping| mapping.length).sum())
    }

    /// Splits a range where the owner of the memory changes.
    pub(crate) fn by_owner(&self, part: OffsetRange) -> Vec<(OffsetRange, DeviceId)> {
        let mut runs: Vec<(OffsetRange, DeviceId)> = Vec::new();
        for (offset, mapping) in self.0.range(part.offset..part.end()) {
            match runs.last_mut() {
                Some((run, owner)) if *owner == mapping.owner => run.length += mapping.length,
                _ => runs.push((OffsetRange { offset: *offset, length: mapping.length }, mapping.owner)),
            }
        }
        runs
    }

    /// Returns the mappings of a range to which a device has access, and that access.
    pub(crate) fn accessible(&self, part: OffsetRange, device: DeviceId) -> Vec<(OffsetRange, Access)> {
        let mappings = self.0.range(part.offset..part.end());
        mappings
            .map(|(offset, mapping)| {
                (OffsetRange { offset: *offset, length: mapping.length }, mapping.access.get(device))
            })
            .filter(|(_, access)| *access != Access::None)
            .collect()
    }

    /// Returns the range of all mappings, if they are contiguous and those outside of `part` already have this access
    /// for the device.
    pub(crate) fn whole_with(
        &self,
        part: OffsetRange,
        device: DeviceId,
        access: Access,
    ) -> Option<OffsetRange> {
        let (first, _) = self.0.first_key_value()?;
        let mut end = *first;
        for (offset, mapping) in &self.0 {
            let inside = part.offset <= *offset && *offset < part.end();
            if *offset != end || !(inside || mapping.access.get(device) == access) {
                return None;
            }
            end = *offset + mapping.length;
        }
        Some(OffsetRange { offset: *first, length: end - *first })
    }

    /// Records that a device's access was set.
    pub(crate) fn set(&mut self, part: OffsetRange, device: DeviceId, access: Access) {
        for (_, mapping) in self.0.range_mut(part.offset..part.end()) {
            mapping.access = mapping.access.with(device, access);
            mapping.shown_to_host |= device.is_host();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: DeviceId = DeviceId(0);
    const ONE: DeviceId = DeviceId(1);

    fn part(offset: u64, length: u64) -> OffsetRange {
        OffsetRange { offset: Bytes::mib(offset), length: Bytes::mib(length) }
    }

    fn mapped(mappings: &[(u64, u64, DeviceId)]) -> Mappings {
        let mut all = Mappings::default();
        for (offset, length, owner) in mappings {
            all.insert(part(*offset, *length), *owner, false);
        }
        all
    }

    #[test]
    fn part_is_cut_where_owner_changes() {
        let all = mapped(&[(0, 2, ZERO), (2, 6, ZERO), (8, 4, ONE), (12, 2, ZERO)]);
        assert_eq!(all.by_owner(part(0, 14)), [(part(0, 8), ZERO), (part(8, 4), ONE), (part(12, 2), ZERO)]);
        assert_eq!(all.by_owner(part(2, 6)), [(part(2, 6), ZERO)]);
        assert_eq!(all.total(), (4, Bytes::mib(14)));
    }

    #[test]
    fn part_has_access_of_its_mappings() {
        let mut all = mapped(&[(0, 2, ZERO), (2, 2, ZERO), (4, 2, ONE), (6, 2, ZERO)]);
        all.set(part(2, 2), ZERO, Access::Read);
        all.set(part(4, 4), ZERO, Access::ReadWrite);
        let read = (part(2, 2), Access::Read);
        let written = [4, 6].map(|offset| (part(offset, 2), Access::ReadWrite));
        assert_eq!(all.accessible(part(0, 8), ZERO), [&[read], &written[..]].concat());
        assert_eq!(all.accessible(part(2, 4), ZERO), [read, written[0]]);
        assert_eq!(all.accessible(part(4, 4), ZERO), written);
        assert_eq!(all.accessible(part(0, 8), ONE), []);
        all.set(part(2, 2), ZERO, Access::None);
        assert_eq!(all.accessible(part(0, 4), ZERO), []);
        assert_eq!((all.owner(Bytes::mib(4)), all.owner(Bytes::mib(5))), (Some(ONE), None));
        assert!(all.is_one(part(4, 2)) && !all.is_one(part(4, 4)) && !all.is_one(part(5, 1)));
    }

    /// Access that was taken again counts too.
    #[test]
    fn host_view_is_known_until_unmap() {
        let mut all = mapped(&[(0, 2, ZERO), (2, 2, ZERO), (4, 2, ZERO)]);
        all.set(part(0, 6), ZERO, Access::ReadWrite);
        all.set(part(2, 2), DeviceId::HOST, Access::None);
        let shown = |all: &Mappings| [0, 2, 3, 4].map(|offset| all.was_shown_to_host(Bytes::mib(offset)));
        assert_eq!(shown(&all), [false, true, false, false]);
        all.remove(Bytes::mib(2));
        all.insert(part(2, 2), ZERO, false);
        assert_eq!(shown(&all), [false; 4]);
    }

    #[test]
    fn whole_is_set_if_nothing_else_changes() {
        let mut all = mapped(&[(4, 2, ZERO), (6, 6, ZERO), (12, 4, ZERO)]);
        all.set(part(4, 8), ZERO, Access::ReadWrite);
        let grown = part(12, 4);
        assert_eq!(all.whole_with(grown, ZERO, Access::ReadWrite), Some(part(4, 12)));
        assert_eq!(all.whole_with(grown, ZERO, Access::Read), None, "the others would lose write access");
        assert_eq!(all.whole_with(grown, ONE, Access::Read), None, "a peer would get access to the others");
        assert_eq!(all.whole_with(part(4, 12), ONE, Access::Read), Some(part(4, 12)));
        assert_eq!(
            all.whole_with(part(4, 8), ONE, Access::Read),
            None,
            "the one behind the part would get access"
        );
        all.remove(Bytes::mib(6));
        assert_eq!(all.whole_with(grown, ZERO, Access::ReadWrite), None, "a gap");
        assert_eq!(Mappings::default().whole_with(grown, ZERO, Access::Read), None);
    }
}
