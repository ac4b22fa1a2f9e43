//! The platform's type of a loaded library.

#[cfg(unix)]
pub(crate) use libloading::os::unix::Library;
#[cfg(windows)]
pub(crate) use libloading::os::windows::Library;
