//! Memory as a 64-byte fabric handle, valid on all machines of a fabric: `hipMemFabricHandle_t`. HIP has it since 7.14, and
//! gpu-vmm has never run on such a machine.
#![allow(unsafe_code)] // calls into HIP

use crate::attributes;
use crate::driver::Driver;
use crate::error::is_invalid_value;
use crate::ffi::FABRIC_HANDLE;
use crate::handle::HipHandle;
use crate::quirks::{IMPORT_ON_CURRENT_DEVICE, workaround_enabled};
use gpu_vmm_core::{Bytes, Detail, Error, FabricHandle, Handle, HandleTypes, Operation, Properties, Result};
use std::ptr::from_mut;
use std::sync::Arc;

impl HipHandle {
    /// Returns the fabric handle of memory that was created for it.
    pub(crate) fn export_for_fabric(&self) -> Result<FabricHandle> {
        const OPERATION: Operation = Operation::ExportMemory;
        let driver = &self.driver;
        let refuse = |reason: String| Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        if !self.properties().handle_types.contains(HandleTypes::FABRIC) {
            let none = attributes::fabric(driver, self.properties().device).err();
            return refuse(
                none.unwrap_or_else(|| "the memory was not created for fabric handles".to_owned()),
            );
        }
        let _entered = driver.enter(OPERATION)?;
        let mut handle = FabricHandle([0; FabricHandle::LENGTH]);
        // SAFETY: the handle is alive, and for this type HIP writes 64 bytes.
        let code = unsafe {
            (driver.hip.hipMemExportToShareableHandle)(
                from_mut(&mut handle.0).cast(),
                self.raw(),
                FABRIC_HANDLE,
                0,
            )
        };
        let context = || format!("{} on {}", self.size(), self.properties().device);
        match driver.check(OPERATION, "hipMemExportToShareableHandle", code, context) {
            Err(error) if self.is_imported() && is_invalid_value(&error) => refuse(
                "this HIP does not export imported memory; pass on the handle that was imported".to_owned(),
            ),
            checked => checked.map(|()| handle),
        }
    }
}

/// Imports the memory that a fabric handle names, which the caller has checked to be supported.
pub(crate) fn import(
    driver: &Arc<Driver>,
    from: &FabricHandle,
    size: Bytes,
    properties: &Properties,
) -> Result<HipHandle> {
    const OPERATION: Operation = Operation::ImportMemory;
    let _entered = driver.enter(OPERATION)?;
    // An import belongs to the current device.
    let _current = workaround_enabled(&IMPORT_ON_CURRENT_DEVICE)
        .then(|| driver.on(OPERATION, properties.device))
        .transpose()?;
    let mut bytes = from.0;
    let mut raw = std::ptr::null_mut();
    let os_handle = from_mut(&mut bytes).cast();
    // SAFETY: for this type HIP reads 64 bytes through the pointer, and it writes one handle.
    let code =
        unsafe { (driver.hip.hipMemImportFromShareableHandle)(&raw mut raw, os_handle, FABRIC_HANDLE) };
    let context = || format!("{size} on {} from a fabric handle", properties.device);
    driver.check(OPERATION, "hipMemImportFromShareableHandle", code, context)?;
    Ok(HipHandle::imported(Arc::clone(driver), raw, size, *properties, None))
}
