//! Physical memory: `hipMemCreate` and `hipMemRelease`.
#![allow(unsafe_code)] // calls into HIP

use crate::attributes;
use crate::driver::Driver;
use crate::ffi;
use crate::ffi::{hipError_t, hipMemAllocationProp, hipMemGenericAllocationHandle_t};
use crate::quirks::{CREATE_ON_CURRENT_DEVICE, workaround_enabled};
use gpu_vmm_core::{
    Bytes, Detail, DeviceId, Error, FabricHandle, Handle, HandleTypes, Operation, Properties, Result,
};
use std::sync::Arc;

/// The platform's type for exported memory.
#[cfg(unix)]
use std::os::fd::OwnedFd as Exported;
#[cfg(windows)]
use std::os::windows::io::OwnedHandle as Exported;

/// Where a handle's memory is from.
#[derive(Debug)]
enum Source {
    /// This backend or other code of the process has created it.
    Created,
    /// The descriptor or Windows handle that was imported, if HIP may still read it later.
    #[cfg_attr(not(unix), allow(dead_code))] // keeps the handle open
    Imported(Option<Exported>),
}

/// A handle of physical memory from HIP (`hipMemGenericAllocationHandle_t`).
#[derive(Debug)]
pub struct HipHandle {
    pub(crate) driver: Arc<Driver>,
    raw: hipMemGenericAllocationHandle_t,
    size: Bytes,
    properties: Properties,
    source: Source,
}

// SAFETY: HIP takes a handle from any thread; this crate never dereferences the pointer.
unsafe impl Send for HipHandle {}
// SAFETY: as above; a shared reference allows mapping and exporting only, under the lock.
unsafe impl Sync for HipHandle {}

impl HipHandle {
    /// Creates memory with properties that the caller has checked. The handle's properties lack the flags that HIP
    /// ignores.
    pub(crate) fn create(driver: &Arc<Driver>, size: Bytes, properties: &Properties) -> Result<Self> {
        let given = attributes::given(driver, properties);
        Self::create_as(driver, size, &given, &ffi::allocation(&given))
    }

    /// Creates memory from HIP's description.
    pub(crate) fn create_as(
        driver: &Arc<Driver>,
        size: Bytes,
        properties: &Properties,
        allocation: &hipMemAllocationProp,
    ) -> Result<Self> {
        const OPERATION: Operation = Operation::CreateMemory;
        let _entered = driver.enter(OPERATION)?;
        let _current = workaround_enabled(&CREATE_ON_CURRENT_DEVICE)
            .then(|| driver.on(OPERATION, properties.device))
            .transpose()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: HIP reads the description and writes one handle; it returns an error for sizes that it refuses.
        let code = unsafe { (driver.hip.hipMemCreate)(&raw mut raw, size.0 as usize, allocation, 0) };
        let created = if properties.location.is_host() {
            driver.check(OPERATION, "hipMemCreate", code, || format!("{size} of {properties}"))
        } else {
            driver.check_memory(OPERATION, "hipMemCreate", code, properties.device, size)
        };
        let as_descriptor = properties.handle_types.contains(HandleTypes::FILE_DESCRIPTOR);
        if code == hipError_t::hipErrorNotSupported && as_descriptor {
            let version = driver.info().version;
            let reason = format!("HIP {version} cannot share memory; 6.2 and later can");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        created?;
        Ok(Self { driver: Arc::clone(driver), raw, size, properties: *properties, source: Source::Created })
    }

    /// Takes ownership of a handle that `hipMemImportFromShareableHandle` returned. The handle's properties lack the flags
    /// that HIP ignores.
    pub(crate) fn imported(
        driver: Arc<Driver>,
        raw: hipMemGenericAllocationHandle_t,
        size: Bytes,
        properties: Properties,
        from: Option<Exported>,
    ) -> Self {
        let properties = attributes::given(&driver, &properties);
        Self { driver, raw, size, properties, source: Source::Imported(from) }
    }

    /// Takes ownership of a reference that `hipMemRetainAllocationHandle` added.
    pub(crate) fn adopted(driver: &Arc<Driver>, raw: hipMemGenericAllocationHandle_t) -> Self {
        let properties = Properties::on(DeviceId(0));
        Self { driver: Arc::clone(driver), raw, size: Bytes::ZERO, properties, source: Source::Created }
    }

    /// Sets size and properties of memory that other code has created.
    pub(crate) const fn describe(&mut self, size: Bytes, properties: Properties) {
        (self.size, self.properties) = (size, properties);
    }

    /// Returns HIP's handle, valid while `self` lives.
    pub(crate) const fn raw(&self) -> hipMemGenericAllocationHandle_t {
        self.raw
    }

    pub(crate) const fn is_imported(&self) -> bool {
        matches!(self.source, Source::Imported(_))
    }

    /// Returns the imported descriptor, if it is still open.
    #[cfg(unix)]
    pub(crate) const fn imported_from(&self) -> Option<&Exported> {
        match &self.source {
            Source::Imported(from) => from.as_ref(),
            Source::Created => None,
        }
    }
}

// SAFETY: the created memory has this size and these properties.
unsafe impl Handle for HipHandle {
    fn size(&self) -> Bytes {
        self.size
    }

    fn properties(&self) -> Properties {
        self.properties
    }

    #[cfg(unix)]
    fn export(&self) -> Result<Exported> {
        self.export_descriptor()
    }

    #[cfg(windows)]
    fn export_win32(&self) -> Result<Exported> {
        self.export_handle()
    }

    fn export_fabric(&self) -> Result<FabricHandle> {
        self.export_for_fabric()
    }
}

impl Drop for HipHandle {
    fn drop(&mut self) {
        const OPERATION: Operation = Operation::ReleaseMemory;
        // In a forked child the memory belongs to the parent.
        let Ok(_entered) = self.driver.enter(OPERATION) else { return };
        // SAFETY: HIP created the handle, which is released once, here. Mappings hold references of their own.
        let code = unsafe { (self.driver.hip.hipMemRelease)(self.raw) };
        if let Err(error) = self.driver.check(OPERATION, "hipMemRelease", code, || self.size.to_string()) {
            self.driver.drop_log.record(error);
        }
    }
}
