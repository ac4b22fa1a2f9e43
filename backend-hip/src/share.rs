//! Memory as a file descriptor: `hipMemExportToShareableHandle` and `hipMemImportFromShareableHandle`; and mapped
//! memory as a dma-buf, for network cards.
#![allow(unsafe_code)] // calls into HIP
#![cfg(unix)]

use crate::descriptor::{exported, system};
use crate::driver::Driver;
use crate::error::is_invalid_value;
use crate::ffi::hipMemAllocationHandleType;
use crate::handle::HipHandle;
use crate::hsa;
use crate::quirks::{
    IMPORT_DESCRIPTOR_ZERO, IMPORT_IS_NOT_EXPORTED, IMPORT_ON_CURRENT_DEVICE, ImportForm, workaround_enabled,
};
use gpu_vmm_core::{
    AddressRange, Bytes, Detail, DeviceId, DriverError, Error, Handle, HandleTypes, Operation, Properties,
    Result,
};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Why there is no dma-buf, for capabilities and errors.
pub(crate) const NO_DMA_BUF: &str =
    "ROCr's hsa_amd_vmem_export_shareable_handle cannot be reached through HIP's library";

const POSIX_FD: hipMemAllocationHandleType = hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor;

impl HipHandle {
    /// Exports a handle's memory as a new descriptor, which is closed on exec.
    pub(crate) fn export_descriptor(&self) -> Result<OwnedFd> {
        const OPERATION: Operation = Operation::ExportMemory;
        let driver = &self.driver;
        if !self.properties().handle_types.contains(HandleTypes::FILE_DESCRIPTOR) {
            let reason = "the memory was not created as shareable; HIP requires that at creation".to_owned();
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        if let Some(from) = self.imported_from().filter(|_| workaround_enabled(&IMPORT_IS_NOT_EXPORTED)) {
            driver.process.check(OPERATION)?;
            return from.try_clone().map_err(|error| system(OPERATION, "dup", &error));
        }
        let _entered = driver.enter(OPERATION)?;
        let export = || {
            let mut fd: c_int = -1;
            let to = (&raw mut fd).cast::<c_void>();
            // SAFETY: the handle is alive, and for this type HIP writes one descriptor, an `int`.
            let code = unsafe { (driver.hip.hipMemExportToShareableHandle)(to, self.raw(), POSIX_FD, 0) };
            let context = || format!("{} on {}", self.size(), self.properties().device);
            driver.check(OPERATION, "hipMemExportToShareableHandle", code, context).map(|()| fd)
        };
        // SAFETY: HIP's export of memory that the handle keeps alive.
        let exported = unsafe { exported(driver, OPERATION, "hipMemExportToShareableHandle", export) };
        match exported {
            Err(error) if self.is_imported() && is_invalid_value(&error) => Err(not_exported(OPERATION)),
            exported => exported,
        }
    }
}

/// Returns the error for the export of imported memory by a driver that refuses it ([`IMPORT_IS_NOT_EXPORTED`]).
pub(crate) fn not_exported(operation: Operation) -> Error {
    let reason =
        "this HIP does not export imported memory; pass on the descriptor that was imported".to_owned();
    Error::new(operation, Detail::Unsupported { reason })
}

/// Exports a range as a new dma-buf, if the range is one whole mapping. The dma-buf is closed on exec.
///
/// HIP's own function, `hipMemGetHandleForAddressRange`, is not called: of several mappings it exports only the first,
/// and each call leaks a reference (quirks `range-is-one-mapping`, `range-leaks`). The backend calls the ROCr functions
/// behind it, which also work on versions without that function.
///
/// # Safety
///
/// The range is mapped.
pub(crate) unsafe fn dma_buf(driver: &Driver, range: AddressRange, is_one: bool) -> Result<OwnedFd> {
    const OPERATION: Operation = Operation::ExportDmaBuf;
    let refuse = |reason: String| Err(Error::new(OPERATION, Detail::Unsupported { reason }));
    let Some(hsa) = &driver.hip.hsa else { return refuse(NO_DMA_BUF.to_owned()) };
    if !is_one {
        return refuse(format!(
            "{range} is not exactly one mapping; HIP exports one whole mapping per dma-buf"
        ));
    }
    // SAFETY: one whole mapping, which exists, as the caller promises.
    let exported = unsafe { hsa::export(driver, OPERATION, hsa, range) }?;
    match size_behind(exported.as_fd()) {
        Some(size) if size != range.size => {
            let what = format!(
                "{} returned success for {range}, but a descriptor of {size}",
                crate::ffi::hsa::EXPORT
            );
            Err(Error::new(OPERATION, Detail::DriverContractViolated { what }))
        }
        _ => Ok(exported),
    }
}

/// Returns the size of the memory of a descriptor, if the kernel reports it: the end of a dma-buf is its size. A pipe
/// or a socket has none.
fn size_behind(fd: BorrowedFd<'_>) -> Option<Bytes> {
    // SAFETY: the descriptor is open; only its position changes.
    let seek = |offset, whence| unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) };
    let before = seek(0, libc::SEEK_CUR);
    let end = seek(0, libc::SEEK_END);
    // A dma-buf has no position. Another kind of file gets its old position back.
    if before >= 0 {
        seek(before, libc::SEEK_SET);
    }
    u64::try_from(end).ok().map(Bytes)
}

/// Returns the error for a descriptor that cannot be the memory that the caller says, as a system call shows.
fn not_memory(operation: Operation, fd: BorrowedFd<'_>, call: &'static str, description: String) -> Error {
    let (code, name) = (libc::EINVAL.into(), "EINVAL".into());
    let source = DriverError { call, code, name, description: description.into() };
    Error::new(operation, Detail::Driver { source, context: format!("descriptor {}", fd.as_raw_fd()) })
}

/// Refuses a descriptor whose memory has another size than the caller says.
fn check_size(operation: Operation, fd: BorrowedFd<'_>, said: Bytes) -> Result<()> {
    match size_behind(fd) {
        Some(size) if size != said => {
            let description = format!("the descriptor's memory has {size}, expected {said}");
            Err(not_memory(operation, fd, "lseek", description))
        }
        _ => Ok(()),
    }
}

/// Returns the type of a descriptor's file system.
fn file_system(fd: BorrowedFd<'_>) -> std::io::Result<i64> {
    // SAFETY: integers, for which zero is a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the kernel writes one structure.
    match unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut stat) } {
        0 => Ok(stat.f_type),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Refuses a descriptor that is no dma-buf, if HIP would accept any (the quirk `import-checks-nothing`). A runtime whose own
/// exports are other files, such as a simulated one, or ROCr under WSL, gets such files.
fn check_file_system(
    driver: &Arc<Driver>,
    operation: Operation,
    fd: BorrowedFd<'_>,
    device: DeviceId,
) -> Result<()> {
    /// `DMA_BUF_MAGIC` of Linux: "DMAB".
    const DMA_BUF: i64 = 0x444d_4142;
    if !driver.quirks.import_checks_nothing {
        return Ok(());
    }
    let found = file_system(fd).map_err(|error| system(operation, "fstatfs", &error))?;
    let is_own = || {
        let device = driver.devices().get(device.0 as usize)?;
        let properties = Properties::on(device.id).shareable();
        let own = HipHandle::create(driver, device.granularity.bytes(), &properties).ok()?;
        Some(file_system(own.export_descriptor().ok()?.as_fd()).ok()? == found)
    };
    if found == DMA_BUF || is_own() == Some(true) {
        return Ok(());
    }
    let description = format!("a file system of type {found:#x}, expected a dma-buf ({DMA_BUF:#x})");
    Err(not_memory(operation, fd, "fstatfs", description))
}

/// Imports memory from a descriptor, which stays the caller's.
pub(crate) fn import(
    driver: &Arc<Driver>,
    fd: BorrowedFd<'_>,
    size: Bytes,
    properties: &Properties,
) -> Result<HipHandle> {
    const OPERATION: Operation = Operation::ImportMemory;
    let form = driver.quirks.import_form;
    if form == ImportForm::Unknown {
        let reason = format!(
            "HIP {} may take the descriptor itself or a pointer to it, and a wrong guess crashes; use 6.4, 7.0.2 from \
             build 51831 on, or 7.1 and later",
            driver.info().version
        );
        return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
    }
    driver.process.check(OPERATION)?;
    check_file_system(driver, OPERATION, fd, properties.device)?;
    let _entered = driver.enter(OPERATION)?;
    check_size(OPERATION, fd, size)?;
    // An import belongs to the current device.
    let _current = workaround_enabled(&IMPORT_ON_CURRENT_DEVICE)
        .then(|| driver.on(OPERATION, properties.device))
        .transpose()?;
    // HIP treats descriptor 0 as a null pointer, so it never gets the caller's own: the duplicate is above 2.
    let copy = fd.try_clone_to_owned().map_err(|error| system(OPERATION, "dup", &error))?;
    let given = if workaround_enabled(&IMPORT_DESCRIPTOR_ZERO) { copy.as_fd() } else { fd };
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
    let kept = driver.quirks.import_stays_open.then_some(copy);
    Ok(HipHandle::imported(Arc::clone(driver), raw, size, *properties, kept))
}
