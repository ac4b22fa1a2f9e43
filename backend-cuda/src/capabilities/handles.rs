//! Capabilities of exporting memory.
#![allow(unsafe_code)]

#[cfg(unix)]
use super::OPERATION;
use super::Probe;
use crate::ffi::attribute;
use gpu_vmm_core::{Capability, Evidence, Feature, Handle, HandleTypes, Properties, Result};

#[cfg(unix)]
use gpu_vmm_core::{Access, Bytes, Grant, Reservation};

impl Probe<'_> {
    #[cfg(unix)]
    pub(super) fn file_descriptor(&self) -> Result<Capability> {
        let feature = Feature::FileDescriptor;
        let memory = Properties::on(self.device).exported_as(HandleTypes::FILE_DESCRIPTOR);
        if let Some(no) = self.excluded(feature, &memory, attribute::HANDLE_TYPE_FILE_DESCRIPTOR)? {
            return Ok(no);
        }
        let exported = self.create(&memory).and_then(|handle| handle.export());
        Capability::tried(feature, exported.map(|_| ""))
    }

    #[cfg(not(unix))]
    pub(super) fn file_descriptor(&self) -> Result<Capability> {
        let reason = HandleTypes::FILE_DESCRIPTOR.missing_here().unwrap_or_default();
        Ok(Capability::no(Feature::FileDescriptor, Evidence::Design, reason))
    }

    #[cfg(windows)]
    pub(super) fn win32_handle(&self) -> Result<Capability> {
        let feature = Feature::Win32Handle;
        let memory = Properties::on(self.device).exported_as(HandleTypes::WIN32);
        if let Some(no) = self.excluded(feature, &memory, attribute::HANDLE_TYPE_WIN32)? {
            return Ok(no);
        }
        let exported = self.create(&memory).and_then(|handle| handle.export_win32());
        Capability::tried(feature, exported.map(|_| ""))
    }

    #[cfg(not(windows))]
    #[allow(clippy::unnecessary_wraps)] // as it is on Windows
    pub(super) fn win32_handle(&self) -> Result<Capability> {
        let reason = HandleTypes::WIN32.missing_here().unwrap_or_default();
        Ok(Capability::no(Feature::Win32Handle, Evidence::Design, reason))
    }

    /// The attribute can be 1 although the driver then permits no handle, for lack of an IMEX channel: quirk `fabric-attribute`.
    pub(super) fn fabric_handle(&self) -> Result<Capability> {
        let feature = Feature::FabricHandle;
        let memory = Properties::on(self.device).exported_as(HandleTypes::FABRIC);
        if let Some(no) = self.excluded(feature, &memory, attribute::HANDLE_TYPE_FABRIC)? {
            return Ok(no);
        }
        let exported = self.create(&memory).and_then(|handle| handle.export_fabric());
        let mut found = Capability::tried(feature, exported.map(|_| ""))?;
        if !found.available {
            found.note = format!("the device attribute is 1, but: {}", found.note);
        }
        Ok(found)
    }

    #[cfg(unix)]
    pub(super) fn dma_buf(&self) -> Result<Capability> {
        let feature = Feature::DmaBuf;
        if self.backend.driver.loaded.mem_get_handle_for_address_range.is_none() {
            return Ok(Capability::no(feature, Evidence::Version, crate::dma_buf::NO_FUNCTION));
        }
        let memory = Properties::on(self.device);
        if let Some(no) = self.excluded(feature, &memory, attribute::DMA_BUF)? {
            return Ok(no);
        }
        if self.backend.existing_context(OPERATION, self.device)?.is_none() {
            let note = "not tried, since that would make a context on the device";
            return Ok(Capability::yes(feature, Evidence::Attribute, note));
        }
        let grant = Grant { device: self.device, access: Access::ReadWrite };
        let exported = self.mapped(&memory, &[grant], |reservation, size| {
            // SAFETY: one granule is mapped there.
            unsafe { reservation.dma_buf(self.device, Bytes::ZERO, size) }
        });
        Capability::tried(feature, exported.map(|_| ""))
    }

    #[cfg(not(unix))]
    pub(super) fn dma_buf(&self) -> Result<Capability> {
        Ok(Capability::no(Feature::DmaBuf, Evidence::Design, "DMA-BUFs exist on Linux only"))
    }
}
