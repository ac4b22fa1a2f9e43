//! Bytes in a sealed memory file, which travels between processes as a descriptor and cannot be changed.

use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Bytes, Operation, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// What must not change any more.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// Returns a sealed file with these bytes.
pub(crate) fn file(operation: Operation, bytes: &[u8]) -> Result<OwnedFd> {
    let fail = |call, errno| failed(operation, call, errno, format!("{} bytes", bytes.len()));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("gpu-vmm", flags).map_err(|errno| fail("memfd_create", errno))?);
    file.write_all(bytes).map_err(|error| {
        fail("write", rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
    })?;
    fcntl_add_seals(&file, SEALS | SealFlags::SEAL).map_err(|errno| fail("fcntl(F_ADD_SEALS)", errno))?;
    Ok(file.into())
}

/// Returns the size of a file that another process has sealed.
///
/// # Errors
///
/// What is wrong with it.
pub(crate) fn size(file: BorrowedFd<'_>, most: u64) -> Result<u64, String> {
    // Other files have no seals.
    let seals = fcntl_get_seals(file).map_err(|errno| format!("the file is no memory file: {errno}"))?;
    if !seals.contains(SEALS) {
        return Err("the memory file is not sealed against writes, growth and shrinking".to_owned());
    }
    let size = fstat(file).map_err(|errno| format!("the size of the memory file: {errno}"))?.st_size;
    match u64::try_from(size) {
        Ok(size) if size <= most => Ok(size),
        _ => Err(format!("the memory file has {size} bytes, and the limit is {}", Bytes(most))),
    }
}

/// Returns the contents of a file that another process has sealed.
///
/// # Errors
///
/// What is wrong with it.
pub(crate) fn read(file: OwnedFd, most: u64) -> Result<Vec<u8>, String> {
    let size = size(file.as_fd(), most)?;
    let mut bytes = vec![0; size as usize];
    // At a position of its own: all processes that have the descriptor share its position.
    let read = File::from(file).read_exact_at(&mut bytes, 0);
    read.map_err(|error| format!("the memory file cannot be read: {error}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_sealed_files_are_read() {
        let sealed = file(Operation::Open, b"table").unwrap();
        assert_eq!(size(sealed.as_fd(), 5), Ok(5));
        assert!(File::from(sealed.try_clone().unwrap()).write_all_at(b"x", 0).is_err());
        let error = size(sealed.as_fd(), 4).unwrap_err();
        assert_eq!(error, "the memory file has 5 bytes, and the limit is 4 B");
        assert_eq!(read(sealed, 5).unwrap(), b"table");
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(size(open.as_fd(), 5).unwrap_err().contains("not sealed"));
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(size(socket.as_fd(), 5).unwrap_err().contains("no memory file"));
    }
}
