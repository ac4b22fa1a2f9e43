//! Kinds of errors, one for each way in which a program can react.

use std::fmt;

/// The kind of an error, which determines what a program can do about it. [`Error::kind`](super::Error::kind) returns it; the
/// numbers are in [`Detail`](super::Detail).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device or the backing store has too little memory, or a budget is used up. Free some, or request less.
    OutOfMemory,
    /// The process has too few free addresses. Reserve less, drop other reservations, or raise the limit that the text names.
    OutOfAddressSpace,
    /// The process has as many open files as `RLIMIT_NOFILE` allows. Close some, or raise the limit.
    OutOfDescriptors,
    /// An argument that no state of the program makes valid, such as a size of zero. Correct the call.
    InvalidArgument,
    /// A size, offset or address that is not a multiple of the granularity. Round it.
    Unaligned,
    /// A range or index outside of the region, the memory or the vector.
    OutOfRange,
    /// Memory is mapped there already. Unmap it first.
    AlreadyMapped,
    /// No memory is mapped there.
    NotMapped,
    /// The addresses are in use or not available. Let the driver choose others.
    AddressTaken,
    /// No block has the address, or it was freed already; or the tag or bank does not exist.
    NotFound,
    /// The device does not exist, or the driver has no device.
    NoSuchDevice,
    /// The device cannot access the memory of the other one.
    PeerUnreachable,
    /// A device or a process does not have the right that the call needs.
    AccessDenied,
    /// The driver or this version of it cannot do this, or is not installed. Use another way.
    Unsupported,
    /// The memory is in use elsewhere, an observer refuses the change, or a stream captures. Try again after that has ended.
    Busy,
    /// The region, or the memory with the tag, is suspended. Resume it first.
    Suspended,
    /// An operation failed and so did its rollback. The affected range cannot be used any more.
    Poisoned,
    /// The process is a forked child, in which no driver works.
    Forked,
    /// The process exits, and its drivers end with it. Destructors can ignore this.
    Exiting,
    /// The device, or its context in this process, has failed permanently.
    DeviceLost,
    /// Another process has ended, refused, or sent invalid data.
    Peer,
    /// Another process did not connect, reply or read in time. Try again.
    TimedOut,
    /// No process listens at the path, or not yet. Try again later.
    NoListener,
    /// The process that listened at the path has ended and has left its socket. Replace it, or remove the path.
    StaleSocket,
    /// A file cannot be created, written or read, or its contents are invalid.
    File,
    /// An error of the driver or the operating system that has no kind of its own.
    Driver,
}

impl ErrorKind {
    /// Returns the kind in lower case, as messages and reports print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out of memory",
            Self::OutOfAddressSpace => "out of address space",
            Self::OutOfDescriptors => "out of descriptors",
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
            Self::Exiting => "exiting",
            Self::DeviceLost => "device lost",
            Self::Peer => "peer",
            Self::TimedOut => "timed out",
            Self::NoListener => "no listener",
            Self::StaleSocket => "stale socket",
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a name in Rust, in lower case.
    #[test]
    fn a_kind_has_its_name() {
        use ErrorKind::*;
        let all = [
            OutOfMemory,
            OutOfAddressSpace,
            OutOfDescriptors,
            InvalidArgument,
            Unaligned,
            OutOfRange,
            AlreadyMapped,
            NotMapped,
            AddressTaken,
            NotFound,
            NoSuchDevice,
            PeerUnreachable,
            AccessDenied,
            Unsupported,
            Busy,
            Suspended,
            Poisoned,
            Forked,
            Exiting,
            DeviceLost,
            Peer,
            TimedOut,
            NoListener,
            StaleSocket,
            File,
            Driver,
        ];
        for kind in all {
            let mut words = String::new();
            for letter in format!("{kind:?}").chars() {
                if letter.is_uppercase() && !words.is_empty() {
                    words.push(' ');
                }
                words.extend(letter.to_lowercase());
            }
            assert_eq!((kind.name(), kind.to_string()), (&*words, words.clone()));
        }
    }
}
