//! Regions that release their memory, keep their addresses, and are restored as they were.

mod contents;
mod lists;
mod memory;
mod refused;
mod state;

use crate::case::Case;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, BackingStore, Bytes, PhysicalMemory, Region, Resumed, StagingRing, Suspended};
use gpu_vmm_testkit::TestKit;
use std::path::PathBuf;
use std::sync::Arc;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [contents::cases(), lists::cases(), memory::cases(), state::cases(), refused::cases()].concat()
}

/// The number of granules of memory of [`varied`].
const MEMORY: u64 = 7;

/// The mappings of [`varied`]: the offset in granules, the piece, and the owner's access.
const MAPPINGS: [(u64, usize, Access); 7] = [
    (0, 0, Access::Read),
    (2, 1, RW),
    (4, 0, RW),
    (6, 2, Access::Read),
    (7, 3, Access::None),
    (8, 4, RW),
    (10, 3, Access::None),
];

/// A region of five pieces of memory with holes: two pieces are mapped twice, one of them without access for any device, and
/// one piece is read-only.
fn varied<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.space(12).tag("varied").build().unwrap();
    let pieces: Vec<PhysicalMemory<B>> = [2, 1, 1, 1, 2].map(|granules| subject.piece(granules)).into();
    for (at, piece, access) in MAPPINGS {
        let (offset, memory) = (subject.granules(at), &pieces[piece]);
        subject.open(&mut region, offset, memory);
        subject.write(&mut region, offset, memory.size(), piece as u64);
        region.set_access(offset, memory.size(), subject.device, access).unwrap();
    }
    region
}

/// Fails if a mapping of [`varied`] differs from the original.
#[track_caller]
fn check_mappings<B: TestKit>(subject: &Subject<B>, region: &Region<B>) {
    let found: Vec<(Bytes, Access)> =
        region.mappings().map(|one| (one.offset, region.access(one.offset, subject.device))).collect();
    assert_eq!(found, MAPPINGS.map(|(at, _, access)| (subject.granules(at), access)));
    for (at, piece, _) in MAPPINGS {
        for (other, same, _) in MAPPINGS {
            let [one, two] = [at, other].map(|at| region.mapping_at(subject.granules(at)).unwrap());
            assert_eq!(one.memory.is_same_as(two.memory), piece == same, "at {at} and {other}");
        }
    }
}

/// Fails if a mapping or a byte of [`varied`] differs from the original.
#[track_caller]
fn check_varied<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>) {
    check_mappings(subject, region);
    for (at, piece, access) in MAPPINGS {
        let offset = subject.granules(at);
        let length = region.mapping_at(offset).unwrap().length;
        if access == Access::None {
            assert!(region.read(offset, &mut [0]).is_err());
            region.set_access(offset, length, subject.device, Access::Read).unwrap();
        }
        subject.check(region, offset, length, piece as u64);
        if access != RW {
            assert!(region.write(offset, &[0]).is_err());
        }
        region.set_access(offset, length, subject.device, access).unwrap();
    }
}

/// A directory for files.
fn directory() -> PathBuf {
    std::env::temp_dir()
}

/// A ring of two threads, whose buffer size is not a multiple of anything.
fn ring<B: TestKit>(subject: &Subject<B>) -> Arc<StagingRing<B>> {
    Arc::new(StagingRing::new(&subject.backend, 2, Bytes(100_001)).unwrap())
}

/// Page-locked memory for `granules` granules.
fn pinned<B: TestKit>(subject: &Subject<B>, granules: u64) -> BackingStore<B> {
    BackingStore::pinned(&subject.backend, subject.granules(granules)).unwrap()
}

/// One store of each kind that keeps contents, with room for `granules` granules.
fn keeping<B: TestKit>(subject: &Subject<B>, granules: u64) -> [BackingStore<B>; 4] {
    let ring = ring(subject);
    [
        pinned(subject, granules),
        BackingStore::pageable(Arc::clone(&ring)),
        BackingStore::pageable_keeping(Arc::clone(&ring), subject.granules(granules)),
        BackingStore::file(directory(), ring),
    ]
}

/// Suspends an active region.
#[track_caller]
fn suspend<B: TestKit>(region: &mut Region<B>, store: &BackingStore<B>) -> Suspended {
    let did = region.suspend(store, idle()).unwrap();
    assert!(!did.already);
    did
}

/// Resumes a suspended region.
#[track_caller]
fn resume<B: TestKit>(region: &mut Region<B>) -> Resumed {
    let did = region.resume().unwrap();
    assert!(!did.already);
    did
}
