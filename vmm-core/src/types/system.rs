//! The kernel's answers as errors of gpu-vmm, with the errno's name and what is to be done about it.
//!
//! For backends that make system calls themselves, and for what this crate asks of the system.

use crate::types::errno::{explanation, name};
use crate::types::{Detail, DriverError, Error, Operation};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;

/// What the kernel answered to `call`.
#[must_use]
pub fn answer(call: &'static str, errno: Errno) -> DriverError {
    refusal(call, errno, explanation(call, errno))
}

/// What gpu-vmm itself answers where a driver or the kernel would, in the kernel's terms.
#[must_use]
pub fn refusal(call: &'static str, errno: Errno, description: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError {
        call,
        code: errno.raw_os_error().into(),
        name: name(errno),
        description: description.into(),
    }
}

/// The error of an operation for which the kernel answered `errno` to `call`, with the numbers that it was given.
#[must_use]
pub fn failed(operation: Operation, call: &'static str, errno: Errno, context: impl Display) -> Error {
    Error::new(operation, Detail::Driver { source: answer(call, errno), context: context.to_string() })
}

/// True where the answer is that memory, or the room for mappings, is used up.
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
    }
}
