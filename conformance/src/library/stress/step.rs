//! One step of a random program, drawn before it is known which regions and mappings exist.

use gpu_vmm_core::Access;
use proptest::prelude::*;

/// The maximum number of regions at a time.
pub(super) const REGIONS: usize = 3;
/// The maximum number of memory handles that are held at a time.
pub(super) const MEMORIES: usize = 4;
/// The last granule at which an operation is tried, behind the end of most regions.
const LAST: u64 = 14;

/// An operation with the numbers of its operands. Sizes and places are in granules; a `skew` is in additional bytes.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create {
        memory: usize,
        device: usize,
        granules: u64,
    },
    Forget {
        memory: usize,
    },
    Build {
        region: usize,
        granules: u64,
        for_peer: bool,
        same_place: bool,
    },
    Drop {
        region: usize,
    },
    Map {
        region: usize,
        memory: usize,
        spot: Spot,
    },
    Unmap {
        region: usize,
        part: Part,
    },
    SetAccess {
        region: usize,
        part: Part,
        device: usize,
        access: Access,
    },
    Grow {
        region: usize,
        size: Size,
        device: usize,
        may_move: bool,
    },
    Shrink {
        region: usize,
        size: Size,
    },
    Pattern {
        region: usize,
        part: Part,
        device: usize,
        seed: u32,
    },
    Write {
        region: usize,
        part: Part,
        place: InGranule,
        length: u64,
        value: u8,
    },
    Fill {
        region: usize,
        part: Part,
        value: u8,
    },
    /// Swaps a part with as many bytes from the start of the other part.
    Swap {
        region: usize,
        other: usize,
        part: Part,
        other_part: Part,
    },
}

/// The offset of a mapping.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spot {
    At {
        at: u64,
        skew: u64,
    },
    /// One of the free offsets at which it fits.
    Free(usize),
}

/// The part of a region that an operation works on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Any {
        at: u64,
        skew: u64,
        granules: u64,
    },
    /// `count` whole mappings, from one of them on.
    Whole {
        first: usize,
        count: usize,
    },
}

/// The new size of a region.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size {
    Any {
        granules: u64,
        skew: u64,
    },
    /// The current end and this many granules more.
    More(u64),
}

/// The place in a granule at which bytes are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum InGranule {
    Begin,
    Inside,
    /// So close to the end that some bytes are in the next granule.
    End,
}

/// Programs of up to `most` steps.
pub(super) fn programs(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..=most)
}

fn step() -> impl Strategy<Value = Step> {
    let region = || 0..REGIONS;
    let memory = || 0..MEMORIES;
    let device = || 0..2_usize;
    let access = prop_oneof![1 => Just(Access::None), 1 => Just(Access::Read), 3 => Just(Access::ReadWrite)];
    let place = prop_oneof![Just(InGranule::Begin), Just(InGranule::Inside), Just(InGranule::End)];
    prop_oneof![
        3 => (memory(), device(), 1..=3_u64)
            .prop_map(|(memory, device, granules)| Step::Create { memory, device, granules }),
        1 => memory().prop_map(|memory| Step::Forget { memory }),
        1 => (region(), 1..=12_u64, any::<bool>(), any::<bool>()).prop_map(
            |(region, granules, for_peer, same_place)| Step::Build { region, granules, for_peer, same_place }
        ),
        1 => region().prop_map(|region| Step::Drop { region }),
        8 => (region(), memory(), spot()).prop_map(|(region, memory, spot)| Step::Map { region, memory, spot }),
        5 => (region(), part()).prop_map(|(region, part)| Step::Unmap { region, part }),
        10 => (region(), part(), device(), access).prop_map(
            |(region, part, device, access)| Step::SetAccess { region, part, device, access }
        ),
        5 => (region(), size(), device(), any::<bool>())
            .prop_map(|(region, size, device, may_move)| Step::Grow { region, size, device, may_move }),
        2 => (region(), size()).prop_map(|(region, size)| Step::Shrink { region, size }),
        8 => (region(), part(), device(), any::<u32>())
            .prop_map(|(region, part, device, seed)| Step::Pattern { region, part, device, seed }),
        5 => (region(), part(), place, 0..=40_u64, any::<u8>()).prop_map(
            |(region, part, place, length, value)| Step::Write { region, part, place, length, value }
        ),
        2 => (region(), part(), any::<u8>()).prop_map(|(region, part, value)| Step::Fill { region, part, value }),
        5 => (region(), region(), part(), part()).prop_map(
            |(region, other, part, other_part)| Step::Swap { region, other, part, other_part }
        ),
    ]
}

/// One in ten is misaligned.
fn skew() -> impl Strategy<Value = u64> {
    prop_oneof![9 => Just(0_u64), 1 => 1..8_u64]
}

fn spot() -> impl Strategy<Value = Spot> {
    prop_oneof![
        3 => (0..8_usize).prop_map(Spot::Free),
        1 => (0..=LAST, skew()).prop_map(|(at, skew)| Spot::At { at, skew }),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        3 => (0..8_usize, 1..=3_usize).prop_map(|(first, count)| Part::Whole { first, count }),
        1 => (0..=LAST, skew(), 0..=4_u64).prop_map(|(at, skew, granules)| Part::Any { at, skew, granules }),
    ]
}

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        (0..4_u64).prop_map(Size::More),
        (0..=LAST + 4, skew()).prop_map(|(granules, skew)| Size::Any { granules, skew }),
    ]
}
