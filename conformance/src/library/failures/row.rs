//! One row of the table of operations.

use super::bench::{Bench, Made};
use super::start::Start;
use gpu_vmm_core::{Result, WaitFor};
use gpu_vmm_testkit::TestKit;
use std::fmt;

/// One way in which an operation goes.
pub(super) struct Row<B: TestKit> {
    /// The public function, such as `Region::unmap`.
    pub(super) of: &'static str,
    /// Which way it goes.
    pub(super) what: &'static str,
    pub(super) start: Start,
    pub(super) run: fn(&mut Bench<B>) -> Result<()>,
    /// It asks for more than it needs at first, and goes on with less.
    pub(super) has_wish: bool,
    /// It changes nothing.
    pub(super) only_looks: bool,
    /// The granules of which some may have been written when it fails.
    pub(super) writes: Option<(u64, u64)>,
    /// The vector may have more memory when it fails, not more elements.
    pub(super) may_keep_capacity: bool,
    /// It works on addresses elsewhere, which are given up where undoing fails.
    pub(super) moves: bool,
    /// It frees memory of a guarded region, and has succeeded where that cannot be poisoned: the log says so.
    pub(super) poisons: bool,
    /// It maps pieces that are cut in other places than those before, of which one that is stuck takes several places.
    pub(super) cuts: bool,
    /// Contents that were elsewhere are there when it has succeeded.
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

/// The operations after whose failure there is something to undo, so that undoing can fail.
pub(super) const UNDONE: &[&str] = &[
    "Region::unmap",
    "Region::set_access",
    "Region::map_with_access",
    "Region::grow_with",
    "Region::grow_to",
    "Region::grow_to_on",
    "Region::grow_or_move",
    "Region::grow_or_move_on",
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
