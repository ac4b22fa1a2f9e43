//! The error of a vendor's call that failed for a reason of its own.

use crate::types::{Detail, DriverError, Error, Operation};

/// Creates the error of a vendor's call, of which `context` states the arguments: [`Detail::OutOfDescriptors`] if the process has no
/// descriptor left, since drivers need some and have no code for their lack; otherwise [`Detail::Driver`].
#[must_use]
pub fn call_failed(operation: Operation, source: DriverError, context: String) -> Error {
    let detail = match has_no_descriptor_left() {
        true => Detail::OutOfDescriptors { source, context },
        false => Detail::Driver { source, context },
    };
    Error::new(operation, detail)
}

#[cfg(unix)]
fn has_no_descriptor_left() -> bool {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC).is_err_and(|errno| errno == rustix::io::Errno::MFILE)
}

#[cfg(not(unix))]
const fn has_no_descriptor_left() -> bool {
    false
}
