//! Creating or importing a multicast object, and adding the devices of this process.
#![allow(unsafe_code)]

use super::object::Object;
use super::{Multicast, MulticastBackend, MulticastDriver, MulticastGranularity};
use crate::driver::Handle;
use crate::types::{
    Bytes, Detail, DeviceId, Error, FabricHandle, HandleTypes, Operation, Properties, Result,
};

#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};

/// The settings of a new team; see [`Team::builder`].
#[derive(Debug, Clone)]
pub struct TeamBuilder<'a, B: MulticastBackend> {
    backend: &'a B,
    devices: Vec<DeviceId>,
    elsewhere: u32,
    size: Bytes,
    handle_types: HandleTypes,
}

/// The checked settings of a builder.
struct Plan<B: MulticastBackend> {
    driver: B::Driver,
    /// The number of devices of all processes.
    team: u32,
    size: Bytes,
    properties: Properties,
    granularity: MulticastGranularity,
}

impl<'a, B: MulticastBackend> TeamBuilder<'a, B> {
    /// Sets the number of bytes that can be bound for each device, rounded up to the object's
    /// [minimum granularity](MulticastGranularity::minimum).
    #[must_use]
    pub fn size(mut self, size: Bytes) -> Self {
        self.size = size;
        self
    }

    /// Adds a device of this process.
    #[must_use]
    pub fn device(mut self, device: DeviceId) -> Self {
        self.devices.push(device);
        self
    }

    /// Sets the number of devices that other processes add. The object can then be exported, as a
    /// [native](HandleTypes::NATIVE) handle by default.
    #[must_use]
    pub fn elsewhere(mut self, devices: u32) -> Self {
        self.elsewhere = devices;
        self
    }

    /// Adds handle types as which the object can be exported. The driver binds only shareable memory to such an object.
    #[must_use]
    pub fn exported_as(mut self, types: HandleTypes) -> Self {
        self.handle_types |= types;
        self
    }

    /// Returns the granularities of such an object. CUDA: `cuMulticastGetGranularity`.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    pub fn granularity(&self) -> Result<MulticastGranularity> {
        self.plan(Operation::QueryMulticast).map(|plan| plan.granularity)
    }

    /// Creates the object and adds the devices of this process. CUDA: `cuMulticastCreate`, `cuMulticastAddDevice`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the driver or one of the devices has no multicast, [`Detail::BadTeam`] for no device, a device
    /// that was added twice, or too many devices, [`Detail::NoSuchDevice`], [`Detail::ZeroSize`], [`Detail::ExceedsDevice`] for a
    /// size above the memory of a device, or the driver's error. There is no object then.
    pub fn create(self) -> Result<Team<B>> {
        let plan = self.plan(Operation::CreateMulticast)?;
        // SAFETY: the size was rounded up and is not zero, and the device was checked and is added next.
        let handle = unsafe { plan.driver.create(plan.team, plan.size, &plan.properties) }?;
        self.join(plan, handle)
    }

    /// Imports an object that another process has exported, and adds the devices of this process. The caller can close the
    /// descriptor afterwards. CUDA: `cuMemImportFromShareableHandle`, `cuMulticastAddDevice`.
    ///
    /// # Safety
    ///
    /// The descriptor must belong to a multicast object that was created with this size, this number of devices in all, and these
    /// handle types. All processes together must add that number of devices.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    #[cfg(unix)]
    pub unsafe fn import(self, fd: BorrowedFd<'_>) -> Result<Team<B>> {
        let plan = self.plan(Operation::ImportMulticast)?;
        // SAFETY: the caller guarantees that the descriptor belongs to such an object.
        let handle = unsafe { plan.driver.import(fd, plan.size, &plan.properties) }?;
        self.join(plan, handle)
    }

    /// Imports an object from the 64 bytes of a fabric handle, on this machine or another one of its fabric.
    ///
    /// # Safety
    ///
    /// As for [`import`](Self::import).
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    pub unsafe fn import_fabric(self, from: &FabricHandle) -> Result<Team<B>> {
        let plan = self.plan(Operation::ImportMulticast)?;
        // SAFETY: the caller guarantees that the bytes name such an object.
        let handle = unsafe { plan.driver.import_fabric(from, plan.size, &plan.properties) }?;
        self.join(plan, handle)
    }

    /// Checks the settings.
    fn plan(&self, operation: Operation) -> Result<Plan<B>> {
        let driver = self.backend.multicast(operation)?;
        let bad = |why: String| Err(Error::new(operation, Detail::BadTeam { why }));
        let Some(first) = self.devices.first() else {
            return bad("no device of this process is in the team; add at least one".to_owned());
        };
        if self.size.is_zero() {
            return Err(Error::new(operation, Detail::ZeroSize));
        }
        for (place, device) in self.devices.iter().enumerate() {
            let total = self.backend.device(operation, *device)?.total_memory;
            if self.devices[..place].contains(device) {
                return bad(format!("{device} is in the team twice"));
            }
            driver.check_device(operation, *device)?;
            if self.size > total {
                return Err(Error::new(
                    operation,
                    Detail::ExceedsDevice { requested: self.size, device: *device, total },
                ));
            }
        }
        let here = self.devices.len() as u32;
        let Some(team) = here.checked_add(self.elsewhere) else {
            return bad(format!("{here} devices here and {} elsewhere are too many", self.elsewhere));
        };
        let default = if self.elsewhere > 0 && self.handle_types.is_empty() {
            HandleTypes::NATIVE
        } else {
            HandleTypes::empty()
        };
        let properties = Properties::on(*first).exported_as(self.handle_types | default);
        let too_large =
            || Error::new(operation, Detail::ExceedsAddressSpace { size: self.size, limit: Bytes(u64::MAX) });
        // Other programs ask the driver about whole granules of memory, so this does too.
        let size = self.backend.granularity().round_up(self.size).ok_or_else(too_large)?;
        let granularity = driver.granularity(operation, team, size, &properties)?;
        let size = granularity.minimum.round_up(self.size).ok_or_else(too_large)?;
        Ok(Plan { driver, team, size, properties, granularity })
    }

    /// Adds the devices of this process. Releases the object if one cannot be added.
    fn join(self, plan: Plan<B>, handle: B::Handle) -> Result<Team<B>> {
        for device in &self.devices {
            // SAFETY: the handle is the object's. Each device was checked and occurs once.
            unsafe { plan.driver.add(&handle, *device) }?;
        }
        let Plan { driver, size, properties, granularity, .. } = plan;
        let backend = self.backend.clone();
        Ok(Team(Object::new(backend, driver, handle, size, properties, granularity, self.devices)))
    }
}

/// A multicast object that has all devices of this process and no bindings. CUDA: the handle that `cuMulticastCreate` returns.
///
/// Dropping it releases the object.
#[derive(Debug)]
pub struct Team<B: MulticastBackend>(Object<B>);

impl<B: MulticastBackend> Team<B> {
    /// Returns the settings of a new team on `backend`.
    pub fn builder(backend: &B) -> TeamBuilder<'_, B> {
        TeamBuilder {
            backend,
            devices: Vec::new(),
            elsewhere: 0,
            size: Bytes::ZERO,
            handle_types: HandleTypes::empty(),
        }
    }

    /// Returns the number of bytes that can be bound for each device: the requested size, rounded up. Importing processes set the
    /// same size.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.0.size
    }

    /// Returns the devices of this process.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.0.devices
    }

    /// Exports the object as a new file descriptor, for another process of this machine. CUDA: `cuMemExportToShareableHandle`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if no device is [elsewhere](TeamBuilder::elsewhere) and no handle type was set, and for an imported
    /// object: CUDA exports only in the process that created it.
    #[cfg(unix)]
    pub fn export(&self) -> Result<OwnedFd> {
        self.0.handle.export()
    }

    /// Exports the object as the 64 bytes of a fabric handle, for another machine of the fabric.
    ///
    /// # Errors
    ///
    /// As for [`export`](Self::export).
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        self.0.handle.export_fabric()
    }

    /// Ends the adding of devices. If other processes add devices, call this after their messages that all are added: the driver's
    /// next calls **block until all are added**, and only the end of the process ends that. A process whose
    /// [`create`](TeamBuilder::create) or [`import`](TeamBuilder::import) failed must send that to the others, so that they stop
    /// (see pytorch/pytorch#195596).
    #[must_use]
    pub fn complete(self) -> Multicast<B> {
        Multicast::new(self.0)
    }
}
