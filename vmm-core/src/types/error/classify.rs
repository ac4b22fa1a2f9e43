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
            Self::AddressSpaceExhausted { .. } => ErrorKind::OutOfAddressSpace,
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
            Self::NotMapped { .. } | Self::NotBound { .. } => ErrorKind::NotMapped,
            Self::AddressTaken { .. }
            | Self::OutgrewReservation { .. }
            | Self::NotRestorable { .. }
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
        Access, Address, BankId, Bytes, DeviceId, Error, Granularity, OffsetRange, Operation, Vendor,
    };

    const A: Bytes = Bytes::mib(6);
    const B: Bytes = Bytes::mib(14);
    const D: DeviceId = DeviceId(5);
    const PART: OffsetRange = OffsetRange { offset: A, length: B };
    const OTHER: OffsetRange = OffsetRange { offset: Bytes::mib(22), length: Bytes::mib(2) };

    /// Each error has the kind by which a program reacts, and names its operation and every number that it has.
    #[test]
    fn errors_have_a_kind_and_all_their_numbers() {
        let granularity = Granularity::new(Bytes::mib(2)).unwrap();
        let (wanted, offered) = (Address(0x7000_0000), Address(0x9000_0000));
        let (what, why) = ("offset", || "because".to_owned());
        let rows: [(Detail, ErrorKind, &[&str]); 24] = [
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
                Detail::AddressSpaceExhausted { size: A, limit: B },
                ErrorKind::OutOfAddressSpace,
                &["6 MiB", "(14 MiB)"],
            ),
            (
                Detail::ExceedsDevice { requested: A, device: D, total: B },
                ErrorKind::OutOfMemory,
                &["6 MiB exceeds", "device 5", "(14 MiB)"],
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
                Detail::OutgrewReservation { asked: B, reserved: A, wanted, offered },
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
                Detail::NoSuchBank { set: BankId(3), there: why() },
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
                &["6 MiB exceed", "budget of 18 MiB", "14 MiB held", "4 MiB of them free"],
            ),
            (Detail::Unsupported { reason: why() }, ErrorKind::Unsupported, &["not supported: because"]),
            (
                Detail::Mismatch { what: "granularity", theirs: why(), ours: "own".to_owned() },
                ErrorKind::Peer,
                &["granularity", "because", "own"],
            ),
        ];
        for (detail, kind, words) in rows {
            let error = Error::new(Operation::Map, detail);
            let text = error.to_string();
            assert_eq!((error.kind(), error.operation()), (kind, Operation::Map), "{text}");
            assert!(text.starts_with("map: ") && !text.contains('\n'), "{text}");
            words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is missing in {text:?}"));
        }
    }
}
