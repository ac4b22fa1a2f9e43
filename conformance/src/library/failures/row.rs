//! One row of the table of operations.

use super::bench::{Bench, Made};
use super::start::Start;
use gpu_vmm_core::{Result, WaitFor};
use gpu_vmm_testkit::TestKit;
use std::fmt;

/// One variant of an operation.
pub(super) struct Row<B: TestKit> {
    /// The public function, such as `Region::unmap`.
    pub(super) of: &'static str,
    /// The variant.
    pub(super) what: &'static str,
    pub(super) start: Start,
    pub(super) run: fn(&mut Bench<B>) -> Result<()>,
    /// The operation first requests more than it needs, and continues with less if that fails.
    pub(super) has_wish: bool,
    /// The operation changes nothing.
    pub(super) only_looks: bool,
    /// The granules that may be partly written if the operation fails.
    pub(super) writes: Option<(u64, u64)>,
    /// After a failure the vector may have more memory, but not more elements.
    pub(super) may_keep_capacity: bool,
    /// The operation works on addresses elsewhere and gives them up if undoing fails.
    pub(super) moves: bool,
    /// The operation frees memory of a guarded region. If poisoning fails, it still succeeds and logs the failure.
    pub(super) poisons: bool,
    /// The operation maps allocations with other borders than before, so one that stays mapped covers several old mappings.
    pub(super) cuts: bool,
    /// After success, saved contents are in the memory again.
    pub(super) brings_back: bool,
}

impl<B: TestKit> fmt::Display for Row<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.of, self.what)
    }
}

impl<B: TestKit> Row<B> {
    pub(super) const fn new(
        of: &'static str,
        what: &'static str,
        start: Start,
        run: fn(&mut Bench<B>) -> Result<()>,
    ) -> Self {
        Self {
            of,
            what,
            start,
            run,
            has_wish: false,
            only_looks: false,
            writes: None,
            may_keep_capacity: false,
            moves: false,
            poisons: false,
            cuts: false,
            brings_back: false,
        }
    }

    pub(super) const fn wish(self) -> Self {
        Self { has_wish: true, ..self }
    }

    pub(super) const fn looks(self) -> Self {
        Self { only_looks: true, ..self }
    }

    pub(super) const fn writes(self, from: u64, to: u64) -> Self {
        Self { writes: Some((from, to)), ..self }
    }

    pub(super) const fn keeps_capacity(self) -> Self {
        Self { may_keep_capacity: true, ..self }
    }

    pub(super) const fn poisons(self) -> Self {
        Self { poisons: true, ..self }
    }

    pub(super) const fn moves(self) -> Self {
        Self { moves: true, ..self }
    }

    pub(super) const fn cuts(self) -> Self {
        Self { cuts: true, ..self }
    }

    pub(super) const fn brings_back(self) -> Self {
        Self { brings_back: true, ..self }
    }
}

pub(super) const IDLE: WaitFor<'static> = WaitFor::all_devices();

pub(super) fn keep<B: TestKit>(bench: &mut Bench<B>, made: Result<Made<B>>) -> Result<()> {
    bench.made.push(made?);
    Ok(())
}

/// The operations that must undo something after a failure, so that undoing can fail.
pub(super) const UNDONE: &[&str] = &[
    "Region::unmap",
    "Region::set_access",
    "Region::map_with_access",
    "Region::grow_with",
    "Region::grow_to",
    "Region::grow_to_on",
    "Region::grow_or_move",
    "Region::shrink_to",
    "Region::swap",
    "Region::swap_all",
    "Region::move_to_device",
    "BankedRegion::select",
    "Region::suspend",
    "Region::resume",
    "Region::suspend_into",
    "Region::resume_from",
    "DeviceVec::reserve",
    "DeviceVec::push",
    "DeviceVec::extend_from_slice",
    "DeviceVec::resize",
    "DeviceVec::suspend",
    "DeviceVec::resume",
    "Snapshot::write",
    "Restore::regions",
];
