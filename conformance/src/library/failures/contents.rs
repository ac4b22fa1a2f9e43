//! Rows of the operations that save contents and bring them back: suspend, resume, snapshots.

use super::bench::{Bench, Made};
use super::row::{IDLE, Row, keep};
use super::start::Start;
use gpu_vmm_core::{
    BackingKind, BackingStore, Bytes, Detail, Error, PhysicalMemory, Properties, StagingRing,
};
use gpu_vmm_testkit::TestKit;

/// Returns all rows of this module.
pub(super) fn all<B: TestKit>() -> Vec<Row<B>> {
    [suspend(), snapshot()].into_iter().flatten().collect()
}

fn suspend<B: TestKit>() -> Vec<Row<B>> {
    const OF: &str = "Region::suspend";
    const BACK: &str = "Region::resume";
    const PINNED: BackingKind = BackingKind::Pinned;
    const PAGEABLE: BackingKind = BackingKind::Pageable;
    let ways = [
        ("with page-locked memory", Start::FREE.with(PINNED)),
        ("through a ring, across reservations", Start::BORDER.with(PAGEABLE)),
        ("with memory that its owner may not read", Start::CLOSED.with(PINNED)),
        ("with memory that two devices use", Start::PEER.with(PINNED)),
        ("with a file", Start::BORDER.with(BackingKind::File)),
    ];
    let mut rows = vec![
        Row::new("StagingRing::new", "", Start::FREE, |bench| {
            let ring = StagingRing::new(&bench.backend, 2, bench.granules(1)).map(Made::Ring);
            keep(bench, ring)
        })
        .looks(),
        Row::new("BackingStore::pinned", "", Start::FREE, |bench| {
            let store = BackingStore::pinned(&bench.backend, Bytes::mib(300)).map(Made::BackingStore);
            keep(bench, store)
        })
        .looks(),
        Row::new(OF, "without contents", Start::EXTENDED, Bench::suspend),
        Row::new(OF, "in a guarded region", Start::GUARDED, Bench::suspend).poisons(),
        Row::new(BACK, "without contents", Start::EXTENDED.suspended(), Bench::resume),
        Row::new("Region::suspend_into", "", Start::BORDER.with(PINNED), |bench| {
            let (store, mut list) = (bench.store.clone(), Vec::new());
            let result = bench.region().suspend_into(&store, IDLE, &mut list).map(drop);
            let lost = matches!(result.as_ref().map_err(Error::detail), Err(Detail::AddressesLost { .. }));
            assert_eq!(list.is_empty(), result.is_err() && !lost, "{result:?}");
            result
        }),
        Row::new("Region::resume_from", "", Start::BORDER.with(PINNED).suspended(), |bench| {
            let properties = Properties::on(bench.device);
            let mut list = vec![PhysicalMemory::create(&bench.backend, bench.granules(1), properties)?];
            let id = list[0].id();
            let result = bench.region().resume_from(&mut list).map(drop);
            let is_mapped = bench.region().mappings().any(|mapping| mapping.memory.id() == id);
            assert_eq!(list.is_empty(), is_mapped, "{result:?}");
            result
        })
        .brings_back(),
        Row::new("DeviceVec::suspend", "", Start::VECTOR.with(PINNED), Bench::suspend),
        Row::new("DeviceVec::resume", "", Start::VECTOR.with(PINNED).suspended(), Bench::resume)
            .brings_back(),
    ];
    for (what, start) in ways {
        rows.push(Row::new(OF, what, start, Bench::suspend));
        rows.push(Row::new(BACK, what, start.suspended(), Bench::resume).brings_back());
    }
    rows
}

fn snapshot<B: TestKit>() -> Vec<Row<B>> {
    vec![
        // If unmapping the temporary mapping fails, it is tried a second time.
        Row::new("Snapshot::write", "", Start::TO_SAVE, |bench| bench.saved().write().map(drop))
            .looks()
            .wish()
            .moves(),
        Row::new("Restore::regions", "", Start::SAVED, |bench| {
            let region = bench.saved().restore().map(Made::Region);
            keep(bench, region)
        })
        .moves(),
    ]
}
