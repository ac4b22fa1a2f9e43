//! Snapshots and restores that fail, and leave nothing behind.

use super::{filled, ring, save};
use crate::case::cases;
use crate::library::folder::Folder;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{
    Access, BackingStore, Bytes, Detail, DeviceId, Error, PhysicalMemory, Placement, Region, Vendor, WaitFor,
};
use gpu_vmm_snapshot::SnapshotError;
use gpu_vmm_snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

cases! { "snapshot":
    /// If the addresses of one region are taken, no region is restored, and the error has the address.
    taken_address,
    /// If the device has too little free memory, nothing is restored, and no free memory is lost.
    device_too_small,
    /// A corrupted block is detected, whichever it is, and nothing is restored.
    a_corrupted_block,
    /// A truncated file is refused before anything is reserved.
    a_truncated_file,
    /// Devices that do not exist are refused before a driver call, as owners and as users.
    devices_that_are_not_there,
    /// A region of another backend than the ring's is not written.
    of_another_backend,
    /// A region with a poisoned part is not written, and a file with that name is unchanged.
    what_is_out_of_use,
    /// A suspended region is not written, and a file with that name is unchanged; after the resume, the region is written.
    what_is_suspended,
    /// A snapshot into a folder that does not exist is an error with the path.
    no_such_folder,
}

/// Runs a restore that must fail. Checks that nothing has leaked, and that the regions' addresses are free.
fn leaves_nothing<B: TestKit>(
    subject: &Subject<B>,
    file: &SnapshotFile,
    meanwhile: impl FnOnce(&FaultInject<B>) -> Error,
) -> Error {
    let backend = FaultInject::new(subject.backend.clone());
    let (live, free) = (backend.live(), subject.free());
    let error = meanwhile(&backend);
    assert_eq!(backend.live(), live, "{error}");
    if subject.gives_back_at_once() {
        assert_eq!(subject.free(), free, "{error}");
    }
    for region in &file.description().regions {
        let builder = Region::builder(&subject.backend).reserve(region.reserved());
        drop(builder.at(Placement::Exact(region.address)).build().unwrap());
    }
    error
}

fn taken_address<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let hole = subject.hole(16);
    let [first, second] = [0, 8].map(|units| {
        let at = hole.checked_add(subject.units(units)).unwrap();
        let mut region = subject.region(1).at(Placement::Exact(at)).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        region
    });
    let (file, _) = save(&folder, "a", &[&first, &second]);
    let address = second.address();
    drop((first, second));
    let error = leaves_nothing(subject, &file, |backend| {
        let inside = subject.region(1).at(Placement::Exact(address)).build().unwrap();
        let error = Restore::new().regions(&file, &ring(backend)).unwrap_err();
        drop(inside);
        error
    });
    let Some(SnapshotError::AddressTaken { path, region: 1, was, user, .. }) = error.extension() else {
        panic!("{error}")
    };
    assert_eq!((&**path, was.base), (&*file.path().to_string_lossy(), address));
    // A vendor's driver may keep its reservations from the kernel.
    assert!(user.is_some() || subject.backend.vendor() != Vendor::Host, "{error}");
    assert_eq!(Restore::new().regions(&file, &ring(&subject.backend)).unwrap().len(), 2);
}

fn device_too_small<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let region = filled(subject, 4, 1);
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let ring = ring(&subject.backend);
    let left = subject.free_here() - subject.units(3);
    let held = Bytes(left.0 - left.0 % subject.unit().0);
    let held = PhysicalMemory::create(&subject.backend, held, subject.properties()).unwrap();
    let free = subject.free();
    let error = Restore::new().regions(&file, &ring).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::OutOfMemory { requested, .. } if *requested == subject.units(4)),
        "{error}"
    );
    assert_eq!(subject.free(), free);
    drop(held);
    let all = Restore::new().regions(&file, &ring).unwrap();
    subject.check(&all[0].region, Bytes(0), subject.units(4), 1);
}

fn a_corrupted_block<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let memory = PhysicalMemory::create(&subject.backend, Bytes::mib(5), subject.properties()).unwrap();
    let builder = Region::builder(&subject.backend).on(subject.device).reserve(memory.size());
    let mut region = builder.at(Placement::Exact(subject.hole(4))).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    subject.write(&mut region, Bytes(0), memory.size(), 1);
    let (file, stats) = save(&folder, "a", &[&region]);
    drop((region, memory));
    assert!(stats.stored >= 5);
    for place in [100, stats.contents.0 / 2, stats.contents.0] {
        let on_disk = OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let mut byte = [0];
        on_disk.read_exact_at(&mut byte, place).unwrap();
        on_disk.write_all_at(&[byte[0] ^ 0x10], place).unwrap();
        let error = leaves_nothing(subject, &file, |backend| {
            Restore::new().regions(&file, &ring(backend)).unwrap_err()
        });
        assert!(
            matches!(error.extension(), Some(SnapshotError::Invalid { what, .. }) if what.contains("block")),
            "{error}"
        );
        on_disk.write_all_at(&byte, place).unwrap();
    }
    drop(Restore::new().regions(&file, &ring(&subject.backend)).unwrap());
}

fn a_truncated_file<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let region = filled(subject, 1, 1);
    let (file, stats) = save(&folder, "a", &[&region]);
    drop(region);
    for length in [0, 20, stats.file.0 / 2, stats.file.0 - 1] {
        let bytes = std::fs::read(file.path()).unwrap();
        std::fs::write(folder.file("cut"), &bytes[..length as usize]).unwrap();
        let error = SnapshotFile::open(folder.file("cut")).unwrap_err();
        assert!(
            matches!(error.extension(), Some(SnapshotError::Invalid { path, .. }) if path.ends_with("cut")),
            "{error}"
        );
    }
    // A file that is truncated after it was opened.
    let on_disk = OpenOptions::new().write(true).open(file.path()).unwrap();
    on_disk.set_len(stats.file.0 / 2).unwrap();
    let error =
        leaves_nothing(subject, &file, |backend| Restore::new().regions(&file, &ring(backend)).unwrap_err());
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{error}");
}

fn devices_that_are_not_there<B: TestKit>(subject: &Subject<B>) {
    const MISSING: DeviceId = DeviceId(100);
    let folder = Folder::new();
    let region = filled(subject, 1, 1);
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let ring = ring(&subject.backend);
    let owner = Restore::new().device(subject.device, MISSING);
    refused!(owner.regions(&file, &ring), Detail::NoSuchDevice { .. }, "restore", MISSING);
    let all = Restore::new().all_on(MISSING);
    refused!(all.regions(&file, &ring), Detail::NoSuchDevice { .. }, MISSING);
    // A device that has access but no memory.
    let Ok(peer) = subject.peer() else { return };
    let mut region = filled(subject, 1, 1);
    region.set_access(Bytes(0), subject.unit(), peer, Access::Read).unwrap();
    let (file, _) = save(&folder, "b", &[&region]);
    drop(region);
    let user = Restore::new().device(peer, MISSING);
    refused!(user.regions(&file, &ring), Detail::NoSuchDevice { .. }, MISSING);
}

fn of_another_backend<B: TestKit>(subject: &Subject<B>) {
    let Some(foreign) = subject.target.foreign() else { skip("there is no other backend") };
    let folder = Folder::new();
    let region = filled(subject, 1, 1);
    let ring = ring(&foreign);
    let snapshot = Snapshot::new(&ring).region(&region);
    refused!(snapshot.write(folder.file("a"), idle()), Detail::ForeignHandle { .. }, "snapshot");
    assert!(folder.names().is_empty());
}

#[allow(unsafe_code)] // releases what would stay until the end of the process
fn what_is_out_of_use<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let backend = FaultInject::new(subject.backend.clone());
    let granule = subject.granularity();
    let place = Placement::Exact(subject.hole(2));
    let mut region =
        Region::builder(&backend).on(subject.device).reserve(subject.units(2)).at(place).build().unwrap();
    for at in [Bytes(0), granule] {
        let memory = PhysicalMemory::create(&backend, granule, subject.properties()).unwrap();
        region.map(at, &memory).unwrap();
        region.set_access(at, granule, subject.device, RW).unwrap();
    }
    save(&folder, "a", &[&region]);
    let bytes = std::fs::read(folder.file("a")).unwrap();
    backend.fail(0, 2);
    // SAFETY: no work uses the memory.
    let failed = region.set_access(Bytes(0), granule, subject.device, Access::Read).unwrap_err();
    backend.stop();
    if !matches!(failed.detail(), Detail::RollbackFailed { .. }) {
        // The first call was the wait, so the next two fail.
        backend.fail(1, 2);
        let failed = region.set_access(Bytes(0), granule, subject.device, Access::Read).unwrap_err();
        backend.stop();
        assert!(matches!(failed.detail(), Detail::RollbackFailed { .. }), "{failed}");
    }
    let ring = ring(&backend);
    let answer = Snapshot::new(&ring).region(&region).write(folder.file("a"), idle());
    refused!(answer, Detail::Poisoned { .. }, "snapshot", granule);
    assert_eq!(std::fs::read(folder.file("a")).unwrap(), bytes);
    assert_eq!(folder.names(), ["a"]);
    // SAFETY: no work uses the memory.
    drop(region.close(unsafe { WaitFor::nothing() }));
    // SAFETY: the region is gone.
    unsafe { backend.reclaim() }.unwrap();
}

fn what_is_suspended<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut region = filled(subject, 1, 1);
    save(&folder, "a", &[&region]);
    let bytes = std::fs::read(folder.file("a")).unwrap();
    let store = BackingStore::pageable(ring(&subject.backend));
    region.suspend(&store, idle()).unwrap();
    let ring = ring(&subject.backend);
    let whole = filled(subject, 1, 2);
    let answer = Snapshot::new(&ring).region(&whole).region(&region).write(folder.file("a"), idle());
    refused!(answer, Detail::Suspended { .. }, "snapshot");
    assert_eq!(std::fs::read(folder.file("a")).unwrap(), bytes);
    assert_eq!(folder.names(), ["a"]);
    region.resume().unwrap();
    let (file, _) = save(&folder, "a", &[&region]);
    drop(region);
    let mut all = Restore::new().regions(&file, &ring).unwrap();
    subject.check(&all.remove(0).region, Bytes(0), subject.unit(), 1);
}

fn no_such_folder<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let region = filled(subject, 1, 1);
    let ring = ring(&subject.backend);
    let answer = Snapshot::new(&ring).region(&region).write(folder.file("missing/a"), idle());
    let error = answer.unwrap_err();
    assert!(matches!(error.detail(), Detail::File { path, .. } if path.contains("missing")), "{error}");
    subject.check(&region, Bytes(0), subject.unit(), 1);
}
