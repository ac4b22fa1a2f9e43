//! What a device can do, each thing found out by asking the driver and, where its answer alone is not to be trusted,
//! by trying it on one granule.
//!
//! Multicast is never tried: its objects are few and belong to the whole host.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

mod handles;
mod memory;
mod multicast;

use crate::device::attribute as ask;
use crate::host::NO_HOST_ACCESS;
use crate::{CudaBackend, CudaHandle, CudaReservation};
use gpu_vmm_core::{
    Access, Backend, Bytes, Capability, Detail, DeviceId, DriverError, Error, Evidence, Feature, Grant,
    MemoryCalls, Operation, Properties, Reservation, Result,
};

const OPERATION: Operation = Operation::QueryCapabilities;

impl CudaBackend {
    /// The device's capabilities, found out by the first call that can try all of them: one thing is not tried where the
    /// device has no context yet.
    pub(crate) fn known_capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        self.here(OPERATION)?;
        let slot = self.slot(OPERATION, device)?;
        if let Some(known) = slot.capabilities.get() {
            return Ok(known.clone());
        }
        let tries_all = self.existing_context(OPERATION, device)?.is_some();
        let found = match &self.devices()[device.0 as usize].unusable {
            Some(reason) => vec![Capability::no(Feature::VirtualMemory, Evidence::Attribute, reason)],
            None => Probe { backend: self, device }.all()?,
        };
        Ok(if tries_all { slot.capabilities.get_or_init(|| found).clone() } else { found })
    }
}

/// Asks and tries things of one device.
struct Probe<'a> {
    backend: &'a CudaBackend,
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

    /// An attribute of the device; an error where the driver does not know it.
    fn attribute(&self, number: u32) -> Result<Result<i32, DriverError>> {
        let slot = self.backend.slot(OPERATION, self.device)?;
        Ok(ask(self.backend.functions(), slot.raw, number))
    }

    /// What speaks against memory of a kind without trying it: the driver's version, or an attribute that says no. One
    /// that the driver does not know says nothing.
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

    /// Maps a granule of such memory for a moment, for those to use that are named, and looks at it.
    fn mapped<T>(
        &self,
        properties: &Properties,
        grants: &[Grant],
        look: impl FnOnce(&mut CudaReservation, Bytes) -> Result<T>,
    ) -> Result<T> {
        let granularity = self.backend.granularity_of(OPERATION, properties)?;
        let size = granularity.bytes();
        // SAFETY: the size is the granularity of such memory, of a device that is usable; one handle is mapped at the
        // beginning of a fresh reservation of its size, and taken out again as a whole. Nothing has ever used it.
        unsafe {
            let handle = self.backend.create(size, properties)?;
            let mut reservation = self.backend.reserve(size, granularity.into(), None)?;
            reservation.map(Bytes::ZERO, &handle)?;
            let looked =
                reservation.set_access(Bytes::ZERO, size, grants).and_then(|()| look(&mut reservation, size));
            reservation.unmap(Bytes::ZERO, size)?;
            looked
        }
    }

    /// A granule of such memory, which is mapped nowhere.
    fn create(&self, properties: &Properties) -> Result<CudaHandle> {
        let size = self.backend.granularity_of(OPERATION, properties)?.bytes();
        // SAFETY: the device is usable, and the size is the granularity of such memory.
        unsafe { self.backend.create(size, properties) }
    }

    /// What a trial has shown: a note, or what speaks against the feature. Memory that is short, or a dead device, says
    /// nothing about it.
    fn tried(feature: Feature, tried: Result<String>) -> Result<Capability> {
        match tried {
            Ok(note) => Ok(Capability::yes(feature, Evidence::Trial, note)),
            Err(error) => said_against(error).map(|said| Capability::no(feature, Evidence::Trial, said)),
        }
    }

    fn fixed_address(&self) -> Result<Capability> {
        const TRIES: u32 = 3;
        let granularity = self.backend.devices()[self.device.0 as usize].granularity;
        let reserve = |hint| {
            // SAFETY: size and hint are multiples of the granularity.
            unsafe { self.backend.reserve(granularity.bytes(), granularity.into(), hint) }
        };
        let mut offered = String::new();
        // Between giving an address back and asking for it, another thread may have taken it.
        for _ in 0..TRIES {
            let wanted = reserve(None)?.range().base;
            let again = reserve(Some(wanted))?.range().base;
            if again == wanted {
                let note = "a hint that is taken is moved without an error";
                return Ok(Capability::yes(Feature::FixedAddress, Evidence::Trial, note));
            }
            offered = format!("asked for {wanted}, which had just been given back, it gave {again}");
        }
        Ok(Capability::no(Feature::FixedAddress, Evidence::Trial, offered))
    }

    fn read_only_access(&self) -> Result<Capability> {
        let feature = Feature::ReadOnlyAccess;
        let grant = Grant { device: self.device, access: Access::Read };
        let told = self.mapped(&Properties::on(self.device), &[grant], |reservation, _| {
            // SAFETY: a granule is mapped there, and the device exists.
            unsafe { reservation.access(Bytes::ZERO, self.device) }
        });
        match told {
            Ok(other) if other != Access::Read => {
                let said = format!("set to read, the driver says that the access is {other}");
                Ok(Capability::no(feature, Evidence::Trial, said))
            }
            told => Self::tried(feature, told.map(|_| String::new())),
        }
    }

    fn peer_access(&self) -> Result<Capability> {
        let mut peers = Vec::new();
        let others = self.backend.devices().iter().map(|device| device.id).filter(|id| *id != self.device);
        for other in others {
            if self.backend.can_access(self.device, other)? {
                peers.push(other.to_string());
            }
        }
        Ok(match (peers.is_empty(), self.backend.devices().len()) {
            (true, 1) => Capability::no(Feature::PeerAccess, Evidence::Attribute, "there is no other device"),
            (true, _) => {
                Capability::no(Feature::PeerAccess, Evidence::Attribute, "no other device can be reached")
            }
            (false, _) => {
                Capability::yes(Feature::PeerAccess, Evidence::Attribute, format!("to {}", peers.join(", ")))
            }
        })
    }
}

/// What a failed trial says against a feature.
fn said_against(error: Error) -> Result<String> {
    match error.detail() {
        Detail::Driver { source, .. } => Ok(source.to_string()),
        Detail::Unsupported { reason } => Ok(reason.clone()),
        _ => Err(error),
    }
}
