//! The kind of each detail.

use super::{Detail, ErrorKind};

impl Detail {
    /// Returns the kind.
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfMemory { .. }
            | Self::ExceedsDevice { .. }
            | Self::BudgetExhausted { .. }
            | Self::BackingStoreFull { .. } => ErrorKind::OutOfMemory,
            Self::ExceedsAddressSpace { .. } | Self::OutOfAddresses { .. } => ErrorKind::OutOfAddressSpace,
            Self::OutOfDescriptors { .. } => ErrorKind::OutOfDescriptors,
            Self::File { source, .. } if source.is_out_of_descriptors() => ErrorKind::OutOfDescriptors,
            Self::ZeroSize
            | Self::BadAlignment { .. }
            | Self::Overflow { .. }
            | Self::PartialMapping { .. }
            | Self::CrossesReservation { .. }
            | Self::TooManyElements { .. }
            | Self::BadTensor { .. }
            | Self::ForeignHandle { .. }
            | Self::ForeignStream { .. }
            | Self::BadTeam { .. }
            | Self::NotInTeam { .. }
            | Self::ObserverPanicked { .. }
            | Self::AccessDiffers { .. } => ErrorKind::InvalidArgument,
            Self::Unaligned { .. } => ErrorKind::Unaligned,
            Self::OutOfRange { .. } | Self::NoSuchElement { .. } => ErrorKind::OutOfRange,
            Self::AlreadyMapped { .. } | Self::AlreadyBound { .. } => ErrorKind::AlreadyMapped,
            Self::NotMapped { .. } | Self::NotBound { .. } | Self::NoMemoryAt { .. } => ErrorKind::NotMapped,
            Self::AddressTaken { .. }
            | Self::OutgrewReservation { .. }
            | Self::NotRestorable { .. }
            | Self::NotBelow { .. }
            | Self::Guarded { .. } => ErrorKind::AddressTaken,
            Self::NoSuchBank { .. } => ErrorKind::NotFound,
            Self::NoSuchDevice { .. } | Self::NoDevice { .. } => ErrorKind::NoSuchDevice,
            Self::PeerUnreachable { .. } => ErrorKind::PeerUnreachable,
            Self::NoAccess { .. } => ErrorKind::AccessDenied,
            Self::Unsupported { .. } | Self::LibraryNotFound { .. } | Self::LibraryRefused { .. } => {
                ErrorKind::Unsupported
            }
            Self::Exported { .. }
            | Self::StillReferenced { .. }
            | Self::Capturing { .. }
            | Self::Vetoed { .. }
            | Self::Notifying => ErrorKind::Busy,
            Self::Suspended { .. } => ErrorKind::Suspended,
            Self::Poisoned { .. } | Self::RollbackFailed { .. } | Self::AddressesLost { .. } => {
                ErrorKind::Poisoned
            }
            Self::Forked => ErrorKind::Forked,
            Self::Exiting => ErrorKind::Exiting,
            Self::DeviceLost { .. } => ErrorKind::DeviceLost,
            Self::Mismatch { .. } => ErrorKind::Peer,
            Self::File { .. } => ErrorKind::File,
            Self::DriverContractViolated { .. } | Self::Driver { .. } => ErrorKind::Driver,
            Self::Extension(error) => error.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::types::{
        Access, Address, AddressRange, BankId, Bytes, DeviceId, DriverError, Error, Granularity, LoadAttempt,
        OffsetRange, Operation, Vendor,
    };

    const A: Bytes = Bytes::mib(6);
    const B: Bytes = Bytes::mib(14);
    const D: DeviceId = DeviceId(5);
    const PART: OffsetRange = OffsetRange { offset: A, length: B };
    const OTHER: OffsetRange = OffsetRange { offset: Bytes::mib(22), length: Bytes::mib(2) };

    /// Each error has the kind by which a program reacts, and names its operation and every number that it has.
    #[test]
    fn errors_have_kind_and_numbers() {
        let granularity = Granularity::new(Bytes::mib(2)).unwrap();
        let (wanted, offered) = (Address(0x7000_0000), Address(0x9000_0000));
        let (what, why) = ("offset", || "because".to_owned());
        let rows: [(Detail, ErrorKind, &[&str]); 26] = [
            (Detail::ZeroSize, ErrorKind::InvalidArgument, &[]),
            (
                Detail::Unaligned { what, value: 0x30_0000, granularity },
                ErrorKind::Unaligned,
                &["offset 0x300000", "2 MiB", "0x200000"],
            ),
            (Detail::BadAlignment { alignment: Bytes(3) }, ErrorKind::InvalidArgument, &["alignment 3"]),
            (
                Detail::Overflow { base: 0xabc, length: 0xdef },
                ErrorKind::InvalidArgument,
                &["0xabc", "0xdef"],
            ),
            (
                Detail::OutOfRange { range: PART, limit: Bytes::mib(10) },
                ErrorKind::OutOfRange,
                &["20 MiB", "limit of 10 MiB"],
            ),
            (
                Detail::ExceedsAddressSpace { size: A, limit: B },
                ErrorKind::OutOfAddressSpace,
                &["6 MiB", "(14 MiB)"],
            ),
            (
                Detail::ExceedsDevice { requested: A, device: D, total: B },
                ErrorKind::OutOfMemory,
                &["the requested 6 MiB exceeds", "device 5", "(14 MiB)"],
            ),
            (
                Detail::AlreadyMapped { range: PART, mapping: OTHER },
                ErrorKind::AlreadyMapped,
                &["6 MiB", "the mapping of 2 MiB at offset 22 MiB"],
            ),
            (
                Detail::NotMapped { range: PART, hole: Bytes::mib(8), mapped: A, end: B },
                ErrorKind::NotMapped,
                &["nothing is mapped at offset 8 MiB", "has 6 MiB mapped", "up to offset 14 MiB"],
            ),
            (
                Detail::NotBelow { size: A, limit: wanted, offered },
                ErrorKind::AddressTaken,
                &["6 MiB", "below 0x70000000", "0x90000000"],
            ),
            (
                Detail::NoMemoryAt { address: wanted, reason: why() },
                ErrorKind::NotMapped,
                &["mapped at 0x70000000", "because"],
            ),
            (
                Detail::PartialMapping { range: PART, mapping: OTHER },
                ErrorKind::InvalidArgument,
                &["6 MiB", "cuts the mapping of", "22 MiB"],
            ),
            (
                Detail::CrossesReservation { range: PART, border: Bytes::mib(8) },
                ErrorKind::InvalidArgument,
                &["6 MiB", "at offset 8 MiB"],
            ),
            (
                Detail::AddressTaken { wanted, offered },
                ErrorKind::AddressTaken,
                &["0x90000000 instead of 0x70000000"],
            ),
            (
                Detail::OutgrewReservation { requested: B, reserved: A, wanted, offered },
                ErrorKind::AddressTaken,
                &["0..14 MiB exceeds the reservation of 6 MiB", "0x90000000 instead", "from 0x70000000 on"],
            ),
            (
                Detail::NoSuchDevice { device: D, vendor: Vendor::Hip, count: 3 },
                ErrorKind::NoSuchDevice,
                &["device 5", "has 3"],
            ),
            (
                Detail::PeerUnreachable { device: D, owner: DeviceId(2) },
                ErrorKind::PeerUnreachable,
                &["device 5 cannot reach the memory of device 2"],
            ),
            (
                Detail::NoAccess { device: D, offset: A, have: Access::Read, need: Access::ReadWrite },
                ErrorKind::AccessDenied,
                &["device 5 has read", "offset 6 MiB", "needs read and write"],
            ),
            (
                Detail::TooManyElements { count: 77, element: 9 },
                ErrorKind::InvalidArgument,
                &["77 elements of 9 bytes"],
            ),
            (
                Detail::NoSuchElement { index: 9, length: 7 },
                ErrorKind::OutOfRange,
                &["index 9 is not below the length 7"],
            ),
            (Detail::Exported { count: 1 }, ErrorKind::Busy, &["1 tensor of this region is"]),
            (Detail::Exported { count: 2 }, ErrorKind::Busy, &["2 tensors of this region are"]),
            (
                Detail::NoSuchBank { bank: BankId(3), existing: why() },
                ErrorKind::NotFound,
                &["bank 3", "because"],
            ),
            (
                Detail::BudgetExhausted {
                    requested: A,
                    held: B,
                    free: Bytes::mib(4),
                    budget: Bytes::mib(18),
                },
                ErrorKind::OutOfMemory,
                &["6 MiB exceeds", "budget of 18 MiB", "14 MiB held", "4 MiB of them free"],
            ),
            (Detail::Unsupported { reason: why() }, ErrorKind::Unsupported, &["not supported: because"]),
            (
                Detail::Mismatch { what: "granularity", theirs: why(), ours: "own".to_owned() },
                ErrorKind::Peer,
                &["granularity", "because", "own"],
            ),
        ];
        rows.into_iter().for_each(has_a_kind_and_all_its_numbers);
    }

    fn has_a_kind_and_all_its_numbers((detail, kind, words): (Detail, ErrorKind, &[&str])) {
        let error = Error::new(Operation::Map, detail);
        let text = error.to_string();
        assert_eq!((error.kind(), error.operation()), (kind, Operation::Map), "{text}");
        assert!(text.starts_with("map: ") && !text.contains('\n'), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is missing in {text:?}"));
    }

    /// The same for errors that have a text of a driver, of another error or of a caller.
    #[test]
    fn errors_with_reason_have_kind_and_numbers() {
        let (address, other) = (Address(0x7000_0000), Address(0x9000_0000));
        let (one, two) = (|| "one".to_owned(), || "two".to_owned());
        let source = || DriverError { call: "call", code: 7, name: "NAME".into(), description: "why".into() };
        let error = |detail| Error::new(Operation::Unmap, detail);
        let full = DriverError { name: "EMFILE".into(), ..source() };
        let rows: [(Detail, ErrorKind, &[&str]); 33] = [
            (
                Detail::OutOfMemory {
                    device: D,
                    requested: B,
                    free: A,
                    total: Bytes::mib(22),
                    source: source(),
                },
                ErrorKind::OutOfMemory,
                &["device 5", "requested 14 MiB", "free 6 MiB of 22 MiB", "NAME (7): why"],
            ),
            (
                Detail::OutOfDescriptors { source: source(), context: one() },
                ErrorKind::OutOfDescriptors,
                &["call answered NAME (7): why (one)", "no descriptor left", "ulimit -n"],
            ),
            (
                Detail::File { path: one(), source: full },
                ErrorKind::OutOfDescriptors,
                &["one: call answered EMFILE (7)"],
            ),
            (
                Detail::BackingStoreFull { needed: B, free: A, capacity: Bytes::mib(22) },
                ErrorKind::OutOfMemory,
                &["14 MiB needed", "6 MiB of 22 MiB free"],
            ),
            (Detail::BadTensor { reason: one() }, ErrorKind::InvalidArgument, &["one"]),
            (
                Detail::ForeignHandle { theirs: one(), ours: two() },
                ErrorKind::InvalidArgument,
                &["belongs to one, not to two"],
            ),
            (
                Detail::ForeignStream { theirs: one(), ours: two() },
                ErrorKind::InvalidArgument,
                &["the stream belongs to one, and the event to two"],
            ),
            (Detail::BadTeam { why: one() }, ErrorKind::InvalidArgument, &["one"]),
            (Detail::NotInTeam { device: D, team: one() }, ErrorKind::InvalidArgument, &["device 5", "one"]),
            (
                Detail::ObserverPanicked { text: one() },
                ErrorKind::InvalidArgument,
                &["panicked after the change: one"],
            ),
            (
                Detail::AccessDiffers { range: PART, device: D, one: Access::Read, other: Access::ReadWrite },
                ErrorKind::InvalidArgument,
                &["14 MiB at offset 6 MiB", "device 5 has read and read and write"],
            ),
            (
                Detail::AlreadyBound { device: D, range: PART, binding: OTHER },
                ErrorKind::AlreadyMapped,
                &["14 MiB at offset 6 MiB overlaps", "2 MiB at offset 22 MiB for device 5"],
            ),
            (Detail::NotBound { device: D, place: one() }, ErrorKind::NotMapped, &["device 5 is bound one"]),
            (
                Detail::NotRestorable {
                    tries: 9,
                    window: AddressRange { base: Address(0x1000), size: Bytes(0x2000) },
                    wanted: address,
                    offered: other,
                },
                ErrorKind::AddressTaken,
                &["9 addresses in 0x1000..0x3000", "for 0x70000000 the driver returned 0x90000000"],
            ),
            (
                Detail::Guarded { end: address, guard: A },
                ErrorKind::AddressTaken,
                &["ends at 0x70000000", "guard of 6 MiB"],
            ),
            (
                Detail::NoDevice { vendor: Vendor::Hip, reason: one() },
                ErrorKind::NoSuchDevice,
                &["the hip backend has no device: one"],
            ),
            (
                Detail::LibraryRefused { vendor: Vendor::Cuda, library: one(), reason: two() },
                ErrorKind::Unsupported,
                &["the cuda backend cannot use one: two"],
            ),
            (
                Detail::LibraryNotFound {
                    vendor: Vendor::Cuda,
                    what: "what",
                    variable: "VARIABLE",
                    tried: Vec::new(),
                },
                ErrorKind::Unsupported,
                &["the cuda backend", "(what)", "set VARIABLE"],
            ),
            (
                Detail::StillReferenced { range: PART, holder: "has a holder" },
                ErrorKind::Busy,
                &["14 MiB at offset 6 MiB has a holder"],
            ),
            (Detail::Capturing { source: None }, ErrorKind::Busy, &["into a graph; end"]),
            (Detail::Capturing { source: Some(source()) }, ErrorKind::Busy, &["call answered NAME (7): why"]),
            (
                Detail::Vetoed { range: PART, reason: one() },
                ErrorKind::Busy,
                &["14 MiB at offset 6 MiB", ": one"],
            ),
            (Detail::Notifying, ErrorKind::Busy, &[]),
            (Detail::Suspended { address, reserved: B }, ErrorKind::Suspended, &["14 MiB at 0x70000000"]),
            (
                Detail::Poisoned { range: PART, cause: one() },
                ErrorKind::Poisoned,
                &["14 MiB at offset 6 MiB", ": one"],
            ),
            (
                Detail::RollbackFailed { error: error(Detail::Forked), undo: error(Detail::ZeroSize) },
                ErrorKind::Poisoned,
                &["map: this process was forked", "the rollback failed as well: unmap: the size is zero"],
            ),
            (
                Detail::AddressesLost { address, reserved: B, source: error(Detail::ZeroSize) },
                ErrorKind::Poisoned,
                &["14 MiB at 0x70000000", "unmap: the size is zero"],
            ),
            (Detail::Forked, ErrorKind::Forked, &[]),
            (Detail::Exiting, ErrorKind::Exiting, &[]),
            (
                Detail::DeviceLost { source: source() },
                ErrorKind::DeviceLost,
                &["call answered NAME (7): why"],
            ),
            (
                Detail::File { path: one(), source: source() },
                ErrorKind::File,
                &["one: call answered NAME (7)"],
            ),
            (Detail::DriverContractViolated { what: one() }, ErrorKind::Driver, &[": one"]),
            (
                Detail::Driver { source: source(), context: one() },
                ErrorKind::Driver,
                &["call answered NAME (7): why (one)"],
            ),
        ];
        rows.into_iter().for_each(has_a_kind_and_all_its_numbers);
    }

    #[test]
    fn each_load_attempt_has_a_line() {
        let tried = ["one", "two"]
            .map(|library| LoadAttempt { library: library.to_owned(), answer: format!("no {library}") });
        let detail = Detail::LibraryNotFound {
            vendor: Vendor::Cuda,
            what: "what",
            variable: "VARIABLE",
            tried: tried.to_vec(),
        };
        assert!(detail.to_string().ends_with("tried:\n  one: no one\n  two: no two"), "{detail}");
    }
}
