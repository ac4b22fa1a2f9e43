//! The capabilities of a device. The driver is asked about each, and a capability is tried on one granule if the driver's answer
//! alone is not reliable.
//!
//! Multicast is never tried: objects are few and are shared by the whole host.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

mod handles;
mod memory;
mod multicast;

use crate::device::attribute as ask;
use crate::driver::Opened;
use crate::handle::CudaHandle;
use crate::host::NO_HOST_ACCESS;
use crate::reservation::CudaReservation;
use gpu_vmm_core::{
    Access, Address, Bytes, Capability, DeviceId, DriverError, Evidence, Feature, Grant, Operation,
    Properties, Reservation, Result,
};
use std::sync::Arc;

const OPERATION: Operation = Operation::QueryCapabilities;

impl Opened {
    /// Returns the device's capabilities. They are stored by the first call that can try all of them: one is not tried while the
    /// device has no context.
    pub(crate) fn known_capabilities(self: &Arc<Self>, device: DeviceId) -> Result<Vec<Capability>> {
        self.here(OPERATION)?;
        let state = self.state(OPERATION, device)?;
        if let Some(known) = state.capabilities.get() {
            return Ok(known.clone());
        }
        let tries_all = self.existing_context(OPERATION, device)?.is_some();
        let described = &self.devices()[device.0 as usize];
        let found = match described.unusable.as_ref().or(described.no_virtual_memory.as_ref()) {
            Some(reason) => vec![Capability::no(Feature::VirtualMemory, Evidence::Attribute, reason)],
            None => Probe { backend: self, device }.all()?,
        };
        Ok(if tries_all { state.capabilities.get_or_init(|| found).clone() } else { found })
    }
}

/// Queries and tries the capabilities of one device.
struct Probe<'a> {
    backend: &'a Arc<Opened>,
    device: DeviceId,
}

impl Probe<'_> {
    fn all(&self) -> Result<Vec<Capability>> {
        Ok(vec![
            self.virtual_memory(),
            self.fixed_address()?,
            self.read_only_access()?,
            self.peer_access()?,
            self.file_descriptor()?,
            self.win32_handle()?,
            self.fabric_handle()?,
            self.backend.multicast_capability(self.device),
            Capability::no(Feature::HostAccess, Evidence::Design, NO_HOST_ACCESS),
            self.host_memory()?,
            self.host_node_memory()?,
            self.compression()?,
            self.remote_dma()?,
            self.dma_buf()?,
        ])
    }

    fn granule(&self) -> Bytes {
        self.backend.devices()[self.device.0 as usize].granularity.bytes()
    }

    /// Queries an attribute of the device. The inner result is an error if the driver does not know the attribute.
    fn attribute(&self, number: u32) -> Result<Result<i32, DriverError>> {
        let state = self.backend.state(OPERATION, self.device)?;
        Ok(ask(self.backend.functions(), state.raw, number))
    }

    /// Returns why memory of a type is unavailable, as far as that is known without trying: from the driver's version, or from an
    /// attribute that is 0. An attribute that the driver does not know decides nothing.
    fn excluded(&self, feature: Feature, memory: &Properties, number: u32) -> Result<Option<Capability>> {
        if let Some(reason) = self.backend.why_none(memory) {
            return Ok(Some(Capability::no(feature, Evidence::Version, reason)));
        }
        let says_no = matches!(self.attribute(number)?, Ok(0));
        let reason = || format!("device attribute {number} is 0");
        Ok(says_no.then(|| Capability::no(feature, Evidence::Attribute, reason())))
    }

    fn virtual_memory(&self) -> Capability {
        let note = format!("granularity {}", self.granule());
        Capability::yes(Feature::VirtualMemory, Evidence::Attribute, note)
    }

    /// Maps a granule of such memory with these grants, calls `look` on it, and unmaps it.
    fn mapped<T>(
        &self,
        properties: &Properties,
        grants: &[Grant],
        look: impl FnOnce(&mut CudaReservation, Bytes) -> Result<T>,
    ) -> Result<T> {
        let granularity = self.backend.granularity_of_kind(OPERATION, properties)?;
        let size = granularity.bytes();
        // SAFETY: the size is the granularity of such memory, of a usable device; one handle is mapped at the beginning of a new
        // reservation of its size and unmapped as a whole. No work has ever used it.
        unsafe {
            let handle = CudaHandle::create(self.backend, size, properties)?;
            let mut reservation = CudaReservation::new(self.backend, size, granularity.into(), None)?;
            reservation.map(Bytes::ZERO, &handle)?;
            let looked =
                reservation.set_access(Bytes::ZERO, size, grants).and_then(|()| look(&mut reservation, size));
            reservation.unmap(Bytes::ZERO, size)?;
            looked
        }
    }

    /// Creates a granule of such memory and maps it nowhere.
    fn create(&self, properties: &Properties) -> Result<CudaHandle> {
        let size = self.backend.granularity_of_kind(OPERATION, properties)?.bytes();
        // SAFETY: the device is usable, and the size is the granularity of such memory.
        unsafe { CudaHandle::create(self.backend, size, properties) }
    }

    fn fixed_address(&self) -> Result<Capability> {
        const TRIES: u32 = 3;
        let granularity = self.backend.devices()[self.device.0 as usize].granularity;
        let reserve = |hint| {
            // SAFETY: size and hint are multiples of the granularity.
            unsafe { CudaReservation::reserve(self.backend, granularity.bytes(), granularity.into(), hint) }
        };
        let mut offered = String::new();
        // Another thread may take the address between freeing it and requesting it.
        for _ in 0..TRIES {
            let wanted = reserve(Address(0))?.range().base;
            let again = reserve(wanted)?.range().base;
            if again == wanted {
                let note = "a hint whose addresses are taken is moved without an error";
                return Ok(Capability::yes(Feature::FixedAddress, Evidence::Trial, note));
            }
            offered = format!("asked for {wanted}, which had just been freed, the driver returned {again}");
        }
        Ok(Capability::no(Feature::FixedAddress, Evidence::Trial, offered))
    }

    fn read_only_access(&self) -> Result<Capability> {
        let feature = Feature::ReadOnlyAccess;
        let grant = Grant { device: self.device, access: Access::Read };
        let reported = self.mapped(&Properties::on(self.device), &[grant], |reservation, _| {
            // SAFETY: a granule is mapped there, and the device exists.
            unsafe { reservation.access(Bytes::ZERO, self.device) }
        });
        match reported {
            Ok(other) if other != Access::Read => {
                let said = format!("access was set to read, but the driver reports {other}");
                Ok(Capability::no(feature, Evidence::Trial, said))
            }
            reported => Capability::tried(feature, reported.map(|_| "")),
        }
    }

    fn peer_access(&self) -> Result<Capability> {
        let mut peers = Vec::new();
        let others = self.backend.devices().iter().map(|device| device.id).filter(|id| *id != self.device);
        for other in others {
            if self.backend.can_access_peer(self.device, other)? {
                peers.push(other);
            }
        }
        Ok(Capability::peer_access(&peers, self.backend.devices().len() - 1))
    }
}
