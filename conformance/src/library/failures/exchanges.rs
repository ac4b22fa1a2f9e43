//! Rows of the operations that exchange the memory behind an address: swap, banks, moves to another device.

use super::bench::{Bench, Made};
use super::row::{IDLE, Row, keep};
use super::start::Start;
use crate::library::tools::streams_idle;
use gpu_vmm_core::{BankedRegion, Bytes, MovePath, Region, Result, Stream, WaitFor};
use gpu_vmm_testkit::TestKit;

/// Returns all rows of this module.
pub(super) fn all<B: TestKit>() -> Vec<Row<B>> {
    [swap(), swap_all(), move_to_device(), banks(), shown()].into_iter().flatten().collect()
}

#[allow(unsafe_code)]
fn swap<B: TestKit>() -> Vec<Row<B>> {
    const OF: &str = "Region::swap";
    fn part<B: TestKit>(bench: &mut Bench<B>, from: u64, count: u64, done: WaitFor<'_>) -> Result<()> {
        let (offset, length) = (bench.at(from), bench.granules(count));
        let (region, beside) = bench.both_regions();
        region.swap(offset, beside, Bytes(0), length, done)
    }
    vec![
        Row::new(OF, "one mapping", Start::FREE.beside(&[1]), |bench| part(bench, 3, 1, IDLE)),
        Row::new(OF, "a run of unequal access", Start::FREE.beside(&[1, 1]), |bench| part(bench, 0, 2, IDLE)),
        Row::new(OF, "across reservations", Start::EXTENDED.beside(&[1, 1, 1]), |bench| {
            part(bench, 3, 3, IDLE)
        }),
        Row::new(OF, "cut differently", Start::EXTENDED.beside(&[2]), |bench| part(bench, 3, 2, IDLE)).cuts(),
        Row::new(OF, "memory that two devices use", Start::PEER.beside(&[1, 1]), |bench| {
            part(bench, 0, 2, IDLE)
        }),
        Row::new(OF, "after a stream", Start::FREE.beside(&[1]), |bench| {
            // SAFETY: null is the default stream of both vendors.
            let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
            part(bench, 0, 1, streams_idle(&[stream]))
        }),
    ]
}

fn swap_all<B: TestKit>() -> Vec<Row<B>> {
    vec![Row::new("Region::swap_all", "with a hole", Start::TWIN, |bench| {
        let (region, beside) = bench.both_regions();
        region.swap_all(beside, IDLE)
    })]
}

fn move_to_device<B: TestKit>() -> Vec<Row<B>> {
    const OF: &str = "Region::move_to_device";
    fn fastest<B: TestKit>(bench: &mut Bench<B>) -> Result<()> {
        let device = bench.peer;
        bench.region().move_to_device(device, MovePath::Fastest(None), IDLE).map(drop)
    }
    vec![
        Row::new(OF, "by peer copies", Start::PEER, fastest).moves(),
        Row::new(OF, "across reservations", Start::PEER_BORDER, fastest).moves(),
        Row::new(OF, "through a ring", Start::PEER_RING, |bench| {
            let device = bench.peer;
            let (region, ring) = bench.region_and_ring();
            region.move_to_device(device, MovePath::Ring(ring), IDLE).map(drop)
        })
        .moves(),
    ]
}

fn banks<B: TestKit>() -> Vec<Row<B>> {
    fn select<B: TestKit>(bench: &mut Bench<B>, bank: usize) -> Result<()> {
        let bank = bench.banks[bank];
        bench.banked().select(bank, IDLE)
    }
    vec![
        Row::new("BankedRegion::build", "", Start::FREE, |bench| {
            let builder = Region::builder(&bench.backend).on(bench.device).reserve(bench.granules(1));
            let banked = BankedRegion::build(builder);
            keep(bench, banked.map(Made::BankedRegion))
        }),
        Row::new("BankedRegion::add_bank", "", Start::BANKED, |bench| {
            let size = bench.granules(1);
            bench.banked().add_bank(size).map(drop)
        }),
        Row::new("BankedRegion::add_bank_of", "memory that two devices use", Start::PEER_BANKED, |bench| {
            let memory = vec![bench.memory.clone()];
            bench.banked().add_bank_of(memory).map(drop)
        })
        .looks(),
        Row::new("BankedRegion::select", "one with allocations of the same sizes", Start::BANKED, |bench| {
            select(bench, 1)
        }),
        Row::new("BankedRegion::select", "one with allocations of other sizes", Start::BANKED, |bench| {
            select(bench, 2)
        })
        .cuts(),
        Row::new("BankedRegion::select", "for two devices", Start::PEER_BANKED, |bench| select(bench, 1)),
        Row::new("BankedRegion::hide", "", Start::BANKED, |bench| bench.banked().hide(IDLE)),
        Row::new("BankedRegion::remove_bank", "the selected bank", Start::BANKED, |bench| {
            let bank = bench.banks[0];
            bench.banked().remove_bank(bank, IDLE).map(drop)
        }),
    ]
}

fn shown<B: TestKit>() -> Vec<Row<B>> {
    vec![
        Row::new("BankedRegion::write", "", Start::BANKED, |bench| bench.banked().write(Bytes(8), &[7; 200]))
            .writes(0, 1),
        Row::new("BankedRegion::fill", "", Start::BANKED, |bench| {
            bench.banked().fill(Bytes(8), Bytes(200), 9)
        })
        .writes(0, 1),
        Row::new("BankedRegion::copy_from", "", Start::BANKED.beside(&[1]), |bench| {
            let (banked, beside) = bench.banked_and_region();
            banked.copy_from(Bytes(8), beside, Bytes(0), Bytes(200))
        })
        .writes(0, 1),
        Row::new("BankedRegion::write_pattern", "", Start::BANKED, |bench| {
            let (device, length) = (bench.device, bench.granules(1));
            bench.banked().write_pattern(device, Bytes(0), length, 3)
        })
        .writes(0, 1),
    ]
}
