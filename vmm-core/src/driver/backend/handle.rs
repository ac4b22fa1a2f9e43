//! The driver's calls on handles of physical memory.
#![allow(unsafe_code)] // an unsafe trait

#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
use crate::types::{Bytes, FabricHandle, Properties, Result};
use std::fmt::Debug;

#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(windows)]
use std::os::windows::io::OwnedHandle;

/// A handle of physical memory. Dropping it releases the handle (`cuMemRelease`, `hipMemRelease`). The driver frees the
/// memory after its last mapping has been removed too.
///
/// # Safety
///
/// [`size`](Handle::size) and [`properties`](Handle::properties) never change and describe the memory: this crate relies
/// on them to map and copy.
pub unsafe trait Handle: Debug + Send + Sync {
    /// Returns the size of the memory.
    fn size(&self) -> Bytes;

    /// Returns the properties of the memory. They are the requested ones, except for compression that the driver did not grant.
    fn properties(&self) -> Properties;

    /// Exports the memory as a new file descriptor. CUDA: `cuMemExportToShareableHandle`, HIP:
    /// `hipMemExportToShareableHandle`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the memory was not created as shareable, or any other error that the driver returns.
    #[cfg(unix)]
    fn export(&self) -> Result<OwnedFd>;

    /// Exports the memory as a new Windows handle, which child processes do not inherit.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the memory was not created for [`HandleTypes::WIN32`](crate::HandleTypes::WIN32), or any other
    /// error that the driver returns.
    #[cfg(windows)]
    fn export_win32(&self) -> Result<OwnedHandle>;

    /// Exports the memory as a fabric handle.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the memory was not created for [`HandleTypes::FABRIC`](crate::HandleTypes::FABRIC), or any
    /// other error that the driver returns.
    fn export_fabric(&self) -> Result<FabricHandle>;
}
