//! A region that is captured or restored, with every kind of content that a file can contain.

use super::edges::{EDGE, Faulty, edges};
use crate::library::folder::Folder;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Address, Bytes, PhysicalMemory, Placement, Region, Result, StagingRing};
use gpu_vmm_snapshot::{Restore, Restored, Snapshot, SnapshotFile, SnapshotStats};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::path::Path;
use std::rc::Rc;

const SEED: u64 = 77;

/// A file that no operation uses.
const BESIDE: &str = "beside";

/// A region in a file, from which many regions are restored.
#[derive(Debug)]
pub(super) struct InFile {
    file: SnapshotFile,
    _folder: Folder,
}

impl InFile {
    pub(super) fn new<B: TestKit>(subject: &Subject<B>, address: Address) -> Self {
        let saved = Saved::new(subject, &FaultInject::new(subject.backend.clone()), address, None);
        let path = saved.folder.file("saved");
        saved.capture(&path).unwrap();
        let file = SnapshotFile::open(&path).unwrap();
        Self { file, _folder: saved.folder }
    }
}

/// A region to capture, or one in a file.
#[derive(Debug)]
pub(super) struct Saved<B: TestKit> {
    /// The file, if the region is in one.
    from: Option<Rc<InFile>>,
    /// The region, if it is not in a file.
    region: Option<Region<Faulty<B>>>,
    /// One thread, so that the calls come in the same order each time.
    ring: StagingRing<Faulty<B>>,
    folder: Folder,
}

impl<B: TestKit> Saved<B> {
    /// Creates a region at `address`, or uses the region in a file.
    pub(super) fn new(
        subject: &Subject<B>,
        backend: &Faulty<B>,
        address: Address,
        from: Option<Rc<InFile>>,
    ) -> Self {
        let region = from.is_none().then(|| Self::region(subject, backend, address));
        let ring = StagingRing::new(backend, 1, Bytes::mib(1)).unwrap();
        let folder = Folder::new();
        std::fs::write(folder.file(BESIDE), []).unwrap();
        Self { from, region, ring, folder }
    }

    /// Creates a region with a writable allocation that is mapped twice, a read-only one, an inaccessible one, and another one
    /// behind the border of the two reservations.
    fn region(subject: &Subject<B>, backend: &Faulty<B>, address: Address) -> Region<Faulty<B>> {
        let (device, granule) = (subject.device, subject.granularity());
        let size = Bytes((granule.0 * 4).next_multiple_of(subject.unit().0));
        let builder = Region::builder(backend).on(device).reserve(size).extend_by(Bytes(1));
        let mut region = builder.at(Placement::Exact(address)).tag("saved").build().unwrap();
        region.grow_to(size + granule).unwrap();
        let _ = region.shrink_to(Bytes(0), idle()).unwrap();
        let [twice, read, hidden, behind] =
            [(); 4].map(|()| PhysicalMemory::create(backend, granule, subject.properties()).unwrap());
        let mut at = size - Bytes(granule.0 * 4);
        for (memory, access) in [
            (&twice, RW),
            (&twice, Access::Read),
            (&read, Access::Read),
            (&hidden, Access::None),
            (&behind, RW),
        ] {
            region.map(at, memory).unwrap();
            region.set_access(at, granule, device, RW).unwrap();
            for edge in edges(at, granule) {
                region.write_pattern(device, edge, EDGE, SEED + edge.0 / 8).unwrap();
            }
            region.set_access(at, granule, device, access).unwrap();
            at += granule;
        }
        region
    }

    fn capture(&self, path: &Path) -> Result<SnapshotStats> {
        let region = self.region.as_ref().expect("a region");
        Snapshot::new(&self.ring).region(region).write(path, idle())
    }

    /// Writes the region to a file. Checks that no file is left if that fails.
    pub(super) fn write(&self) -> Result<SnapshotStats> {
        let path = self.folder.file("saved");
        let written = self.capture(&path);
        match &written {
            Ok(stats) => {
                assert_eq!(SnapshotFile::open(&path).unwrap().stats(), *stats);
                std::fs::remove_file(&path).unwrap();
            }
            Err(_) => assert_eq!(self.folder.names(), [BESIDE]),
        }
        written
    }

    /// Restores the region and checks its range and tag.
    pub(super) fn restore(&self) -> Result<Region<Faulty<B>>> {
        let file = &self.from.as_ref().expect("a file").file;
        let Restored { region, was } = Restore::new().regions(file, &self.ring)?.remove(0);
        assert_eq!((region.range(), region.tag()), (was, "saved"));
        Ok(region)
    }
}
