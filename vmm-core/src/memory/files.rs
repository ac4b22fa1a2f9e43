//! Reads and writes at file offsets, and the errors of file operations.
#![allow(unsafe_code)] // `sync_file_range` has no safe function

use crate::types::{Detail, DriverError, Error, Operation};
use std::fs::File;
use std::io;
use std::path::Path;

/// Creates the [`Detail::File`] error of a system call on a file.
pub fn failed(operation: Operation, call: &'static str, path: &Path, error: &io::Error) -> Error {
    let source = DriverError::system(call, error);
    Error::new(operation, Detail::File { path: path.display().to_string(), source })
}

#[cfg(unix)]
use std::os::unix::fs::FileExt;

/// Returns `EFBIG` if the process may have no file of this size (`ulimit -f`). The call that makes a file larger would end the process,
/// by SIGXFSZ.
///
/// # Errors
///
/// That one only.
#[cfg(unix)]
pub fn check_size(size: u64) -> rustix::io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| size > limit) { Err(rustix::io::Errno::FBIG) } else { Ok(()) }
}

/// Writes all bytes to the file at `offset`.
///
/// # Errors
///
/// `EFBIG` as [`check_size`] returns it, or any error that the operating system returns.
#[cfg(unix)]
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    check_size(offset.saturating_add(bytes.len() as u64))?;
    file.write_all_at(bytes, offset)
}

/// Fills `bytes` from the file at `offset`.
///
/// # Errors
///
/// [`io::ErrorKind::UnexpectedEof`] if the file is too short, or any error that the operating system returns.
#[cfg(unix)]
pub fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(bytes, offset)
}

/// Starts to write a range of the page cache to the disk, so that a later wait for the disk is short. Only Linux does so.
#[cfg(unix)]
pub fn start_writing(file: &File, offset: u64, length: u64) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let (offset, length) = (offset.cast_signed(), length.cast_signed());
        // SAFETY: the call has no pointers. If it fails, the later wait includes the range.
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, length);
}

#[cfg(windows)]
use std::os::windows::fs::FileExt;

/// Does nothing on Windows.
#[cfg(windows)]
pub fn start_writing(_: &File, _: u64, _: u64) {}

/// Writes all bytes to the file at `offset`.
///
/// # Errors
///
/// Any error that the operating system returns.
#[cfg(windows)]
pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills `bytes` from the file at `offset`.
///
/// # Errors
///
/// [`io::ErrorKind::UnexpectedEof`] if the file is too short, or any error that the operating system returns.
#[cfg(windows)]
pub fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                bytes = bytes.get_mut(read..).unwrap_or_default();
                offset += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
