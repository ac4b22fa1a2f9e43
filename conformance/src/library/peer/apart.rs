//! A device that cannot access the other device's memory, as on machines without peer access. No driver call is made.

use crate::case::cases;
use crate::library::folder::Folder;
use crate::library::tools::idle;
use crate::subject::{RW, Subject, or_skip, skip};
use gpu_vmm_core::{
    Access, BankedRegion, Bytes, Detail, DeviceId, Error, Location, Operation, PhysicalMemory, Properties,
    Region, Result, StagingRing,
};
use gpu_vmm_snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "peer":
    /// Access to memory of several devices is refused if one device's memory cannot be accessed, and nothing changes.
    access_to_mixed_memory,
    /// A region refuses to grow by memory that another device with access to the region cannot access, and is not built for such
    /// memory.
    growth_with_unreachable_memory,
    /// A bank is refused if one of its pieces cannot be accessed.
    a_set_of_mixed_memory,
    /// A snapshot is not restored if one of its pieces of memory cannot be accessed.
    a_snapshot_of_mixed_memory,
    /// A region refuses to grow with given memory that another device of its access cannot reach.
    growth_with_given_unreachable_memory,
    /// A swap is refused if a device with access to a region cannot access the memory that would come there.
    a_swap_with_unreachable_memory,
    /// A device has access to host memory that another device owns, even if it cannot reach the memory of that device.
    host_memory_of_an_unreachable_device,
}

/// A backend and two of its devices, of which the first cannot access the second one's memory.
fn apart<B: TestKit>(subject: &Subject<B>) -> (FaultInject<B>, DeviceId, DeviceId) {
    let usable = subject.backend.devices().iter().filter(|device| device.unusable.is_none());
    let Some(other) = usable.map(|device| device.id).find(|id| *id != subject.device) else {
        skip("there is one usable device")
    };
    let backend = FaultInject::new(subject.backend.clone());
    backend.hide_memory(other, true);
    (backend, subject.device, other)
}

#[track_caller]
fn unreachable<T: std::fmt::Debug>(answer: Result<T>, from: DeviceId, to: DeviceId) {
    match answer.map_err(Error::into_detail) {
        Err(Detail::PeerUnreachable { device, owner, .. }) => {
            assert_eq!((device, owner), (from, to))
        }
        other => panic!("{other:?}"),
    }
}

/// One granule of memory of each device.
fn pieces<B: TestKit>(
    subject: &Subject<B>,
    backend: &FaultInject<B>,
    devices: [DeviceId; 2],
) -> [PhysicalMemory<FaultInject<B>>; 2] {
    devices
        .map(|device| PhysicalMemory::create(backend, subject.granules(1), Properties::on(device)).unwrap())
}

fn access_to_mixed_memory<B: TestKit>(subject: &Subject<B>) {
    let (backend, here, there) = apart(subject);
    let granule = subject.granules(1);
    let mut region = Region::builder(&backend).on(here).reserve(subject.granules(2)).build().unwrap();
    let [first, second] = pieces(subject, &backend, [here, there]);
    region.map(Bytes(0), &first).unwrap();
    unreachable(region.map_with_access(granule, std::slice::from_ref(&second), here, RW), here, there);
    region.map(granule, &second).unwrap();
    backend.fail_calls(&[Operation::SetAccess]);
    unreachable(region.set_access(Bytes(0), subject.granules(2), here, RW), here, there);
    backend.stop();
    assert_eq!([Bytes(0), granule].map(|at| region.access(at, here)), [Access::None; 2]);
    region.set_access(Bytes(0), granule, here, RW).unwrap();
    region.set_access(granule, granule, there, RW).unwrap();
}

fn growth_with_unreachable_memory<B: TestKit>(subject: &Subject<B>) {
    let (backend, here, there) = apart(subject);
    unreachable(Region::builder(&backend).on(there).access(here, RW).build(), here, there);
    let builder = Region::builder(&backend).on(here).access(here, RW).reserve(subject.granules(4));
    let mut region = builder.build().unwrap();
    region.grow_to(subject.granules(1)).unwrap();
    let live = backend.live();
    unreachable(region.grow_to_on(there, subject.granules(2)), here, there);
    assert_eq!((backend.live(), region.end()), (live, subject.granules(1)));
    region.grow_to(subject.granules(2)).unwrap();
}

fn a_set_of_mixed_memory<B: TestKit>(subject: &Subject<B>) {
    let (backend, here, there) = apart(subject);
    if !subject.backend.can_access(there, here).unwrap() {
        skip("neither device can access the other's memory");
    }
    // So that both devices request the same access.
    let builder = Region::builder(&backend).on(here).access(here, RW).access(there, RW);
    let mut banked = BankedRegion::build(builder.reserve(subject.granules(2))).unwrap();
    unreachable(banked.add_bank_of(pieces(subject, &backend, [here, there]).into()), here, there);
    assert_eq!(banked.banks().count(), 0);
    let bank = banked.add_bank_of(pieces(subject, &backend, [here, here]).into()).unwrap();
    banked.select(bank, idle()).unwrap();
}

fn a_snapshot_of_mixed_memory<B: TestKit>(subject: &Subject<B>) {
    let (backend, here, there) = apart(subject);
    if subject.peer().is_err() {
        skip("without peer access, no snapshot of mixed memory can be written");
    }
    let folder = Folder::new();
    let ring = |backend| StagingRing::new(backend, 2, Bytes::mib(3)).unwrap();
    backend.hide_memory(there, false);
    let builder = Region::builder(&backend).on(here).access(here, RW).access(there, RW);
    let mut region = builder.reserve(subject.granules(2)).build().unwrap();
    region.grow_to(subject.granules(1)).unwrap();
    region.grow_to_on(there, subject.granules(2)).unwrap();
    let path = folder.file("mixed");
    Snapshot::new(&ring(&backend)).region(&region).write(&path, idle()).unwrap();
    drop(region);
    let file = SnapshotFile::open(&path).unwrap();
    backend.hide_memory(there, true);
    let live = backend.live();
    // The restore must refuse before it creates or reserves anything.
    let buffers = ring(&backend);
    backend.fail_calls(&[Operation::CreateMemory, Operation::Reserve]);
    unreachable(Restore::new().relocate().regions(&file, &buffers), here, there);
    backend.stop();
    drop(buffers);
    assert_eq!(backend.live(), live);
    backend.hide_memory(there, false);
    assert_eq!(Restore::new().relocate().regions(&file, &ring(&backend)).unwrap().len(), 1);
}

fn growth_with_given_unreachable_memory<B: TestKit>(subject: &Subject<B>) {
    let (backend, here, there) = apart(subject);
    let builder = Region::builder(&backend).on(here).access(here, RW).reserve(subject.granules(4));
    let mut region = builder.build().unwrap();
    let [first, second] = pieces(subject, &backend, [here, there]);
    unreachable(region.grow_with(&[first.clone(), second]), here, there);
    assert_eq!((backend.live().mappings, region.end()), (0, Bytes(0)));
    region.grow_with(&[first]).unwrap();
}

fn a_swap_with_unreachable_memory<B: TestKit>(subject: &Subject<B>) {
    let (backend, here, there) = apart(subject);
    let granule = subject.granules(1);
    let [mut one, mut other] = [here, there].map(|device| {
        let mut region = Region::builder(&backend).on(device).reserve(granule).build().unwrap();
        region.grow_to(granule).unwrap();
        region
    });
    backend.fail_calls(&[Operation::Unmap]);
    unreachable(one.swap_all(&mut other, idle()), here, there);
    backend.stop();
    let owners = [&one, &other].map(|region| region.mapping_at(Bytes(0)).unwrap().memory.device());
    assert_eq!(owners, [here, there]);
}

fn host_memory_of_an_unreachable_device<B: TestKit>(subject: &Subject<B>) {
    let (backend, here, there) = apart(subject);
    let properties = Properties::on(there).located(Location::Host);
    let memory = or_skip(PhysicalMemory::create(&backend, subject.granules(1), properties));
    let mut region = Region::builder(&backend).memory(properties).reserve(memory.size()).build().unwrap();
    region.map(Bytes(0), &memory).unwrap();
    region.set_access(Bytes(0), memory.size(), here, RW).unwrap();
    assert_eq!(region.access(Bytes(0), here), RW);
}
