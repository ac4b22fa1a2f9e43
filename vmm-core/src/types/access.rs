//! Who may read and write a mapping.

use crate::types::DeviceId;
use std::fmt;

/// What one device, or the host, may do with a mapping.
///
/// A new mapping gives no device any access. CUDA: `CUmemAccess_flags`, HIP: `hipMemAccessFlags`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Access {
    /// Neither reading nor writing.
    #[default]
    None,
    /// Reading alone. On HIP a write faults in the hardware and ends the process; no call reports it.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl Access {
    /// True where everything that `self` allows is allowed by `other` as well.
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

/// An access for a device: what one descriptor of `cuMemSetAccess` or `hipMemSetAccess` says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// Who: a device, or [the host](DeviceId::HOST).
    pub device: DeviceId,
    /// What it may do.
    pub access: Access,
}

/// The access of every device to one mapping, in two words of bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AccessMap {
    read: u128,
    write: u128,
}

impl AccessMap {
    /// No access for any device.
    pub const NONE: Self = Self { read: 0, write: 0 };

    /// The same map with `access` for `device`, or for [the host](DeviceId::HOST), which has the last bit. A device
    /// above that leaves it as it is: no backend has one.
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

    /// What `device` may do.
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

    /// True where no device has any access.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.read == 0
    }

    /// The devices that have some access, in order of their ordinals.
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

    /// What has to be said to a driver to come from `self` to `to`: the devices whose access differs.
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
