//! The state in which an operation starts: the region or vector, its memory, and other objects.

use crate::subject::Subject;
use gpu_vmm_core::{Address, BackingKind};
use gpu_vmm_testkit::TestKit;

/// The state in which an operation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// A region, a vector or a banked region.
    pub(super) kind: Kind,
    /// True if the addresses behind the region are taken, so that it cannot be extended.
    pub(super) walled: bool,
    /// True if the region has a second reservation, with memory up to granule 6.
    pub(super) extended: bool,
    /// True if only granule 4 has memory in the first reservation: for operations that take long for each mapping.
    pub(super) sparse: bool,
    /// True if a second device has access too.
    pub(super) peer: bool,
    /// True if an extension first requests as much again, before it requests the needed size.
    pub(super) generous: bool,
    /// True if there is exportable memory, with a descriptor of it.
    pub(super) shared: bool,
    /// True if the region has a guard, which prevents extension too.
    pub(super) guarded: bool,
    /// The second region.
    pub(super) beside: Beside,
    /// True if there is a staging ring.
    pub(super) ring: bool,
    /// True if no device may access the mapping that otherwise is read-only.
    pub(super) closed: bool,
    /// The kind of backing store.
    pub(super) store: BackingKind,
    /// True if the region or the vector is suspended in the store.
    pub(super) suspended: bool,
    /// The region to capture, or the one in a file.
    pub(super) saved: Option<SnapshotForm>,
}

/// The second region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// A region with adjacent mappings of these numbers of granules.
    Pieces(&'static [u64]),
    /// A region with mappings at the same offsets.
    Twin,
}

/// The form of the region for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotForm {
    Mapped,
    InFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Region,
    /// A vector that is one element short of two granules.
    Vector,
    /// A vector that fills its reservation.
    FullVector,
    /// A vector with memory for one granule more than its elements need.
    SlackVector,
    /// Three banks of two granules each, of which the first is selected.
    BankedRegion,
}

impl Start {
    pub(super) const FREE: Self = Self {
        kind: Kind::Region,
        walled: false,
        extended: false,
        sparse: false,
        peer: false,
        generous: false,
        shared: false,
        guarded: false,
        beside: Beside::Nothing,
        ring: false,
        closed: false,
        store: BackingKind::Nothing,
        suspended: false,
        saved: None,
    };
    pub(super) const SAVED: Self = Self { saved: Some(SnapshotForm::InFile), ..Self::FREE };
    pub(super) const TO_SAVE: Self = Self { saved: Some(SnapshotForm::Mapped), ..Self::FREE };
    pub(super) const EXTENDED: Self = Self { extended: true, ..Self::FREE };
    pub(super) const BESIDE: Self = Self::EXTENDED.beside(&[1]);
    pub(super) const TWIN: Self = Self { beside: Beside::Twin, ..Self::FREE };
    pub(super) const WALLED: Self = Self { walled: true, ..Self::FREE };
    pub(super) const GUARDED: Self = Self { guarded: true, ..Self::FREE };
    pub(super) const GENEROUS: Self = Self { generous: true, ..Self::FREE };
    pub(super) const PEER: Self = Self { peer: true, ..Self::FREE };
    pub(super) const PEER_WALLED: Self = Self { walled: true, ..Self::PEER };
    pub(super) const VECTOR: Self = Self { kind: Kind::Vector, ..Self::FREE };
    pub(super) const FULL_VECTOR: Self = Self { kind: Kind::FullVector, ..Self::WALLED };
    pub(super) const SLACK_VECTOR: Self = Self { kind: Kind::SlackVector, ..Self::FREE };
    pub(super) const SHARED: Self = Self { shared: true, ..Self::FREE };
    pub(super) const BORDER: Self = Self { sparse: true, ..Self::EXTENDED };
    pub(super) const PEER_BORDER: Self = Self { peer: true, ..Self::BORDER };
    pub(super) const PEER_RING: Self = Self { ring: true, ..Self::PEER_BORDER };
    pub(super) const BANKED: Self = Self { kind: Kind::BankedRegion, ..Self::FREE };
    pub(super) const PEER_BANKED: Self = Self { kind: Kind::BankedRegion, ..Self::PEER };
    pub(super) const CLOSED: Self = Self { closed: true, ..Self::FREE };

    /// Returns this start with a second region that has mappings of these numbers of granules.
    pub(super) const fn beside(self, pieces: &'static [u64]) -> Self {
        Self { beside: Beside::Pieces(pieces), ..self }
    }

    /// Returns this start with a store of this kind.
    pub(super) const fn with(self, store: BackingKind) -> Self {
        Self { store, ..self }
    }

    /// Returns this start, suspended in its store.
    pub(super) const fn suspended(self) -> Self {
        Self { suspended: true, ..self }
    }

    /// Returns true if a region is restored from a file.
    pub(super) fn is_in_file(self) -> bool {
        self.saved == Some(SnapshotForm::InFile)
    }

    /// Returns true if no addresses can be reserved behind the region.
    pub(super) const fn is_walled(self) -> bool {
        self.walled || self.guarded
    }
}

/// Returns the address of a second region, or of one that is restored: behind all addresses that the first one can use.
pub(super) fn far<B: TestKit>(subject: &Subject<B>, hole: Address) -> Address {
    hole.checked_add(subject.units(48)).unwrap()
}
