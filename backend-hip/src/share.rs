//! Memory as a file descriptor: `hipMemExportToShareableHandle` and `hipMemImportFromShareableHandle`.
#![allow(unsafe_code)] // calls into HIP
#![cfg(unix)]

use crate::driver::Driver;
use crate::ffi::hipMemAllocationHandleType;
use crate::handle::HipHandle;
use crate::quirks::{ImportForm, handles};
use gpu_vmm_core::{Bytes, DriverError, Error, Handle, Properties, Result};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

const POSIX_FD: hipMemAllocationHandleType = hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor;

/// A new descriptor for a handle's memory. It is closed on exec.
pub(crate) fn export(handle: &HipHandle) -> Result<OwnedFd> {
    const OPERATION: &str = "export";
    let driver = &handle.driver;
    if !handle.properties().is_shareable() {
        let reason = "the memory was not created as shareable, which HIP must know from the start".to_owned();
        return Err(Error::Unsupported { operation: OPERATION, reason });
    }
    let _entered = driver.enter(OPERATION)?;
    let mut fd: c_int = -1;
    // SAFETY: the handle is alive, and for this type HIP writes one descriptor, an `int`.
    let code = unsafe {
        (driver.hip.hipMemExportToShareableHandle)((&raw mut fd).cast::<c_void>(), handle.raw(), POSIX_FD, 0)
    };
    let context = || format!("{} on {}", handle.size(), handle.properties().device);
    driver.check(OPERATION, "hipMemExportToShareableHandle", code, context)?;
    if fd < 0 {
        let what = format!("hipMemExportToShareableHandle answered success and the descriptor {fd}");
        return Err(Error::DriverBroke { operation: OPERATION, what });
    }
    // SAFETY: each export gives a new descriptor, which is the caller's to close.
    let exported = unsafe { OwnedFd::from_raw_fd(fd) };
    // A copy, since HIP does not say whether its own is closed on exec.
    exported.try_clone().map_err(|error| system(OPERATION, "dup", &error))
}

/// Takes in memory from a descriptor, which stays the caller's.
pub(crate) fn import(
    driver: &Arc<Driver>,
    fd: BorrowedFd<'_>,
    size: Bytes,
    properties: &Properties,
) -> Result<HipHandle> {
    const OPERATION: &str = "import";
    let form = driver.quirks.import_form;
    if form == ImportForm::Unknown {
        let reason = format!(
            "HIP {} may want the descriptor itself or a pointer to it, and a wrong guess crashes; \
             6.4, 7.0.2 from build 51831 on, and 7.1 are known",
            driver.info().version
        );
        return Err(Error::Unsupported { operation: OPERATION, reason });
    }
    let _entered = driver.enter(OPERATION)?;
    // An import is the current device's.
    let _current =
        handles("import-on-current-device").then(|| driver.on(OPERATION, properties.device)).transpose()?;
    // HIP takes descriptor 0 for a null pointer, so it never gets the caller's own: copies are above 2.
    let copy = fd.try_clone_to_owned().map_err(|error| system(OPERATION, "dup", &error))?;
    let given = if handles("import-descriptor-zero") { copy.as_fd() } else { fd };
    let mut number: c_int = given.as_raw_fd();
    let os_handle = match form {
        ImportForm::Pointer => (&raw mut number).cast::<c_void>(),
        ImportForm::Value | ImportForm::Unknown => std::ptr::without_provenance_mut(number as usize),
    };
    let mut raw = std::ptr::null_mut();
    // SAFETY: the descriptor is open and in the form that this version reads; HIP writes one handle.
    let code = unsafe { (driver.hip.hipMemImportFromShareableHandle)(&raw mut raw, os_handle, POSIX_FD) };
    let context = || format!("{size} on {} from descriptor {number}", properties.device);
    driver.check(OPERATION, "hipMemImportFromShareableHandle", code, context)?;
    let kept = driver.quirks.import_reads_later.then_some(copy);
    Ok(HipHandle::imported(Arc::clone(driver), raw, size, *properties, kept))
}

/// An error of the system about a descriptor.
fn system(operation: &'static str, call: &'static str, error: &io::Error) -> Error {
    let code = i64::from(error.raw_os_error().unwrap_or(0));
    let source = DriverError {
        call,
        code,
        name: error.kind().to_string().into(),
        description: error.to_string().into(),
    };
    Error::Driver { operation, source, context: "a file descriptor of exported memory".to_owned() }
}
