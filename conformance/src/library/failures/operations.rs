//! The table of the sweep: every public operation that reaches a driver, in each of its variants.

use super::bench::{Bench, Made};
use super::row::{IDLE, Row, keep};
use super::start::Start;
use super::{contents, exchanges, vectors};
use crate::library::tools::streams_idle;
use gpu_vmm_core::{Access, Bytes, PhysicalMemory, Placement, Properties, Region, Result, Stream, WaitFor};
use gpu_vmm_testkit::TestKit;
use std::slice;

/// Returns the rows of one operation.
pub(super) fn of<B: TestKit>(of: &str) -> Vec<Row<B>> {
    let mut rows = all();
    rows.retain(|row: &Row<B>| row.of == of);
    rows
}

/// Returns the whole table.
pub(super) fn all<B: TestKit>() -> Vec<Row<B>> {
    [
        memory(),
        build(),
        map(),
        unmap(),
        set_access(),
        grow(),
        data(),
        vectors::all(),
        exchanges::all(),
        contents::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[allow(unsafe_code)]
fn memory<B: TestKit>() -> Vec<Row<B>> {
    let mut rows = vec![Row::new("PhysicalMemory::create", "", Start::FREE, |bench| {
        let on = Properties::on(bench.device);
        let memory = PhysicalMemory::create(&bench.backend, bench.granules(2), on).map(Made::Memory);
        keep(bench, memory)
    })];
    rows.extend([
        Row::new("PhysicalMemory::export", "", Start::SHARED, |bench| {
            let fd = bench.shared().0.export().map(Made::Descriptor);
            keep(bench, fd)
        })
        .looks(),
        Row::new("PhysicalMemory::import", "", Start::SHARED, |bench| {
            use std::os::fd::AsFd;
            let (memory, fd) = bench.shared();
            let properties = memory.properties();
            // SAFETY: the descriptor was exported from memory with this size and these properties.
            let memory =
                unsafe { PhysicalMemory::import(&bench.backend, fd.as_fd(), memory.size(), properties) };
            if memory.is_ok() {
                crate::leaks::counts_import();
            }
            keep(bench, memory.map(Made::Memory))
        }),
    ]);
    rows
}

fn build<B: TestKit>() -> Vec<Row<B>> {
    const OF: &str = "RegionBuilder::build";
    fn at<B: TestKit>(bench: &mut Bench<B>, place: Placement) -> Result<()> {
        let builder = Region::builder(&bench.backend).on(bench.device).reserve(bench.granules(1));
        let region = builder.at(place).access(bench.peer, Access::Read).build();
        keep(bench, region.map(Made::Region))
    }
    vec![
        Row::new(OF, "anywhere", Start::FREE, |bench| at(bench, Placement::Anywhere)),
        Row::new(OF, "preferring an address", Start::FREE, |bench| at(bench, Placement::Prefer(bench.hole))),
        Row::new(OF, "at an address", Start::FREE, |bench| at(bench, Placement::Exact(bench.hole))),
        Row::new(OF, "for two devices", Start::PEER, |bench| at(bench, Placement::Anywhere)),
        Row::new(OF, "aligned", Start::FREE, |bench| {
            let builder = Region::builder(&bench.backend).on(bench.device).reserve(bench.granules(1));
            let region = builder.alignment(Bytes::gib(1)).build();
            keep(bench, region.map(Made::Region))
        }),
        Row::new(OF, "restorable", Start::FREE, |bench| at(bench, Placement::Restorable)),
        Row::new(OF, "guarded, at an address", Start::FREE, |bench| {
            let builder = Region::builder(&bench.backend).on(bench.device).reserve(bench.granules(1));
            let region = builder.guarded().at(Placement::Exact(bench.hole)).build();
            keep(bench, region.map(Made::Region))
        }),
    ]
}

fn map<B: TestKit>() -> Vec<Row<B>> {
    fn at<B: TestKit>(bench: &mut Bench<B>, granule: u64) -> Result<()> {
        let (offset, memory) = (bench.at(granule), bench.memory.clone());
        bench.region().map(offset, &memory)
    }
    vec![
        Row::new("Region::map_with_access", "", Start::FREE, |bench| {
            let (offset, memory, device) = (bench.at(4), bench.memory.clone(), bench.device);
            bench.region().map_with_access(offset, &[memory], device, Access::Read)
        }),
        Row::new("Region::map", "behind all others", Start::FREE, |bench| at(bench, 4)),
        Row::new("Region::map", "between others", Start::FREE, |bench| at(bench, 2)),
    ]
}

#[allow(unsafe_code)]
fn unmap<B: TestKit>() -> Vec<Row<B>> {
    const OF: &str = "Region::unmap";
    fn part<B: TestKit>(bench: &mut Bench<B>, from: u64, count: u64, done: WaitFor<'_>) -> Result<()> {
        let (offset, length) = (bench.at(from), bench.granules(count));
        bench.region().unmap(offset, length, done)
    }
    vec![
        Row::new(OF, "one mapping", Start::FREE, |bench| part(bench, 1, 1, IDLE)),
        Row::new(OF, "a run", Start::FREE, |bench| part(bench, 0, 2, IDLE)),
        Row::new(OF, "across reservations", Start::EXTENDED, |bench| part(bench, 3, 3, IDLE)),
        Row::new(OF, "memory that two devices use", Start::PEER, |bench| part(bench, 0, 2, IDLE)),
        Row::new(OF, "in a guarded region", Start::GUARDED, |bench| part(bench, 0, 2, IDLE)).poisons(),
        Row::new(OF, "after a stream", Start::FREE, |bench| {
            // SAFETY: null is the default stream of both vendors.
            let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
            part(bench, 0, 2, streams_idle(&[stream]))
        }),
    ]
}

fn set_access<B: TestKit>() -> Vec<Row<B>> {
    const OF: &str = "Region::set_access";
    fn own<B: TestKit>(bench: &mut Bench<B>, from: u64, count: u64, access: Access) -> Result<()> {
        let (offset, length, device) = (bench.at(from), bench.granules(count), bench.device);
        bench.region().set_access(offset, length, device, access)
    }
    fn peer<B: TestKit>(bench: &mut Bench<B>, from: u64, count: u64, access: Access) -> Result<()> {
        let (offset, length, device) = (bench.at(from), bench.granules(count), bench.peer);
        bench.region().set_access(offset, length, device, access)
    }
    vec![
        Row::new(OF, "to less", Start::FREE, |bench| own(bench, 0, 1, Access::Read)),
        Row::new(OF, "to more", Start::FREE, |bench| own(bench, 1, 1, Access::ReadWrite)),
        Row::new(OF, "of several", Start::FREE, |bench| own(bench, 0, 2, Access::None)),
        Row::new(OF, "across reservations", Start::EXTENDED, |bench| own(bench, 3, 3, Access::Read)),
        Row::new(OF, "for another device", Start::PEER, |bench| peer(bench, 0, 2, Access::Read)),
        Row::new(OF, "against another device", Start::PEER, |bench| peer(bench, 3, 1, Access::None)),
    ]
}

fn grow<B: TestKit>() -> Vec<Row<B>> {
    const OF: &str = "Region::grow_to";
    const ON: &str = "Region::grow_to_on";
    const MOVE: &str = "Region::grow_or_move";
    const SHRINK: &str = "Region::shrink_to";
    fn to<B: TestKit>(bench: &mut Bench<B>, granule: u64) -> Result<()> {
        let size = bench.at(granule);
        bench.region().grow_to(size).map(drop)
    }
    fn on_peer<B: TestKit>(bench: &mut Bench<B>, granule: u64) -> Result<()> {
        let (size, device) = (bench.at(granule), bench.peer);
        bench.region().grow_to_on(device, size).map(drop)
    }
    fn or_move<B: TestKit>(bench: &mut Bench<B>, granule: u64) -> Result<()> {
        let size = bench.at(granule);
        bench.region().grow_or_move(size, IDLE).map(drop)
    }
    fn shrink<B: TestKit>(bench: &mut Bench<B>, granule: u64) -> Result<()> {
        let size = bench.at(granule);
        bench.region().shrink_to(size, IDLE).map(drop)
    }
    fn with<B: TestKit>(bench: &mut Bench<B>, times: usize) -> Result<()> {
        let memory = vec![bench.memory.clone(); times];
        bench.region().grow_with(&memory).map(drop)
    }
    vec![
        Row::new("Region::grow_with", "within", Start::FREE, |bench| with(bench, 1)),
        Row::new("Region::grow_with", "extended", Start::FREE, |bench| with(bench, 2)),
        Row::new(OF, "within", Start::FREE, |bench| to(bench, 5)),
        Row::new(OF, "extended", Start::FREE, |bench| to(bench, 6)),
        Row::new(OF, "extended generously", Start::GENEROUS, |bench| to(bench, 6)).wish(),
        Row::new(OF, "within a guard", Start::GUARDED, |bench| to(bench, 5)),
        Row::new(OF, "within, for two devices", Start::PEER, |bench| to(bench, 5)),
        Row::new(ON, "within", Start::FREE, |bench| on_peer(bench, 5)),
        Row::new(ON, "extended, with another device's memory", Start::PEER, |bench| on_peer(bench, 6)),
        Row::new(MOVE, "within", Start::FREE, |bench| or_move(bench, 5)),
        Row::new(MOVE, "moved", Start::WALLED, |bench| or_move(bench, 6)).wish().moves(),
        Row::new(MOVE, "out of a guard", Start::GUARDED, |bench| or_move(bench, 6)).wish().moves(),
        Row::new(MOVE, "moved, for two devices", Start::PEER_WALLED, |bench| or_move(bench, 6))
            .wish()
            .moves(),
        Row::new(SHRINK, "one mapping", Start::FREE, |bench| shrink(bench, 2)),
        Row::new(SHRINK, "past a hole", Start::FREE, |bench| shrink(bench, 1)),
        Row::new(SHRINK, "in a guarded region", Start::GUARDED, |bench| shrink(bench, 2)).poisons(),
        Row::new(SHRINK, "past a border and a hole", Start::EXTENDED, |bench| shrink(bench, 0)),
    ]
}

/// Returns rows whose ranges are on both sides of the border of two reservations.
fn data<B: TestKit>() -> Vec<Row<B>> {
    const AROUND: Bytes = Bytes(100);
    fn part<B: TestKit>(bench: &Bench<B>) -> (Bytes, [u8; 200]) {
        (bench.at(5) - AROUND, [7; 200])
    }
    vec![
        // If unmapping the temporary mapping fails, it is tried a second time.
        Row::new("PhysicalMemory::write", "", Start::FREE, |bench| bench.memory.write(Bytes(100), &[7; 200]))
            .looks()
            .wish()
            .moves(),
        Row::new("PhysicalMemory::read", "", Start::FREE, |bench| {
            bench.memory.read(Bytes(100), &mut [0; 200])
        })
        .looks()
        .wish()
        .moves(),
        Row::new("PhysicalMemory::copy_from", "", Start::FREE, |bench| {
            let source =
                PhysicalMemory::create(&bench.backend, bench.granules(1), bench.memory.properties())?;
            bench.memory.copy_from(Bytes(100), &source, Bytes(7), Bytes(200))
        })
        .looks()
        .wish()
        .moves(),
        Row::new("Region::fork", "of one mapping", Start::FREE, |bench| {
            let (length, device) = (bench.granules(1), bench.device);
            let build = || Region::builder(&bench.backend).on(device).reserve(length).build();
            let (mut parent, mut other) = (build()?, build()?);
            parent.grow_with(slice::from_ref(&bench.memory))?;
            let forked = parent.fork(length, &mut other);
            let access = if forked.is_ok() { Access::Read } else { Access::ReadWrite };
            assert_eq!(
                (parent.access(Bytes::ZERO, device), other.mapped().is_zero()),
                (access, forked.is_err())
            );
            forked?;
            bench.made.push(Made::Region(parent));
            keep(bench, Ok(Made::Region(other)))
        })
        .wish()
        .moves(),
        Row::new("Region::make_private", "of a shared mapping", Start::FREE, |bench| {
            let (offset, length) = (bench.at(0), bench.granules(1));
            let shared = bench.region().mapping_at(offset).map(|mapping| mapping.memory.clone());
            let made = bench.region().make_private(offset, length, &mut Vec::new(), IDLE);
            drop(shared);
            made.map(drop)
        })
        .looks()
        .wish()
        .moves(),
        Row::new("Region::write", "across reservations", Start::EXTENDED, |bench| {
            let (offset, bytes) = part(bench);
            bench.region().write(offset, &bytes)
        })
        .writes(4, 6),
        Row::new("Region::read", "across reservations", Start::EXTENDED, |bench| {
            let (offset, mut bytes) = part(bench);
            bench.region().read(offset, &mut bytes)
        })
        .looks(),
        Row::new("Region::fill", "across reservations", Start::EXTENDED, |bench| {
            let (offset, bytes) = part(bench);
            bench.region().fill(offset, Bytes(bytes.len() as u64), 9)
        })
        .writes(4, 6),
        Row::new("Region::copy_from", "across reservations", Start::BESIDE, |bench| {
            let offset = bench.at(5) - AROUND;
            let (target, source) = bench.two_regions();
            target.copy_from(offset, source, AROUND, AROUND + AROUND)
        })
        .writes(4, 6),
        Row::new("Region::write_pattern", "across reservations", Start::EXTENDED, |bench| {
            let (device, offset, length) = (bench.device, bench.at(4), bench.granules(2));
            bench.region().write_pattern(device, offset, length, 3)
        })
        .writes(4, 6),
        Row::new("Region::count_wrong", "across reservations", Start::EXTENDED, |bench| {
            let (device, offset, length) = (bench.device, bench.at(4), bench.granules(2));
            bench.region().count_wrong(device, offset, length, 3).map(drop)
        })
        .looks(),
    ]
}
