//! A piece of a driver's physical memory.
#![allow(unsafe_code)] // traits that make promises

#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Bytes, FabricHandle, Properties, Result};
use std::fmt::Debug;

#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(windows)]
use std::os::windows::io::OwnedHandle;

/// A piece of physical memory. Dropping it releases it (`cuMemRelease`, `hipMemRelease`): the memory itself lives
/// until its last mapping is gone as well.
///
/// # Safety
///
/// [`size`](Handle::size) and [`properties`](Handle::properties) never change and are those of the memory: this crate maps
/// and copies by them.
pub unsafe trait Handle: Debug + Send + Sync {
    /// How much memory.
    fn size(&self) -> Bytes;

    /// What it is: what was asked for, but for what the driver did not give (compression).
    fn properties(&self) -> Properties;

    /// A new file descriptor for the memory. CUDA: `cuMemExportToShareableHandle`, HIP:
    /// `hipMemExportToShareableHandle`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where the memory was not created as shareable; else
    /// what the driver answers.
    #[cfg(unix)]
    fn export(&self) -> Result<OwnedFd>;

    /// The same on Windows: a new handle of its kernel's, which child processes do not inherit.
    ///
    /// # Errors
    ///
    /// As for a descriptor: [`Detail::Unsupported`] where the memory was not created for
    /// [`HandleTypes::WIN32`](crate::HandleTypes::WIN32); else what the driver answers.
    #[cfg(windows)]
    fn export_win32(&self) -> Result<OwnedHandle>;

    /// The memory as 64 bytes.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where the memory was not created for it; else what
    /// the driver answers.
    fn export_fabric(&self) -> Result<FabricHandle>;
}
