//! Memory between processes: a memfd of its own, which is exported and imported as a descriptor.
//!
//! Its size is sealed. An importer can then rely on the pages being there: nobody who holds the descriptor can cut
//! the file, which would turn a read of mapped memory into SIGBUS. The seals are also what tells an exported
//! descriptor from any other.

use gpu_vmm_core::extend::system::{answer, failed, refusal};
use gpu_vmm_core::{Bytes, Detail, DriverError, Error, Operation, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why there are no fabric handles, for capabilities and errors.
pub(crate) const NO_FABRIC: &str = "memory of the host is shared within one machine only";

/// Why there are no dma-bufs.
pub(crate) const NO_DMA_BUF: &str = "a handle's descriptor is a memfd, which is no dma-buf";

const IMPORT: Operation = Operation::ImportMemory;

/// The size can be changed no more, and neither can that.
const SEALED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A memfd of this size, all zeros.
pub(crate) fn new_file(flags: MemfdFlags, size: Bytes) -> Result<OwnedFd, DriverError> {
    let file = memfd_create(c"gpu-vmm-host", flags | MemfdFlags::CLOEXEC)
        .map_err(|errno| answer("memfd_create", errno))?;
    ftruncate(&file, size.0).map_err(|errno| answer("ftruncate", errno))?;
    Ok(file)
}

/// A memfd of this size for ever, to be exported.
pub(crate) fn new_shared_file(size: Bytes) -> Result<OwnedFd, DriverError> {
    let file = new_file(MemfdFlags::ALLOW_SEALING, size)?;
    fcntl_add_seals(&file, SEALED_SIZE).map_err(|errno| answer("fcntl(F_ADD_SEALS)", errno))?;
    Ok(file)
}

/// A descriptor of the caller's own for an exported one, if it is that and has this size.
pub(crate) fn import(fd: BorrowedFd<'_>, size: Bytes) -> Result<OwnedFd> {
    let refuse = |call, errno, why: String| {
        Error::new(IMPORT, Detail::Driver { source: refusal(call, errno, why), context: size.to_string() })
    };
    let seals = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALED_SIZE) {
        let why =
            "the descriptor is no memory that a host backend exported: it is not a memfd of sealed size";
        return Err(refuse("fcntl(F_GET_SEALS)", Errno::INVAL, why.to_owned()));
    }
    let found = fstat(fd).map_err(|errno| failed(IMPORT, "fstat", errno, size))?;
    if u64::try_from(found.st_size) != Ok(size.0) {
        let why = format!("the exported memory has {}, not {size}", Bytes(found.st_size.unsigned_abs()));
        return Err(refuse("fstat", Errno::INVAL, why));
    }
    duplicate(fd).map_err(|errno| failed(IMPORT, "fcntl(F_DUPFD_CLOEXEC)", errno, size))
}

/// A new descriptor for the same memory; it is closed on exec.
pub(crate) fn export(fd: impl AsFd, size: Bytes) -> Result<OwnedFd> {
    duplicate(fd.as_fd())
        .map_err(|errno| failed(Operation::ExportMemory, "fcntl(F_DUPFD_CLOEXEC)", errno, size))
}

/// Above the three standard streams, in case one of them is closed.
fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(fd, 3)
}

/// Why there are no fabric handles.
pub(crate) fn no_fabric(operation: Operation) -> Error {
    Error::new(operation, Detail::Unsupported { reason: NO_FABRIC.to_owned() })
}
