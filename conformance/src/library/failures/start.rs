//! What an operation finds: which region or vector, with what, and what beside.

use crate::subject::Subject;
use gpu_vmm_core::{Address, BackingKind};
use gpu_vmm_testkit::TestKit;

/// What an operation finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// A region, or a vector.
    pub(super) kind: Kind,
    /// True where the addresses behind the region are taken, so that it cannot be extended.
    pub(super) walled: bool,
    /// True where the region has a second reservation, with memory up to granule 6.
    pub(super) extended: bool,
    /// True where granule 4 is the only one with memory in the first reservation: for what takes long with each mapping.
    pub(super) sparse: bool,
    /// True where a second device has access as well.
    pub(super) peer: bool,
    /// True where an extension asks for as much as there is, before it asks for what is needed.
    pub(super) generous: bool,
    /// True where there is memory that can be exported, with a descriptor of it.
    pub(super) shared: bool,
    /// True where the region has a guard, so that it cannot be extended either.
    pub(super) guarded: bool,
    /// The second region.
    pub(super) beside: Beside,
    /// True where there is a ring of buffers.
    pub(super) ring: bool,
    /// True where no device may do anything with the mapping that else may be read alone.
    pub(super) closed: bool,
    /// What kind of store there is.
    pub(super) store: BackingKind,
    /// True where the region, or the vector, is suspended, in the store.
    pub(super) suspended: bool,
    /// Whether there is a region to be captured, or one in a file.
    pub(super) saved: Option<Kept>,
}

/// What there is beside the region that is operated on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// A region with mappings of so many granules in a row.
    Pieces(&'static [u64]),
    /// A region with mappings at the same offsets.
    Twin,
}

/// How a second region is there for a snapshot's sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Mapped,
    InFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Region,
    /// One element short of two granules.
    Vector,
    /// Of as many elements as its reservation has room for.
    FullVector,
    /// With memory for one granule more than its elements need.
    SlackVector,
    /// Three sets of two granules, of which the first is shown.
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
    pub(super) const SAVED: Self = Self { saved: Some(Kept::InFile), ..Self::FREE };
    pub(super) const TO_SAVE: Self = Self { saved: Some(Kept::Mapped), ..Self::FREE };
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
    pub(super) const SEAM: Self = Self { sparse: true, ..Self::EXTENDED };
    pub(super) const PEER_SEAM: Self = Self { peer: true, ..Self::SEAM };
    pub(super) const PEER_RING: Self = Self { ring: true, ..Self::PEER_SEAM };
    pub(super) const SLOTS: Self = Self { kind: Kind::BankedRegion, ..Self::FREE };
    pub(super) const PEER_SLOTS: Self = Self { kind: Kind::BankedRegion, ..Self::PEER };
    pub(super) const CLOSED: Self = Self { closed: true, ..Self::FREE };

    /// The same with a second region beside, with mappings of so many granules.
    pub(super) const fn beside(self, pieces: &'static [u64]) -> Self {
        Self { beside: Beside::Pieces(pieces), ..self }
    }

    /// The same with a store of this kind.
    pub(super) const fn with(self, store: BackingKind) -> Self {
        Self { store, ..self }
    }

    /// The same, suspended in its store.
    pub(super) const fn suspended(self) -> Self {
        Self { suspended: true, ..self }
    }

    /// True where a region is restored from a file.
    pub(super) fn is_in_file(self) -> bool {
        self.saved == Some(Kept::InFile)
    }

    /// True where nothing can be reserved behind the region.
    pub(super) const fn is_walled(self) -> bool {
        self.walled || self.guarded
    }
}

/// Where a second region is, or one that comes out of a file: behind whatever the first becomes.
pub(super) fn far<B: TestKit>(subject: &Subject<B>, hole: Address) -> Address {
    hole.checked_add(subject.units(48)).unwrap()
}
