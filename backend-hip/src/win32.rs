//! Memory as a handle of Windows.
//!
//! It has never run on Windows. AMD documents nothing of it, so it rests on what can be read of the runtime's source, and
//! on trying:
//!
//! - Which type creation and export want is not settled. `hipMemHandleTypeWin32` is the documented one, and no source seen
//!   so far lets memory be created with it; the type of file descriptors is taken, and the handle of Windows then comes
//!   under that name. Both are tried on a granule, and the first one that can be exported and imported is used.
//! - Export may give the graphics kernel's own number in the place of a handle, which is refused.
//! - Import reads the handle through a pointer, in PAL's branch of the runtime as it was up to 7.2. A pointer is given to
//!   every version: one that wants the handle itself refuses it, where the other way round would crash.
//! - The security attributes are not looked at, so none are made.
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

/// The types under which this runtime may have handles of Windows, the documented one first.
const TYPES: [hipMemAllocationHandleType; 2] = [
    hipMemAllocationHandleType::hipMemHandleTypeWin32,
    hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor,
];

/// The one that was found to work: HIP is one for the process.
static WORKS: OnceLock<hipMemAllocationHandleType> = OnceLock::new();

/// Creates memory that can be exported as a handle of Windows.
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

/// The type that works, found by trying a granule of the device's memory; or why neither does.
pub(crate) fn works(
    operation: Operation,
    driver: &Arc<Driver>,
    device: DeviceId,
) -> Result<hipMemAllocationHandleType> {
    if let Some(known) = WORKS.get() {
        return Ok(*known);
    }
    let mut reason =
        "which type of handle this runtime exports on Windows is not documented; tried".to_owned();
    for handle_type in TYPES {
        match attempt(driver, device, handle_type) {
            Ok(()) => return Ok(*WORKS.get_or_init(|| handle_type)),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::OutOfMemory | ErrorKind::DeviceLost | ErrorKind::Forked
                ) =>
            {
                return Err(error);
            }
            Err(error) => reason += &format!(" type {}: {error};", handle_type.0),
        }
    }
    Err(Error::new(operation, Detail::Unsupported { reason: reason.trim_end_matches(';').to_owned() }))
}

/// Creates a granule, exports it and takes it in again.
fn attempt(driver: &Arc<Driver>, device: DeviceId, handle_type: hipMemAllocationHandleType) -> Result<()> {
    // The largest granularity is right for every device.
    let granularity = driver.devices().iter().map(|device| device.granularity).max();
    let size = granularity.unwrap_or(Granularity::BYTE).bytes();
    let properties = Properties::on(device).exported_as(HandleTypes::WIN32);
    let handle = HipHandle::create_as(driver, size, &properties, &described(&properties, handle_type))?;
    let exported = export_as(&handle, handle_type)?;
    import_as(driver, exported.as_handle(), size, &properties, handle_type).map(drop)
}

impl HipHandle {
    /// A new handle of Windows for a handle's memory.
    pub(crate) fn export_handle(&self) -> Result<OwnedHandle> {
        let known = WORKS.get().filter(|_| self.properties().handle_types.contains(HandleTypes::WIN32));
        let Some(handle_type) = known else {
            let reason = "the memory was not created to be exported as a Win32 handle, which HIP must know from the start";
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
    // SAFETY: each export gives a new handle, which is the caller's to close, or no handle at all.
    unsafe { handles::adopt(OPERATION, made) }
}

/// Takes in memory from a handle, which stays the caller's.
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
    // An import is the current device's.
    let _current = workaround_enabled(&IMPORT_ON_CURRENT_DEVICE)
        .then(|| driver.on(OPERATION, properties.device))
        .transpose()?;
    let kept = driver.quirks.import_reads_later.then(|| from.try_clone_to_owned()).transpose();
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
    // SAFETY: the pointer is good for the one handle that is read through it, and the other for the one that is written.
    let code = unsafe {
        (driver.hip.hipMemImportFromShareableHandle)(&raw mut raw, (&raw mut given).cast(), handle_type)
    };
    let context = || format!("{size} on {} from handle {given:p}", properties.device);
    driver.check(OPERATION, "hipMemImportFromShareableHandle", code, context)?;
    Ok(HipHandle::imported(Arc::clone(driver), raw, size, *properties, kept))
}
