//! Access rights of devices and the host to a mapping.

use crate::types::DeviceId;
use std::fmt;

/// The access of one device, or of the host, to a mapping.
///
/// No device has access to a new mapping. CUDA: `CUmemAccess_flags`, HIP: `hipMemAccessFlags`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Access {
    /// No reads and no writes.
    #[default]
    None,
    /// Reads only. On HIP, a write faults in the hardware and ends the process; no call reports it.
    Read,
    /// Reads and writes.
    ReadWrite,
}

impl Access {
    /// Returns true if `other` allows everything that `self` allows.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self <= other
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "no access",
            Self::Read => "read",
            Self::ReadWrite => "read and write",
        })
    }
}

/// A device and the access to set for it. CUDA: `CUmemAccessDesc`, HIP: `hipMemAccessDesc`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// The device, or [the host](DeviceId::HOST).
    pub device: DeviceId,
    /// Its access.
    pub access: Access,
}

/// The access of every device to one mapping, as two bit sets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AccessMap {
    read: u128,
    write: u128,
}

impl AccessMap {
    /// No access for any device.
    pub const NONE: Self = Self { read: 0, write: 0 };

    /// Returns the map with the access of `device`, or of [the host](DeviceId::HOST), replaced by `access`.
    ///
    /// The host has the last bit. For a higher ordinal, which no backend has, the map is returned unchanged.
    #[must_use]
    pub const fn with(mut self, device: DeviceId, access: Access) -> Self {
        if device.0 <= DeviceId::LIMIT {
            let bit = 1u128 << device.0;
            self.read &= !bit;
            self.write &= !bit;
            match access {
                Access::None => {}
                Access::Read => self.read |= bit,
                Access::ReadWrite => {
                    self.read |= bit;
                    self.write |= bit;
                }
            }
        }
        self
    }

    /// Returns the access of `device`.
    #[must_use]
    pub const fn get(self, device: DeviceId) -> Access {
        if device.0 > DeviceId::LIMIT {
            return Access::None;
        }
        let bit = 1u128 << device.0;
        match (self.read & bit != 0, self.write & bit != 0) {
            (_, true) => Access::ReadWrite,
            (true, false) => Access::Read,
            (false, false) => Access::None,
        }
    }

    /// Returns true if no device has any access.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.read == 0
    }

    /// Returns the devices that have access, in ascending order of their ordinals.
    pub fn grants(self) -> impl Iterator<Item = Grant> {
        let mut rest = self.read;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let device = DeviceId(rest.trailing_zeros());
                rest &= rest - 1;
                Grant { device, access: self.get(device) }
            })
        })
    }

    /// Returns the grants that change `self` into `to`: one for each device whose access differs.
    pub fn changes(self, to: Self) -> impl Iterator<Item = Grant> {
        let either = Self { read: self.read | to.read, write: 0 };
        either
            .grants()
            .map(move |grant| Grant { device: grant.device, access: to.get(grant.device) })
            .filter(move |grant| self.get(grant.device) != grant.access)
    }
}

impl FromIterator<Grant> for AccessMap {
    fn from_iter<I: IntoIterator<Item = Grant>>(grants: I) -> Self {
        grants.into_iter().fold(Self::NONE, |map, grant| map.with(grant.device, grant.access))
    }
}

impl fmt::Debug for AccessMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.grants().map(|grant| (grant.device, grant.access))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_its_own() {
        let map = AccessMap::NONE
            .with(DeviceId(0), Access::ReadWrite)
            .with(DeviceId(5), Access::Read)
            .with(DeviceId(126), Access::Read);
        assert_eq!(map.get(DeviceId(0)), Access::ReadWrite);
        assert_eq!(map.get(DeviceId(5)), Access::Read);
        assert_eq!(map.get(DeviceId(1)), Access::None);
        assert_eq!(map.grants().map(|grant| grant.device.0).collect::<Vec<_>>(), [0, 5, 126]);
        assert_eq!(map.with(DeviceId(0), Access::None).get(DeviceId(0)), Access::None);
        let with_host = map.with(DeviceId::HOST, Access::Read);
        assert_eq!(with_host.get(DeviceId::HOST), Access::Read);
        assert_eq!(with_host.grants().last().map(|grant| grant.device), Some(DeviceId::HOST));
        assert_eq!(map.with(DeviceId(128), Access::Read), map);
        assert_eq!(
            (map.is_none(), map.with(DeviceId(0), Access::Read).get(DeviceId(0))),
            (false, Access::Read)
        );
        assert!(AccessMap::NONE.is_none() && AccessMap::default().is_none());
        assert_eq!(with_host.grants().collect::<AccessMap>(), with_host);
        assert_eq!(map.get(DeviceId(u32::MAX)), Access::None);
        assert_eq!(format!("{map:?}"), "{device 0: ReadWrite, device 5: Read, device 126: Read}");
    }

    #[test]
    fn access_includes_itself_and_smaller_ones() {
        let all = [Access::None, Access::Read, Access::ReadWrite];
        let within = all.map(|one| all.map(|other| one.is_within(other)));
        assert_eq!(within, [[true; 3], [false, true, true], [false, false, true]]);
        assert_eq!(all.map(|one| one.to_string()), ["no access", "read", "read and write"]);
    }

    #[test]
    fn changes_name_only_what_differs() {
        let from = AccessMap::NONE.with(DeviceId(0), Access::ReadWrite).with(DeviceId(1), Access::Read);
        let to = AccessMap::NONE.with(DeviceId(1), Access::Read).with(DeviceId(2), Access::Read);
        let changes: Vec<_> = from.changes(to).map(|grant| (grant.device.0, grant.access)).collect();
        assert_eq!(changes, [(0, Access::None), (2, Access::Read)]);
        assert_eq!(from.changes(from).count(), 0);
    }
}
