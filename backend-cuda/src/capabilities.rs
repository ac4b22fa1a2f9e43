//! What a device can do, each thing found out by asking the driver and, where its answer alone is not to be trusted,
//! by trying it on one granule.
//!
//! Multicast is never tried (`multicast`): its objects are few and belong to the whole host.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::device::{attribute as ask, memory_of};
use crate::ffi::{COMPRESSION_GENERIC, CuResult, HANDLE_FABRIC, HANDLE_NONE, MemAllocationProp, attribute};
use crate::{CudaBackend, CudaHandle};
use gpu_vmm_core::{
    Access, Backend, Bytes, Capability, DeviceId, Error, Feature, FoundBy, Grant, Properties, Reservation,
    Result,
};

impl CudaBackend {
    /// The device's capabilities, found out by the first call that can.
    pub(crate) fn known_capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        const OPERATION: &str = "capabilities";
        self.here(OPERATION)?;
        let slot = self.slot(OPERATION, device)?;
        if let Some(known) = slot.capabilities.get() {
            return Ok(known.clone());
        }
        let found = match &self.devices()[device.0 as usize].unusable {
            Some(reason) => vec![Capability::no(Feature::VirtualMemory, FoundBy::Attribute, reason)],
            None => Probe { backend: self, device }.all()?,
        };
        Ok(slot.capabilities.get_or_init(|| found).clone())
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
            self.fabric_handle()?,
            self.backend.multicast_capability(self.device),
            Capability::no(
                Feature::HostAccess,
                FoundBy::Design,
                "device memory is mapped for devices alone; copy it to read it on the host",
            ),
            self.compression()?,
            self.by_attribute(Feature::RemoteDma, attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM, None),
            self.by_attribute(Feature::DmaBuf, attribute::DMA_BUF, Some("cuMemGetHandleForAddressRange")),
        ])
    }

    fn granule(&self) -> Bytes {
        self.backend.devices()[self.device.0 as usize].granularity.bytes()
    }

    /// Whether an attribute says yes; the reason where it does not.
    fn says(&self, number: u32) -> Result<(), String> {
        let slot = self.backend.slot("capabilities", self.device).map_err(|error| error.to_string())?;
        match ask(self.backend.functions(), slot.raw, number) {
            Ok(0) => Err(format!("device attribute {number} is 0")),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("asked for device attribute {number}, {error}")),
        }
    }

    /// A feature that the driver's word is taken for, since trying it would be of no use or do harm.
    fn by_attribute(&self, feature: Feature, number: u32, symbol: Option<&'static str>) -> Capability {
        match (self.says(number), symbol) {
            (Err(reason), _) => Capability::no(feature, FoundBy::Attribute, reason),
            (Ok(()), Some(symbol)) if !self.backend.inner.driver.loaded.has(symbol) => {
                Capability::no(feature, FoundBy::Version, format!("the driver has no {symbol}"))
            }
            (Ok(()), _) => Capability::yes(feature, FoundBy::Attribute, ""),
        }
    }

    fn virtual_memory(&self) -> Capability {
        let note = format!("granularity {}", self.granule());
        Capability::yes(Feature::VirtualMemory, FoundBy::Attribute, note)
    }

    /// A granule of the device's memory, made in this way; or what the driver said against it.
    fn create(&self, properties: Properties, prop: &MemAllocationProp) -> Result<Result<CudaHandle, String>> {
        // SAFETY: the device is usable, the size is its granularity, and `prop` is of the device.
        match unsafe { CudaHandle::create_as(self.backend, self.granule(), &properties, prop) } {
            Ok(handle) => Ok(Ok(handle)),
            Err(Error::Driver { source, .. }) => Ok(Err(source.to_string())),
            // Memory that is short, or a dead device, says nothing about the feature.
            Err(error) => Err(error),
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
                return Ok(Capability::yes(Feature::FixedAddress, FoundBy::Trial, note));
            }
            offered = format!("asked for {wanted}, which had just been given back, it gave {again}");
        }
        Ok(Capability::no(Feature::FixedAddress, FoundBy::Trial, offered))
    }

    fn read_only_access(&self) -> Result<Capability> {
        let granularity = self.backend.devices()[self.device.0 as usize].granularity;
        let (size, grant) = (granularity.bytes(), Grant { device: self.device, access: Access::Read });
        // SAFETY: the size is the granularity of the device, which is usable; one handle is mapped at the beginning of
        // a fresh reservation of its size, and taken out again as a whole. Nothing has ever used it.
        let tried = unsafe {
            let handle = self.backend.create(size, &Properties::on(self.device))?;
            let mut reservation = self.backend.reserve(size, granularity.into(), None)?;
            reservation.map(Bytes::ZERO, &handle)?;
            let read = reservation
                .set_access(Bytes::ZERO, size, &[grant])
                .and_then(|()| reservation.access(Bytes::ZERO, self.device));
            reservation.unmap(Bytes::ZERO, size)?;
            read
        };
        Ok(match tried {
            Ok(Access::Read) => Capability::yes(Feature::ReadOnlyAccess, FoundBy::Trial, ""),
            Ok(other) => Capability::no(
                Feature::ReadOnlyAccess,
                FoundBy::Trial,
                format!("set to read, the driver says that the access is {other}"),
            ),
            Err(Error::Driver { source, .. }) => {
                Capability::no(Feature::ReadOnlyAccess, FoundBy::Trial, source.to_string())
            }
            Err(error) => return Err(error),
        })
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
            (true, 1) => Capability::no(Feature::PeerAccess, FoundBy::Attribute, "there is no other device"),
            (true, _) => {
                Capability::no(Feature::PeerAccess, FoundBy::Attribute, "no other device can be reached")
            }
            (false, _) => {
                Capability::yes(Feature::PeerAccess, FoundBy::Attribute, format!("to {}", peers.join(", ")))
            }
        })
    }

    #[cfg(unix)]
    fn file_descriptor(&self) -> Result<Capability> {
        use gpu_vmm_core::Handle;
        let feature = Feature::FileDescriptor;
        if let Err(reason) = self.says(attribute::HANDLE_TYPE_FILE_DESCRIPTOR) {
            return Ok(Capability::no(feature, FoundBy::Attribute, reason));
        }
        let prop = memory_of(self.device, crate::ffi::HANDLE_FILE_DESCRIPTOR, 0);
        let tried = match self.create(Properties::on(self.device).shareable(), &prop)? {
            Ok(handle) => handle.export().map_err(|error| error.to_string()),
            Err(said) => Err(said),
        };
        Ok(match tried {
            Ok(_) => Capability::yes(feature, FoundBy::Trial, ""),
            Err(said) => Capability::no(feature, FoundBy::Trial, said),
        })
    }

    #[cfg(not(unix))]
    fn file_descriptor(&self) -> Result<Capability> {
        Ok(Capability::no(Feature::FileDescriptor, FoundBy::Design, "this system has no file descriptors"))
    }

    fn fabric_handle(&self) -> Result<Capability> {
        let feature = Feature::FabricHandle;
        if let Err(reason) = self.says(attribute::HANDLE_TYPE_FABRIC) {
            return Ok(Capability::no(feature, FoundBy::Attribute, reason));
        }
        let prop = memory_of(self.device, HANDLE_FABRIC, 0);
        Ok(match self.create(Properties::on(self.device), &prop)? {
            Ok(_) => Capability::yes(feature, FoundBy::Trial, ""),
            Err(said) => {
                let note = format!("the device attribute says yes, but {said}; {}", imex_channels());
                Capability::no(feature, FoundBy::Trial, note)
            }
        })
    }

    fn compression(&self) -> Result<Capability> {
        let feature = Feature::Compression;
        if let Err(reason) = self.says(attribute::GENERIC_COMPRESSION) {
            return Ok(Capability::no(feature, FoundBy::Attribute, reason));
        }
        let prop = memory_of(self.device, HANDLE_NONE, COMPRESSION_GENERIC);
        let handle = match self.create(Properties::on(self.device), &prop)? {
            Ok(handle) => handle,
            Err(said) => return Ok(Capability::no(feature, FoundBy::Trial, said)),
        };
        let mut got = memory_of(self.device, HANDLE_NONE, 0);
        // SAFETY: the pointer is good for the properties, and the handle is the driver's.
        let result =
            unsafe { (self.backend.functions().mem_get_allocation_properties)(&raw mut got, handle.raw) };
        Ok(match result {
            CuResult::SUCCESS if got.flags.compression_type == COMPRESSION_GENERIC => {
                Capability::yes(feature, FoundBy::Trial, "")
            }
            CuResult::SUCCESS => Capability::no(
                feature,
                FoundBy::Trial,
                "the driver made memory that is not compressible instead",
            ),
            result => {
                let said = crate::error::answer(
                    self.backend.functions(),
                    "cuMemGetAllocationPropertiesFromHandle",
                    result,
                );
                Capability::no(feature, FoundBy::Trial, said.to_string())
            }
        })
    }
}

/// Whether this process sees what fabric handles need beside the device: an IMEX channel.
fn imex_channels() -> String {
    const NAME: &str = "nvidia-caps-imex-channels";
    let driver = match std::fs::read_to_string("/proc/devices") {
        Ok(devices) if devices.contains(NAME) => "the kernel module has IMEX channels",
        Ok(_) => "the kernel module has no IMEX channels",
        Err(_) => "/proc/devices cannot be read",
    };
    let directory = format!("/dev/{NAME}");
    match std::fs::read_dir(&directory) {
        Ok(entries) => format!("{driver}, and {directory} has {} of them", entries.count()),
        Err(error) => format!("{driver}, and {directory}: {error}"),
    }
}
