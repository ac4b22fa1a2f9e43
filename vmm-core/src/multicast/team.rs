//! The object with its devices: created or imported, and this process's part of the team added.
#![allow(unsafe_code)]

use super::object::Object;
use super::{Multicast, MulticastBackend, MulticastDriver, MulticastGranularity};
use crate::driver::Handle;
use crate::types::{
    Bytes, Detail, DeviceId, Error, FabricHandle, HandleTypes, Operation, Properties, Result,
};

#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};

/// A team that is to be made: see [`Team::builder`].
#[derive(Debug, Clone)]
pub struct TeamBuilder<'a, B: MulticastBackend> {
    backend: &'a B,
    devices: Vec<DeviceId>,
    elsewhere: u32,
    size: Bytes,
    handle_types: HandleTypes,
}

/// What a builder's settings come to once they have been checked.
struct Plan<B: MulticastBackend> {
    driver: B::Driver,
    /// How many devices of all processes.
    team: u32,
    size: Bytes,
    properties: Properties,
    granularity: MulticastGranularity,
}

impl<'a, B: MulticastBackend> TeamBuilder<'a, B> {
    /// How many bytes of each device's memory can be bound; rounded up to the object's
    /// [minimum granularity](MulticastGranularity::minimum).
    #[must_use]
    pub fn size(mut self, size: Bytes) -> Self {
        self.size = size;
        self
    }

    /// One more device, of this process.
    #[must_use]
    pub fn device(mut self, device: DeviceId) -> Self {
        self.devices.push(device);
        self
    }

    /// How many devices other processes add. The object can then be exported, as a [native](HandleTypes::NATIVE) handle
    /// if nothing else is said.
    #[must_use]
    pub fn elsewhere(mut self, devices: u32) -> Self {
        self.elsewhere = devices;
        self
    }

    /// As what the object can be exported. To one that can be, the driver binds shareable memory alone.
    #[must_use]
    pub fn exported_as(mut self, types: HandleTypes) -> Self {
        self.handle_types |= types;
        self
    }

    /// In what such an object is made, and memory is bound to it. CUDA: `cuMulticastGetGranularity`.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    pub fn granularity(&self) -> Result<MulticastGranularity> {
        self.plan(Operation::QueryMulticast).map(|plan| plan.granularity)
    }

    /// Makes the object and adds this process's devices. CUDA: `cuMulticastCreate`, `cuMulticastAddDevice`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where the driver or one of the devices has no multicast, [`Detail::BadTeam`] for no device, one
    /// that is named twice, or too many in all, [`Detail::NoSuchDevice`], [`Detail::ZeroSize`], [`Detail::ExceedsDevice`] for more than
    /// a device has memory, or what the driver answers. Then there is no object.
    pub fn create(self) -> Result<Team<B>> {
        let plan = self.plan(Operation::CreateMulticast)?;
        // SAFETY: the size was rounded up and is not zero, and the device was checked and is added next.
        let handle = unsafe { plan.driver.create(plan.team, plan.size, &plan.properties) }?;
        self.join(plan, handle)
    }

    /// Takes in an object that another process has exported, and adds this process's devices. The descriptor can be closed
    /// afterwards. CUDA: `cuMemImportFromShareableHandle`, `cuMulticastAddDevice`.
    ///
    /// # Safety
    ///
    /// The descriptor is of a multicast object that was created with this size, so many devices in all, and these types of
    /// handle; and the processes together name as many devices as there are to be.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    #[cfg(unix)]
    pub unsafe fn import(self, fd: BorrowedFd<'_>) -> Result<Team<B>> {
        let plan = self.plan(Operation::ImportMulticast)?;
        // SAFETY: the caller vouches for the descriptor and what it stands for.
        let handle = unsafe { plan.driver.import(fd, plan.size, &plan.properties) }?;
        self.join(plan, handle)
    }

    /// The same from 64 bytes, on this machine or another one of its fabric.
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
        // SAFETY: the caller vouches for the bytes and what they stand for.
        let handle = unsafe { plan.driver.import_fabric(from, plan.size, &plan.properties) }?;
        self.join(plan, handle)
    }

    /// Checks everything, before there is anything.
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
        let too_large = || {
            Error::new(operation, Detail::AddressSpaceExhausted { size: self.size, limit: Bytes(u64::MAX) })
        };
        // The driver is asked about whole granules of memory, as others ask it.
        let asked = self.backend.granularity().round_up(self.size).ok_or_else(too_large)?;
        let granularity = driver.granularity(operation, team, asked, &properties)?;
        let size = granularity.minimum.round_up(self.size).ok_or_else(too_large)?;
        Ok(Plan { driver, team, size, properties, granularity })
    }

    /// Adds this process's devices; an object to which one could not be added is released.
    fn join(self, plan: Plan<B>, handle: B::Handle) -> Result<Team<B>> {
        for device in &self.devices {
            // SAFETY: the handle is the object's, and each device was checked and is named once.
            unsafe { plan.driver.add(&handle, *device) }?;
        }
        let Plan { driver, size, properties, granularity, .. } = plan;
        let backend = self.backend.clone();
        Ok(Team(Object::new(backend, driver, handle, size, properties, granularity, self.devices)))
    }
}

/// A multicast object to which all devices of this process have been added, and nothing is bound. CUDA: the handle that
/// `cuMulticastCreate` gives.
///
/// Dropping it releases the object.
#[derive(Debug)]
pub struct Team<B: MulticastBackend>(Object<B>);

impl<B: MulticastBackend> Team<B> {
    /// A team that is to be made on `backend`.
    pub fn builder(backend: &B) -> TeamBuilder<'_, B> {
        TeamBuilder {
            backend,
            devices: Vec::new(),
            elsewhere: 0,
            size: Bytes::ZERO,
            handle_types: HandleTypes::empty(),
        }
    }

    /// How many bytes of each device can be bound: what was asked for, rounded up. A process that imports says the same.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.0.size
    }

    /// The devices of this process.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.0.devices
    }

    /// A new file descriptor for the object, for another process of this machine. CUDA: `cuMemExportToShareableHandle`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where no device is [elsewhere](TeamBuilder::elsewhere) and no type of handle was asked for, or
    /// where the object was imported: CUDA exports from the process that created it.
    #[cfg(unix)]
    pub fn export(&self) -> Result<OwnedFd> {
        self.0.handle.export()
    }

    /// The object as 64 bytes, for another machine of the fabric.
    ///
    /// # Errors
    ///
    /// As for [`export`](Self::export).
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        self.0.handle.export_fabric()
    }

    /// Goes on to binding. Where devices are elsewhere, call it when their processes have said that theirs are added: the
    /// driver's next calls **block until all are**, and nothing ends that but the process's end. A process whose
    /// [`create`](TeamBuilder::create) or [`import`](TeamBuilder::import) failed must tell the others, so that they give up
    /// (as pytorch/pytorch#195596 had to learn).
    #[must_use]
    pub fn complete(self) -> Multicast<B> {
        Multicast::new(self.0)
    }
}
