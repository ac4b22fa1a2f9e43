//! Memory shared between processes: a memfd of its own, exported and imported as a descriptor.
//!
//! Its size is sealed. So an importer can rely on the pages: no holder of the descriptor can shrink the file, which would make
//! reads of mapped memory raise SIGBUS. The seals also distinguish an exported descriptor from any other.

use gpu_vmm_core::extend::files::check_size;
use gpu_vmm_core::extend::system::{answer, failed, refusal};
use gpu_vmm_core::{Bytes, Detail, DriverError, Error, Operation, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why there are no fabric handles, for capabilities and errors.
pub(crate) const NO_FABRIC: &str = "memory of the host is shared within one machine only";

/// Why there are no DMA-BUFs.
pub(crate) const NO_DMA_BUF: &str = "a handle's descriptor is a memfd, not a DMA-BUF";

const IMPORT: Operation = Operation::ImportMemory;

/// The seals that fix the size, and the seals themselves.
const SEALED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a memfd of this size, all zeros.
pub(crate) fn new_file(flags: MemfdFlags, size: Bytes) -> Result<OwnedFd, DriverError> {
    let file = memfd_create(c"gpu-vmm-host", flags | MemfdFlags::CLOEXEC)
        .map_err(|errno| answer("memfd_create", errno))?;
    check_size(size.0).and_then(|()| ftruncate(&file, size.0)).map_err(|errno| answer("ftruncate", errno))?;
    Ok(file)
}

/// Creates a memfd of fixed size, to be exported.
pub(crate) fn new_shared_file(size: Bytes) -> Result<OwnedFd, DriverError> {
    let file = new_file(MemfdFlags::ALLOW_SEALING, size)?;
    fcntl_add_seals(&file, SEALED_SIZE).map_err(|errno| answer("fcntl(F_ADD_SEALS)", errno))?;
    Ok(file)
}

/// Duplicates an exported descriptor, if it is one of a host backend and has this size.
pub(crate) fn import(fd: BorrowedFd<'_>, size: Bytes) -> Result<OwnedFd> {
    let refuse = |call, errno, why: String| {
        Error::new(IMPORT, Detail::Driver { source: refusal(call, errno, why), context: size.to_string() })
    };
    let seals = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALED_SIZE) {
        let why = "the descriptor was not exported by a host backend: it is not a memfd of sealed size";
        return Err(refuse("fcntl(F_GET_SEALS)", Errno::INVAL, why.to_owned()));
    }
    let found = fstat(fd).map_err(|errno| failed(IMPORT, "fstat", errno, size))?;
    if u64::try_from(found.st_size) != Ok(size.0) {
        let why = format!("the exported memory has {}, not {size}", Bytes(found.st_size.unsigned_abs()));
        return Err(refuse("fstat", Errno::INVAL, why));
    }
    duplicate(fd).map_err(|errno| failed(IMPORT, "fcntl(F_DUPFD_CLOEXEC)", errno, size))
}

/// Duplicates a descriptor of the memory; the new one is closed on exec.
pub(crate) fn export(fd: impl AsFd, size: Bytes) -> Result<OwnedFd> {
    duplicate(fd.as_fd())
        .map_err(|errno| failed(Operation::ExportMemory, "fcntl(F_DUPFD_CLOEXEC)", errno, size))
}

/// Duplicates to a number above the three standard streams, in case one of them is closed.
fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(fd, 3)
}

/// Returns the error for fabric handles.
pub(crate) fn no_fabric(operation: Operation) -> Error {
    Error::new(operation, Detail::Unsupported { reason: NO_FABRIC.to_owned() })
}
