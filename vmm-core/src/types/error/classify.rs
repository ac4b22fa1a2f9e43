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
