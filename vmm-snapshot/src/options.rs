//! How a snapshot is to be restored: on which devices, as what memory, where.

use gpu_vmm_core::{AccessMap, Detail, DeviceId, Error, Operation, Properties, Result};
use std::collections::BTreeMap;

#[cfg(doc)]
use crate::{Restored, SnapshotFile};

/// How the regions of a snapshot are to be made again.
///
/// If nothing is said, they come back at the addresses at which they were, each piece of memory on the device of the same
/// ordinal, with the access that each device had. What cannot be had so is an error.
///
/// ```no_run
/// # use gpu_vmm_snapshot::{Restore, SnapshotFile};
/// # use gpu_vmm_core::{Backend, Bytes, DeviceId, Region, Result, StagingRing};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let ring = StagingRing::new(backend, 2, StagingRing::<B>::CHUNK)?;
/// let file = SnapshotFile::open("model.snapshot")?;
/// // All of it on one device, wherever it was, and at other addresses where some are taken.
/// for restored in Restore::new().all_on(DeviceId(0)).relocate().regions(&file, &ring)? {
///     let (region, was) = (&restored.region, restored.was.base);
///     println!("{} is at {}, and was at {was}", region.tag(), region.address());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Restore {
    /// Who takes a device's place; nobody where it is `None`.
    devices: BTreeMap<DeviceId, Option<DeviceId>>,
    /// Who takes the place of all others.
    all: Option<DeviceId>,
    memory: Option<fn(Properties) -> Properties>,
    relocate: bool,
}

impl Restore {
    /// What is described above.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was device `from`'s is to be device `to`'s: its memory, and the access that it had. Where several become one,
    /// that one may do what any of them could. [`DeviceId::HOST`] is the CPU, which has access and no memory.
    #[must_use]
    pub fn device(mut self, from: DeviceId, to: DeviceId) -> Self {
        self.devices.insert(from, Some(to));
        self
    }

    /// Nobody gets the access that this device, or [the host](DeviceId::HOST), had.
    #[must_use]
    pub fn without(mut self, device: DeviceId) -> Self {
        self.devices.insert(device, None);
        self
    }

    /// What was any other device's than those that are named is to be `to`'s. The host stays the host.
    #[must_use]
    pub fn all_on(mut self, to: DeviceId) -> Self {
        self.all = Some(to);
        self
    }

    /// What memory is to be made as, from what it was: for a target that does not have what the source had. The device in
    /// the answer does not count, it is the one that is mapped to. It is asked for the memory of future growth too.
    ///
    /// Kinds of handle and memory of the host are had or are an error; compression and remote DMA are wishes everywhere,
    /// and [`PhysicalMemory::properties`](gpu_vmm_core::PhysicalMemory::properties) tells what came of them.
    ///
    /// ```
    /// # use gpu_vmm_core::Properties;
    /// use gpu_vmm_snapshot::Restore;
    /// // In the devices' own memory, and for this process alone.
    /// let options = Restore::new().memory(|was| Properties::on(was.device));
    /// ```
    #[must_use]
    pub fn memory(mut self, of: fn(Properties) -> Properties) -> Self {
        self.memory = Some(of);
        self
    }

    /// A region whose addresses are taken, or are not as the target's have to be aligned, may be elsewhere.
    /// [`Restored::was`] tells where it was; addresses that are written in the contents are then wrong.
    #[must_use]
    pub fn relocate(mut self) -> Self {
        self.relocate = true;
        self
    }

    pub(crate) const fn may_relocate(&self) -> bool {
        self.relocate
    }

    /// Who takes the place of a device, or of the host.
    fn place_of(&self, device: DeviceId) -> Option<DeviceId> {
        let own = if device.is_host() { device } else { self.all.unwrap_or(device) };
        self.devices.get(&device).copied().unwrap_or(Some(own))
    }

    /// Memory as it is to be made.
    pub(crate) fn properties(&self, operation: Operation, was: &Properties) -> Result<Properties> {
        let device = self.place_of(was.device).ok_or_else(|| {
            Error::new(
                operation,
                Detail::Unsupported {
                    reason: format!(
                        "the snapshot has memory of {}, which is left out; say whose it is to be instead",
                        was.device
                    ),
                },
            )
        })?;
        let moved = Properties { device, ..*was };
        Ok(Properties { device, ..self.memory.map_or(moved, |of| of(moved)) })
    }

    /// Who may do what, by the devices that there are now.
    pub(crate) fn access(&self, was: AccessMap) -> AccessMap {
        was.grants().fold(AccessMap::NONE, |map, grant| match self.place_of(grant.device) {
            None => map,
            Some(device) => map.with(device, map.get(device).max(grant.access)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_core::{Access, Location};

    const RW: Access = Access::ReadWrite;

    #[test]
    fn several_devices_become_one() {
        let was = AccessMap::NONE.with(DeviceId(0), Access::Read).with(DeviceId(1), RW);
        let was = was.with(DeviceId::HOST, Access::Read);
        let map = |options: Restore| options.access(was).grants().collect::<Vec<_>>();
        let grants = |pairs: &[(DeviceId, Access)]| {
            let of = |(device, access): &(DeviceId, Access)| gpu_vmm_core::Grant {
                device: *device,
                access: *access,
            };
            pairs.iter().map(of).collect::<Vec<_>>()
        };
        let host = (DeviceId::HOST, Access::Read);
        assert_eq!(map(Restore::new()), grants(&[(DeviceId(0), Access::Read), (DeviceId(1), RW), host]));
        assert_eq!(map(Restore::new().all_on(DeviceId(3))), grants(&[(DeviceId(3), RW), host]));
        let swapped = Restore::new().device(DeviceId(0), DeviceId(1)).device(DeviceId(1), DeviceId(0));
        assert_eq!(map(swapped), grants(&[(DeviceId(0), RW), (DeviceId(1), Access::Read), host]));
        let fewer = Restore::new().without(DeviceId(1)).without(DeviceId::HOST);
        assert_eq!(map(fewer), grants(&[(DeviceId(0), Access::Read)]));
    }

    #[test]
    fn memory_is_somebodys() {
        let was = Properties::on(DeviceId(1)).located(Location::Host).shareable();
        let of = |options: Restore| {
            options.properties(Operation::Restore, &was).map_err(|error| error.to_string())
        };
        assert_eq!(of(Restore::new()), Ok(was));
        let bare = Restore::new().all_on(DeviceId(2)).memory(|_| Properties::on(DeviceId(9)));
        assert_eq!(of(bare), Ok(Properties::on(DeviceId(2))));
        assert!(of(Restore::new().without(DeviceId(1))).unwrap_err().contains("device 1"));
    }
}
