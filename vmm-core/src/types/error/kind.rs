//! What a program can do about an error, one kind for each.

use std::fmt;

/// What went wrong, by what a program does about it. [`Error::kind`](super::Error::kind) returns it; the numbers are in
/// [`Detail`](super::Detail).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Too little memory on the device or in a backing store. Free some, or ask for less.
    OutOfMemory,
    /// Too few addresses. Freeing memory elsewhere does not help; reserve less.
    OutOfAddressSpace,
    /// An argument that no state of the program makes valid, such as a size of zero. Correct the call.
    InvalidArgument,
    /// A size, offset or address that is not a multiple of the granularity. Round it.
    Unaligned,
    /// A part that ends outside of the region, the memory or the vector.
    OutOfRange,
    /// Memory is mapped there already. Unmap it first.
    AlreadyMapped,
    /// No memory is mapped there.
    NotMapped,
    /// The addresses are in use or cannot be had. Let the driver choose others.
    AddressTaken,
    /// No block has the address, or it was freed already; or no tag or bank has the name.
    NotFound,
    /// The device does not exist, or no device does.
    NoSuchDevice,
    /// The device cannot reach the memory of the other one.
    PeerUnreachable,
    /// A device or a process does not have the right that the call needs.
    AccessDenied,
    /// The driver or this version of it cannot do this, or is not installed. Use another way.
    Unsupported,
    /// Something else uses the memory, or a stream captures. Try again when that has ended.
    Busy,
    /// The region, or the memory with the tag, is suspended. Resume it first.
    Suspended,
    /// An operation failed and so did its rollback. The part cannot be used any more.
    Poisoned,
    /// The process is the child of a fork, where no driver works.
    Forked,
    /// The device does not answer any more in this process.
    DeviceLost,
    /// Another process is gone, refused, came late, or sent something that cannot be.
    Peer,
    /// A file cannot be made, written or read, or is not what was written.
    File,
    /// An answer of the driver or the system that has no kind of its own.
    Driver,
}

impl ErrorKind {
    /// The kind in lower case, as messages and reports have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out of memory",
            Self::OutOfAddressSpace => "out of address space",
            Self::InvalidArgument => "invalid argument",
            Self::Unaligned => "unaligned",
            Self::OutOfRange => "out of range",
            Self::AlreadyMapped => "already mapped",
            Self::NotMapped => "not mapped",
            Self::AddressTaken => "address taken",
            Self::NotFound => "not found",
            Self::NoSuchDevice => "no such device",
            Self::PeerUnreachable => "peer unreachable",
            Self::AccessDenied => "access denied",
            Self::Unsupported => "unsupported",
            Self::Busy => "busy",
            Self::Suspended => "suspended",
            Self::Poisoned => "poisoned",
            Self::Forked => "forked",
            Self::DeviceLost => "device lost",
            Self::Peer => "peer",
            Self::File => "file",
            Self::Driver => "driver",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
