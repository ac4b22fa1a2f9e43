//! Physical memory: `cuMemCreate`, `cuMemRelease`, and adopting imported memory.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::{LOCATION_DEVICE, LOCATION_INVISIBLE, MemAllocationProp, MemLocation};
use crate::memory_types::{Reported, allocation_prop, is_compressible, is_remote_dma, location};
use gpu_vmm_core::{Bytes, Detail, Error, FabricHandle, Handle, HandleTypes, Operation, Properties, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// A handle of physical memory of one device or of the host. CUDA: `CUmemGenericAllocationHandle`.
///
/// Dropping it releases the handle; the driver frees the memory when its last mapping is also gone. In a forked child dropping does
/// nothing.
#[derive(Debug)]
pub struct CudaHandle {
    pub(crate) backend: Arc<Opened>,
    pub(crate) raw: u64,
    size: Bytes,
    properties: Properties,
    /// CUDA exports memory that this process created, but not memory that it imported.
    imported: bool,
}

/// The kind of object that is imported, which decides how its location is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ImportSource {
    /// Memory of this machine.
    ThisMachine,
    /// Memory of this or another machine, possibly on a device that this process does not see.
    Fabric,
    /// A multicast object, which has no location.
    Multicast,
}

impl CudaHandle {
    /// Creates memory.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::create`](gpu_vmm_core::MemoryCalls::create).
    pub(crate) unsafe fn create(backend: &Arc<Opened>, size: Bytes, properties: &Properties) -> Result<Self> {
        const OPERATION: Operation = Operation::CreateMemory;
        backend.here(OPERATION)?;
        let prop = backend.prop(OPERATION, properties)?;
        #[cfg(windows)]
        let prop = crate::win32::security::with_attributes(OPERATION, prop)?;
        let mut raw = 0;
        // SAFETY: both pointers are valid for their types; size and device are right by the caller's promise.
        let result =
            unsafe { (backend.functions().mem_create)(&raw mut raw, size.0 as usize, &raw const prop, 0) };
        backend.check_kind(OPERATION, "cuMemCreate", result, size, properties)?;
        let mut handle = Self::own(backend, raw, size, properties, false);
        if properties.compressible || properties.remote_dma {
            // The driver may ignore both requests.
            let reported = handle.reported(OPERATION)?;
            handle.properties.compressible = is_compressible(&reported);
            handle.properties.remote_dma = is_remote_dma(&reported);
        }
        Ok(handle)
    }

    /// Imports memory. If the driver reports another location than the caller's `properties`, the memory is released again.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::import`](gpu_vmm_core::MemoryCalls::import), and `shareable` is a handle of this type in the form that
    /// `cuda.h` requires.
    pub(crate) unsafe fn import_as(
        backend: &Arc<Opened>,
        shareable: *mut c_void,
        handle_type: u32,
        source: ImportSource,
        size: Bytes,
        properties: &Properties,
    ) -> Result<Self> {
        let operation = match source {
            ImportSource::Multicast => Operation::ImportMulticast,
            ImportSource::ThisMachine | ImportSource::Fabric => Operation::ImportMemory,
        };
        backend.here(operation)?;
        backend.prop(operation, properties)?;
        let mut raw = 0;
        // SAFETY: the pointer is valid for one handle; the rest is the caller's promise.
        let result = unsafe { (backend.functions().mem_import)(&raw mut raw, shareable, handle_type) };
        backend.check_kind(operation, "cuMemImportFromShareableHandle", result, size, properties)?;
        let mut handle = Self::own(backend, raw, size, properties, true);
        if source == ImportSource::Multicast {
            return Ok(handle);
        }
        let reported = handle.reported(operation)?;
        let is_elsewhere = source == ImportSource::Fabric && backend.does_not_see(reported.location);
        if reported.location != location(properties) && !is_elsewhere {
            return Err(Error::new(
                operation,
                Detail::Mismatch {
                    what: "location",
                    theirs: Reported(reported.location).to_string(),
                    ours: format!("the importer expects {}", Reported(location(properties))),
                },
            ));
        }
        // The driver does not report the flag for remote DMA of imported memory.
        handle.properties.compressible = is_compressible(&reported);
        Ok(handle)
    }

    /// Takes ownership of a handle that the driver has just returned.
    pub(crate) fn own(
        backend: &Arc<Opened>,
        raw: u64,
        size: Bytes,
        properties: &Properties,
        imported: bool,
    ) -> Self {
        Self { backend: Arc::clone(backend), raw, size, properties: *properties, imported }
    }

    /// Queries the memory's properties from the driver.
    pub(crate) fn reported(&self, operation: Operation) -> Result<MemAllocationProp> {
        let mut reported = allocation_prop(&self.properties);
        // SAFETY: the pointer is valid for the properties, and the handle is the driver's.
        let result =
            unsafe { (self.backend.functions().mem_get_allocation_properties)(&raw mut reported, self.raw) };
        let context = || format!("{} of {}", self.size, self.properties);
        self.backend.check(operation, "cuMemGetAllocationPropertiesFromHandle", result, context)?;
        Ok(reported)
    }

    /// Sets size and properties of memory that other code has created.
    pub(crate) const fn describe(&mut self, size: Bytes, properties: Properties) {
        (self.size, self.properties) = (size, properties);
    }

    /// Refuses to export memory that CUDA cannot export as `kind`.
    pub(crate) fn check_exported_as(&self, operation: Operation, kind: HandleTypes) -> Result<()> {
        self.backend.here(operation)?;
        let reason = if self.imported {
            format!("CUDA does not export imported memory; pass on the original {kind}")
        } else if !self.properties.handle_types.contains(kind) {
            format!(
                "the memory was not created as shareable by a {kind}; request the handle type at creation"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }
}

impl Opened {
    /// Returns whether a location is one that this process has no device for, such as another machine's device.
    fn does_not_see(&self, place: MemLocation) -> bool {
        let is_device = usize::try_from(place.id).is_ok_and(|id| id < self.devices().len());
        place.kind == LOCATION_INVISIBLE || (place.kind == LOCATION_DEVICE && !is_device)
    }
}

// SAFETY: size and properties are those that the memory was created with.
unsafe impl Handle for CudaHandle {
    fn size(&self) -> Bytes {
        self.size
    }

    fn properties(&self) -> Properties {
        self.properties
    }

    #[cfg(unix)]
    fn export(&self) -> Result<std::os::fd::OwnedFd> {
        self.export_descriptor()
    }

    #[cfg(windows)]
    fn export_win32(&self) -> Result<std::os::windows::io::OwnedHandle> {
        self.export_handle()
    }

    fn export_fabric(&self) -> Result<FabricHandle> {
        self.export_for_fabric()
    }
}

impl Drop for CudaHandle {
    fn drop(&mut self) {
        if self.backend.here(Operation::ReleaseMemory).is_err() {
            return;
        }
        // SAFETY: the handle is the driver's, and it is released only here.
        let result = unsafe { (self.backend.functions().mem_release)(self.raw) };
        self.backend.log(Operation::ReleaseMemory, "cuMemRelease", result, || {
            format!("{} of {}", self.size, self.properties)
        });
    }
}
