//! cubecl's errors for failures of the pool, and for handles that are unknown.

use super::cubecl_server::server::IoError;
use gpu_vmm::{Detail, Error, ErrorKind};

/// Returns cubecl's error for a refused allocation. `BufferTooBig` means that no cleanup can help.
pub(super) fn refused(size: u64, error: &Error) -> IoError {
    let backtrace = Default::default();
    match error.kind() {
        _ if matches!(error.detail(), Detail::ExceedsDevice { .. }) => {
            IoError::BufferTooBig { size, backtrace }
        }
        ErrorKind::OutOfMemory | ErrorKind::OutOfAddressSpace => IoError::OutOfMemory { size, backtrace },
        _ => unknown(error.to_string()),
    }
}

/// Returns cubecl's error for any other failure.
pub(super) fn unknown(description: String) -> IoError {
    IoError::Unknown { description, backtrace: Default::default() }
}

/// Returns cubecl's error for a binding that names no allocation.
pub(super) fn not_found(reason: String) -> IoError {
    IoError::NotFound { reason: reason.into(), backtrace: Default::default() }
}
