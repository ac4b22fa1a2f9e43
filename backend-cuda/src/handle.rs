//! Physical memory: `cuMemCreate` and `cuMemRelease`.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::CudaBackend;
use crate::device::memory_of;
use crate::ffi::{HANDLE_FILE_DESCRIPTOR, HANDLE_NONE, MemAllocationProp};
use gpu_vmm_core::{Bytes, Error, FabricHandle, Handle, Properties, Result};

/// A piece of one device's memory: what CUDA calls `CUmemGenericAllocationHandle`.
///
/// Dropping it releases it; the memory itself lives until its last mapping is gone as well. In a forked child
/// dropping does nothing.
#[derive(Debug)]
pub struct CudaHandle {
    pub(crate) backend: CudaBackend,
    pub(crate) raw: u64,
    size: Bytes,
    properties: Properties,
    /// CUDA exports what was created here, and not what was imported.
    pub(crate) imported: bool,
}

impl CudaHandle {
    /// Creates memory.
    ///
    /// # Safety
    ///
    /// As [`Backend::create`](gpu_vmm_core::Backend::create).
    pub(crate) unsafe fn create(backend: &CudaBackend, size: Bytes, properties: &Properties) -> Result<Self> {
        let handle_types = if properties.is_shareable() { HANDLE_FILE_DESCRIPTOR } else { HANDLE_NONE };
        let prop = memory_of(properties.device, handle_types, 0);
        // SAFETY: the promise is the same.
        unsafe { Self::create_as(backend, size, properties, &prop) }
    }

    /// Creates memory of any kind that the driver has.
    ///
    /// # Safety
    ///
    /// As [`create`](Self::create), and `prop` is of `properties.device`.
    pub(crate) unsafe fn create_as(
        backend: &CudaBackend,
        size: Bytes,
        properties: &Properties,
        prop: &MemAllocationProp,
    ) -> Result<Self> {
        const OPERATION: &str = "create";
        backend.here(OPERATION)?;
        let mut raw = 0;
        // SAFETY: both pointers are good for their types; size and device are right by the caller's promise.
        let result = unsafe { (backend.functions().mem_create)(&raw mut raw, size.0 as usize, prop, 0) };
        backend.check_memory(OPERATION, "cuMemCreate", result, properties.device, size)?;
        Ok(Self::own(backend, raw, size, properties, false))
    }

    /// Takes over a handle that the driver has just given.
    pub(crate) fn own(
        backend: &CudaBackend,
        raw: u64,
        size: Bytes,
        properties: &Properties,
        imported: bool,
    ) -> Self {
        Self { backend: backend.clone(), raw, size, properties: *properties, imported }
    }
}

impl Handle for CudaHandle {
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

    fn export_fabric(&self) -> Result<FabricHandle> {
        Err(Error::Unsupported { operation: "export", reason: "not yet".to_owned() })
    }
}

impl Drop for CudaHandle {
    fn drop(&mut self) {
        if self.backend.here("release").is_err() {
            return;
        }
        // SAFETY: the handle is the driver's, and this is the one place where it is released.
        let result = unsafe { (self.backend.functions().mem_release)(self.raw) };
        self.backend.log("release", "cuMemRelease", result, || {
            format!("{} of {}", self.size, self.properties.device)
        });
    }
}
