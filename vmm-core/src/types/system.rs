//! Errors of system calls, with the name of the errno and advice.
//!
//! For backends that make system calls, and for the system calls of this crate.

use crate::types::errno::{explanation, mapping_limit, name};
use crate::types::{Bytes, DriverError, Error, Operation, out_of_addresses};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;

/// Creates a [`DriverError`] from the errno that the kernel returned for `call`.
#[must_use]
pub fn answer(call: &'static str, errno: Errno) -> DriverError {
    refusal(call, errno, explanation(call, errno))
}

/// Creates a [`DriverError`] for a refusal by gpu-vmm itself, in the kernel's terms.
#[must_use]
pub fn refusal(call: &'static str, errno: Errno, description: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError {
        call,
        code: errno.raw_os_error().into(),
        name: name(errno),
        description: description.into(),
    }
}

/// Creates the error of an operation whose system call failed with `errno`. `context` states the arguments of the call.
#[must_use]
pub fn failed(operation: Operation, call: &'static str, errno: Errno, context: impl Display) -> Error {
    Error::driver(operation, answer(call, errno), context)
}

/// Creates the error of a reservation of `size` that the kernel refused with `errno`:
/// [`OutOfAddresses`](crate::Detail::OutOfAddresses) if no room is left, unless the process has as many mappings as the kernel allows.
#[must_use]
pub fn reservation_failed(
    operation: Operation,
    call: &'static str,
    errno: Errno,
    size: Bytes,
    context: impl Display,
) -> Error {
    if errno != Errno::NOMEM || mapping_limit().is_some() {
        return failed(operation, call, errno, context);
    }
    let source = refusal(call, errno, "no such range of addresses is free");
    out_of_addresses(operation, size, source)
}

/// Returns true for `ENOMEM`: the memory is exhausted, or the process has reached its limit of mappings.
#[must_use]
pub fn is_no_memory(source: &DriverError) -> bool {
    source.code == i64::from(Errno::NOMEM.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_the_kernel_answered() {
        let error = failed(Operation::CreateMemory, "memfd_create", Errno::MFILE, "2 MiB");
        let text = error.to_string();
        for part in ["create", "memfd_create answered EMFILE (24)", "RLIMIT_NOFILE", "2 MiB"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        assert_eq!(answer("ftruncate", Errno::NOMEM).description, "Cannot allocate memory");
        assert_eq!(answer("mmap", Errno::XDEV).name, "errno 18");
        let short = [Errno::NOMEM, Errno::NOSPC].map(|errno| is_no_memory(&answer("mmap", errno)));
        assert_eq!(short, [true, false]);
        let own = refusal("open", Errno::EXIST, "it is a folder");
        assert_eq!(own.to_string(), format!("open answered EEXIST ({}): it is a folder", libc::EEXIST));
    }
}
