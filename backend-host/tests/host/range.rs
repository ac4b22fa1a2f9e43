//! Wrappers of the traits' unsafe calls: the host backend checks every range itself, and the tests access mapped memory only by
//! copies.

use crate::GRANULE;
use gpu_vmm_core::{
    Access, Address, Alignment, Backend, Bytes, CopyCalls, DeviceId, Grant, Handle, MemoryCalls, Properties,
    Reservation, Result,
};
use gpu_vmm_host::{HostBackend, HostHandle, HostReservation};

pub(crate) fn create(host: &HostBackend, device: DeviceId, size: Bytes) -> Result<HostHandle> {
    create_as(host, size, Properties::on(device))
}

pub(crate) fn create_as(host: &HostBackend, size: Bytes, properties: Properties) -> Result<HostHandle> {
    // SAFETY: the tests create whole granules on devices that exist; the backend refuses other devices.
    unsafe { host.create(size, &properties) }
}

/// Returns the properties of a device's memory, shareable or not.
pub(crate) fn properties_of(device: DeviceId, shareable: bool) -> Properties {
    let properties = Properties::on(device);
    if shareable { properties.shareable() } else { properties }
}

pub(crate) fn free(host: &HostBackend, device: DeviceId) -> Bytes {
    host.memory_info(device).unwrap().free
}

/// A reservation, and the backend for copies in it.
pub(crate) struct Range {
    pub(crate) host: HostBackend,
    pub(crate) inner: HostReservation,
}

impl Range {
    pub(crate) fn new(host: &HostBackend, size: Bytes) -> Self {
        Self::aligned(host, size, GRANULE, None).unwrap()
    }

    pub(crate) fn aligned(
        host: &HostBackend,
        size: Bytes,
        alignment: Bytes,
        hint: Option<u64>,
    ) -> Result<Self> {
        let alignment = Alignment::new(alignment).unwrap();
        // SAFETY: the tests reserve whole granules; invalid hints are among the tested cases.
        let inner = unsafe { host.reserve(size, alignment, hint.map(Address)) }?;
        Ok(Self { host: host.clone(), inner })
    }

    pub(crate) fn at(&self, offset: Bytes) -> Address {
        self.inner.range().base + offset
    }

    pub(crate) fn map(&mut self, offset: Bytes, handle: &HostHandle) -> Result<()> {
        // SAFETY: the backend refuses ranges that are outside or taken.
        unsafe { self.inner.map(offset, handle) }
    }

    pub(crate) fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        // SAFETY: the backend refuses ranges that are not whole mappings; copies are complete when they return.
        unsafe { self.inner.unmap(offset, length) }
    }

    pub(crate) fn grant(
        &mut self,
        offset: Bytes,
        length: Bytes,
        device: DeviceId,
        access: Access,
    ) -> Result<()> {
        // SAFETY: as for unmap.
        unsafe { self.inner.set_access(offset, length, &[Grant { device, access }]) }
    }

    pub(crate) fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: the backend refuses offsets at which nothing is mapped.
        unsafe { self.inner.access(offset, device) }
    }

    pub(crate) fn write(&self, device: DeviceId, offset: Bytes, bytes: &[u8]) -> Result<()> {
        // SAFETY: the backend refuses memory that is not mapped or not accessible; each test has its range for itself.
        unsafe { self.host.copy_from_host(device, self.at(offset), bytes) }
    }

    pub(crate) fn read(&self, device: DeviceId, offset: Bytes, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0xEE; length];
        // SAFETY: as for write.
        unsafe { self.host.copy_to_host(device, &mut bytes, self.at(offset)) }?;
        Ok(bytes)
    }

    pub(crate) fn fill(&self, device: DeviceId, offset: Bytes, length: Bytes, value: u8) -> Result<()> {
        // SAFETY: as for write.
        unsafe { self.host.fill(device, self.at(offset), length, value) }
    }

    /// Maps a handle with read and write access for its owner.
    pub(crate) fn put(&mut self, offset: Bytes, handle: &HostHandle) {
        self.map(offset, handle).unwrap();
        self.grant(offset, handle.size(), handle.properties().device, Access::ReadWrite).unwrap();
    }
}
