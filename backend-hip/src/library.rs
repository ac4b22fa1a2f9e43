//! A loaded library, as the system has it.

#[cfg(unix)]
pub(crate) use libloading::os::unix::Library;
#[cfg(windows)]
pub(crate) use libloading::os::windows::Library;
