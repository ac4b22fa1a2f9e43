//! Options for restoring a snapshot: devices, memory properties and placement.

use crate::{Description, SnapshotError};
use gpu_vmm_core::{AccessMap, Backend, Detail, DeviceId, Error, Operation, Properties, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

#[allow(unused_imports)] // named in documentation
use crate::{Restored, SnapshotFile};

/// Options for restoring the regions of a snapshot.
///
/// By default regions are restored at their original addresses, each memory on the device of the same ordinal, with the original
/// access of each device. If that is not possible, restoring fails.
///
/// ```no_run
/// # use gpu_vmm_snapshot::{Restore, SnapshotFile};
/// # use gpu_vmm_core::{Backend, Bytes, DeviceId, Region, Result, StagingRing};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let ring = StagingRing::new(backend, 2, StagingRing::<B>::CHUNK)?;
/// let file = SnapshotFile::open("model.snapshot")?;
/// // All of it on one device, and at other addresses if the original ones are taken.
/// for restored in Restore::new().all_on(DeviceId(0)).relocate().regions(&file, &ring)? {
///     let (region, was) = (&restored.region, restored.was.base);
///     println!("{} is at {}, and was at {was}", region.tag(), region.address());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Thread safety
///
/// It is a plain value. Several threads may restore from one file at the same time; those that share a ring take turns.
#[derive(Clone, Debug, Default)]
pub struct Restore {
    /// The replacement of each device; `None` drops its access.
    devices: BTreeMap<DeviceId, Option<DeviceId>>,
    /// The replacement of all other devices.
    all: Option<DeviceId>,
    by_uuid: bool,
    memory: Option<Chosen>,
    relocate: bool,
}

/// Returns the properties for new memory from the original ones.
#[derive(Clone)]
struct Chosen(Arc<dyn Fn(Properties) -> Properties + Send + Sync>);

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chosen(..)")
    }
}

impl Restore {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps device `from` of the snapshot to device `to`: its memory and its access. If several devices map to one, that one gets
    /// the widest access of any of them. [`DeviceId::HOST`] is the CPU, which has access but no memory.
    #[must_use]
    pub fn device(mut self, from: DeviceId, to: DeviceId) -> Self {
        self.devices.insert(from, Some(to));
        self
    }

    /// Drops the access of this device, or of [the host](DeviceId::HOST).
    #[must_use]
    pub fn without(mut self, device: DeviceId) -> Self {
        self.devices.insert(device, None);
        self
    }

    /// Maps all devices without a mapping of their own to `to`. The host stays the host.
    #[must_use]
    pub fn all_on(mut self, to: DeviceId) -> Self {
        self.all = Some(to);
        self
    }

    /// Maps each device without a mapping of its own to the device of the target that has the same UUID, whatever its ordinal: the order
    /// of devices differs between processes with `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES`. A device without a UUID in the snapshot
    /// is mapped as without this option.
    ///
    /// A device that the target does not have is mapped to the one of [`Restore::all_on`]. Without that, restoring fails with
    /// [`SnapshotError::NoSuchDevice`] if the snapshot has memory or access of the device.
    #[must_use]
    pub fn by_uuid(mut self) -> Self {
        self.by_uuid = true;
        self
    }

    /// Sets a function that returns the properties for new memory from the original ones, for a target that lacks memory types of
    /// the source. The device in the returned value is ignored: the mapped device is used. The function is also called for the
    /// memory of future growth.
    ///
    /// Handle types and host memory are required: restoring fails if the target lacks them. Compression and remote DMA are
    /// requests; [`PhysicalMemory::properties`](gpu_vmm_core::PhysicalMemory::properties) reports whether they were granted.
    ///
    /// ```
    /// # use gpu_vmm_core::Properties;
    /// # mod gpu_vmm { pub use gpu_vmm_snapshot as snapshot; }
    /// use gpu_vmm::snapshot::Restore;
    /// // In the devices' own memory, not shareable.
    /// let options = Restore::new().memory(|was| Properties::on(was.device));
    /// ```
    #[must_use]
    pub fn memory(mut self, of: impl Fn(Properties) -> Properties + Send + Sync + 'static) -> Self {
        self.memory = Some(Chosen(Arc::new(of)));
        self
    }

    /// Allows a region to be restored at other addresses if its own are taken or not aligned for the target. [`Restored::was`]
    /// reports the original addresses; pointers in the contents are then wrong.
    #[must_use]
    pub fn relocate(mut self) -> Self {
        self.relocate = true;
        self
    }

    pub(crate) const fn may_relocate(&self) -> bool {
        self.relocate
    }

    /// Returns the options in which devices that are mapped by their UUIDs have a mapping.
    pub(crate) fn resolved<B: Backend>(
        &self,
        operation: Operation,
        backend: &B,
        description: &Description,
    ) -> Result<Self> {
        let mut resolved = self.clone();
        if !self.by_uuid {
            return Ok(resolved);
        }
        for record in description.devices.iter().filter(|record| !self.devices.contains_key(&record.id)) {
            let Some(uuid) = record.uuid else { continue };
            let same = backend.devices().iter().find(|device| device.uuid == Some(uuid));
            match same {
                Some(device) => {
                    resolved.devices.insert(record.id, Some(device.id));
                }
                None if self.all.is_some() || !description.uses(record.id) => {}
                None => {
                    let (device, name) = (record.id, record.name.clone());
                    let error = SnapshotError::NoSuchDevice { device, name, uuid };
                    return Err(Error::of_extension(operation, error));
                }
            }
        }
        Ok(resolved)
    }

    /// Returns the replacement of a device, or of the host.
    fn place_of(&self, device: DeviceId) -> Option<DeviceId> {
        let own = if device.is_host() { device } else { self.all.unwrap_or(device) };
        self.devices.get(&device).copied().unwrap_or(Some(own))
    }

    /// Returns the properties for new memory.
    pub(crate) fn properties(&self, operation: Operation, was: &Properties) -> Result<Properties> {
        let device = self.place_of(was.device).ok_or_else(|| {
            Error::new(
                operation,
                Detail::Unsupported {
                    reason: format!(
                        "the snapshot has memory of {}, which is left out; map it to another device",
                        was.device
                    ),
                },
            )
        })?;
        let moved = Properties { device, ..*was };
        Ok(Properties { device, ..self.memory.as_ref().map_or(moved, |Chosen(of)| of(moved)) })
    }

    /// Returns the access on the target's devices.
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
    fn each_memory_has_a_device() {
        let was = Properties::on(DeviceId(1)).located(Location::Host).shareable();
        let of = |options: Restore| {
            options.properties(Operation::Restore, &was).map_err(|error| error.to_string())
        };
        assert_eq!(of(Restore::new()), Ok(was));
        let bare = Restore::new().all_on(DeviceId(2)).memory(|_| Properties::on(DeviceId(9)));
        assert_eq!(of(bare), Ok(Properties::on(DeviceId(2))));
        let text = of(Restore::new().without(DeviceId(1))).unwrap_err();
        assert!(text.contains("device 1, which is left out; map it to another device"), "{text}");
    }
}
