//! Memory as a Windows handle.
//!
//! This code has never run on Windows. AMD documents nothing of it, so it is based on the runtime's source and on
//! probes:
//!
//! - It is unclear which handle type creation and export require. `hipMemHandleTypeWin32` is the documented one, but in
//!   no known source can memory be created with it; the type of file descriptors is accepted and then yields a Windows
//!   handle. Both are tried on a granule, and the first one that can be exported and imported is used.
//! - Export may return the graphics kernel's own number instead of a handle, which is refused.
//! - Import reads the handle through a pointer, in PAL's branch of the runtime up to 7.2. Every version gets a pointer:
//!   one that requires the handle itself refuses it, while the opposite error would crash.
//! - The runtime ignores security attributes, so none are passed.
#![allow(unsafe_code)] // calls into HIP

use crate::attributes;
use crate::driver::Driver;
use crate::ffi::{self, hipMemAllocationHandleType, hipMemAllocationProp};
use crate::handle::HipHandle;
use crate::quirks::{IMPORT_ON_CURRENT_DEVICE, workaround_enabled};
use gpu_vmm_core::extend::handles;
use gpu_vmm_core::{
    Bytes, Detail, DeviceId, DriverError, Error, ErrorKind, Granularity, Handle, HandleTypes, Operation,
    Properties, Result,
};
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, OwnedHandle, RawHandle};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// The types that may stand for Windows handles in this runtime, the documented one first.
const TYPES: [hipMemAllocationHandleType; 2] = [
    hipMemAllocationHandleType::hipMemHandleTypeWin32,
    hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor,
];

/// The type that works; HIP is the same for the whole process.
static WORKS: OnceLock<hipMemAllocationHandleType> = OnceLock::new();

/// Creates memory that can be exported as a Windows handle.
pub(crate) fn create(driver: &Arc<Driver>, size: Bytes, properties: &Properties) -> Result<HipHandle> {
    let handle_type = works(Operation::CreateMemory, driver, properties.device)?;
    let given = attributes::given(driver, properties);
    HipHandle::create_as(driver, size, &given, &described(&given, handle_type))
}

fn described(properties: &Properties, handle_type: hipMemAllocationHandleType) -> hipMemAllocationProp {
    let mut allocation = ffi::allocation(properties);
    allocation.__bindgen_anon_1.requestedHandleType = handle_type;
    allocation
}

/// Returns the type that works, found by a probe with a granule of device memory, or why neither does.
pub(crate) fn works(
    operation: Operation,
    driver: &Arc<Driver>,
    device: DeviceId,
) -> Result<hipMemAllocationHandleType> {
    if let Some(known) = WORKS.get() {
        return Ok(*known);
    }
    let mut reason =
        "the handle type that this runtime exports on Windows is not documented; tried".to_owned();
    for handle_type in TYPES {
        match attempt(driver, device, handle_type) {
            Ok(()) => return Ok(*WORKS.get_or_init(|| handle_type)),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::OutOfMemory | ErrorKind::DeviceLost | ErrorKind::Forked | ErrorKind::Exiting
                ) =>
            {
                return Err(error);
            }
            Err(error) => reason += &format!(" type {}: {error};", handle_type.0),
        }
    }
    Err(Error::new(operation, Detail::Unsupported { reason: reason.trim_end_matches(';').to_owned() }))
}

/// Creates, exports and imports a granule.
fn attempt(driver: &Arc<Driver>, device: DeviceId, handle_type: hipMemAllocationHandleType) -> Result<()> {
    // The largest granularity is valid for every device.
    let granularity = driver.devices().iter().map(|device| device.granularity).max();
    let size = granularity.unwrap_or(Granularity::BYTE).bytes();
    let properties = Properties::on(device).exported_as(HandleTypes::WIN32);
    let handle = HipHandle::create_as(driver, size, &properties, &described(&properties, handle_type))?;
    let exported = export_as(&handle, handle_type)?;
    import_as(driver, exported.as_handle(), size, &properties, handle_type).map(drop)
}

impl HipHandle {
    /// Exports a handle's memory as a new Windows handle.
    pub(crate) fn export_handle(&self) -> Result<OwnedHandle> {
        let known = WORKS.get().filter(|_| self.properties().handle_types.contains(HandleTypes::WIN32));
        let Some(handle_type) = known else {
            let reason =
                "the memory was not created to be exported as a Win32 handle; HIP requires that at creation";
            return Err(Error::new(
                Operation::ExportMemory,
                Detail::Unsupported { reason: reason.to_owned() },
            ));
        };
        export_as(self, *handle_type)
    }
}

fn export_as(handle: &HipHandle, handle_type: hipMemAllocationHandleType) -> Result<OwnedHandle> {
    const OPERATION: Operation = Operation::ExportMemory;
    let driver = &handle.driver;
    let _entered = driver.enter(OPERATION)?;
    let mut made: RawHandle = null_mut();
    // SAFETY: the memory is alive; on Windows HIP writes one handle, which has the size of a pointer.
    let code = unsafe {
        (driver.hip.hipMemExportToShareableHandle)((&raw mut made).cast(), handle.raw(), handle_type, 0)
    };
    let context = || format!("{} on {}", handle.size(), handle.properties().device);
    driver.check(OPERATION, "hipMemExportToShareableHandle", code, context)?;
    // SAFETY: each export returns a new handle, which the caller must close, or no handle at all.
    unsafe { handles::adopt(OPERATION, made) }
}

/// Imports memory from a handle, which stays the caller's.
pub(crate) fn import(
    driver: &Arc<Driver>,
    from: BorrowedHandle<'_>,
    size: Bytes,
    properties: &Properties,
) -> Result<HipHandle> {
    let handle_type = works(Operation::ImportMemory, driver, properties.device)?;
    import_as(driver, from, size, properties, handle_type)
}

fn import_as(
    driver: &Arc<Driver>,
    from: BorrowedHandle<'_>,
    size: Bytes,
    properties: &Properties,
    handle_type: hipMemAllocationHandleType,
) -> Result<HipHandle> {
    const OPERATION: Operation = Operation::ImportMemory;
    let _entered = driver.enter(OPERATION)?;
    // An import belongs to the current device.
    let _current = workaround_enabled(&IMPORT_ON_CURRENT_DEVICE)
        .then(|| driver.on(OPERATION, properties.device))
        .transpose()?;
    let kept = driver.quirks.import_stays_open.then(|| from.try_clone_to_owned()).transpose();
    let kept = kept.map_err(|error| {
        Error::new(
            OPERATION,
            Detail::Driver {
                source: DriverError::system("DuplicateHandle", &error),
                context: "a handle of exported memory".to_owned(),
            },
        )
    })?;
    let mut given = from.as_raw_handle();
    let mut raw = null_mut();
    // SAFETY: HIP reads one handle through the pointer and writes one handle.
    let code = unsafe {
        (driver.hip.hipMemImportFromShareableHandle)(&raw mut raw, (&raw mut given).cast(), handle_type)
    };
    let context = || format!("{size} on {} from handle {given:p}", properties.device);
    driver.check(OPERATION, "hipMemImportFromShareableHandle", code, context)?;
    Ok(HipHandle::imported(Arc::clone(driver), raw, size, *properties, kept))
}
