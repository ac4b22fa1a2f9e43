//! Snapshots between machines with other granularities, less memory and fewer peers.

use gpu_vmm_core::{
    Access, Address, Backend, Bytes, Detail, DeviceId, DeviceUuid, Error, ErrorKind, Location, Operation,
    PhysicalMemory, Placement, Properties, Region, StagingRing, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_snapshot::{
    Description, Restore, Restored, Snapshot, SnapshotFile, SnapshotWriter, WriteOptions,
};
use gpu_vmm_testkit::FaultInject;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const DEVICE: DeviceId = DeviceId(0);
const RW: Access = Access::ReadWrite;
const SMALL: Bytes = Bytes::kib(4);
const LARGE: Bytes = Bytes::mib(2);

/// A file that is removed, and addresses that no other test here uses.
struct Case {
    path: PathBuf,
    address: Address,
}

impl Case {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpu-vmm-snapshots-{}-{number}", std::process::id());
        Self { path: std::env::temp_dir().join(name), address: Address(0x2100_0000_0000 + (number << 32)) }
    }

    fn region(&self, backend: &HostBackend, offset: Bytes, size: Bytes) -> Region<HostBackend> {
        let place = Placement::Exact(self.address + offset);
        Region::builder(backend).reserve(size).at(place).tag("units").build().unwrap()
    }

    fn save(&self, regions: Vec<Region<HostBackend>>) -> SnapshotFile {
        let ring = ring(regions[0].backend());
        let written = Snapshot::new(&ring).regions(&regions).write(&self.path, WaitFor::all_devices());
        written.unwrap();
        SnapshotFile::open(&self.path).unwrap()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn machine(granularity: Bytes) -> HostBackend {
    HostConfig::new().devices(2).memory(Bytes::mib(64)).granularity(granularity).open().unwrap()
}

fn ring(backend: &HostBackend) -> StagingRing<HostBackend> {
    StagingRing::new(backend, 1, Bytes::kib(100)).unwrap()
}

fn restore(
    backend: &HostBackend,
    options: &Restore,
    file: &SnapshotFile,
) -> Result<Vec<Restored<HostBackend>>, Error> {
    options.regions(file, &ring(backend))
}

/// Maps memory with read and write access.
fn open(region: &mut Region<HostBackend>, offset: Bytes, size: Bytes) {
    open_at(region, offset, size, Location::Device);
}

/// Maps memory at a location with read and write access.
fn open_at(region: &mut Region<HostBackend>, offset: Bytes, size: Bytes, location: Location) {
    let properties = Properties::on(DEVICE).located(location);
    let memory = PhysicalMemory::create(region.backend(), size, properties).unwrap();
    region.map(offset, &memory).unwrap();
    region.set_access(offset, size, DEVICE, RW).unwrap();
}

#[test]
fn small_pieces_become_a_large_one() {
    let case = Case::new();
    let mut region = case.region(&machine(SMALL), Bytes(0), LARGE + SMALL);
    // One mapping is larger than the others, and one unit stays unmapped.
    open(&mut region, Bytes(0), Bytes::kib(64));
    for at in 16..512 {
        open(&mut region, Bytes(SMALL.0 * at), SMALL);
    }
    region.write_pattern(DEVICE, Bytes(0), LARGE, 5).unwrap();
    let file = case.save(vec![region]);
    assert_eq!(file.description().memories.len(), 497);
    let target = machine(LARGE);
    let region = restore(&target, &Restore::new(), &file).unwrap().remove(0).region;
    assert_eq!((region.mappings().count(), region.mapped()), (1, LARGE));
    assert_eq!((region.address(), region.reserved()), (case.address, LARGE + LARGE));
    assert_eq!(region.count_wrong(DEVICE, Bytes(0), LARGE, 5).unwrap(), 0);
    drop(region);
    // On a machine with the original granularity the mappings are unchanged.
    let region = restore(&machine(SMALL), &Restore::new(), &file).unwrap().remove(0).region;
    assert_eq!((region.mappings().count(), region.reserved()), (497, LARGE + SMALL));
    assert_eq!(region.count_wrong(DEVICE, Bytes(0), LARGE, 5).unwrap(), 0);
}

#[test]
fn restored_region_keeps_its_limit() {
    let (case, host, limit) = (Case::new(), machine(SMALL), Address(1 << 40));
    let place = Placement::Below(limit);
    let mut region = Region::builder(&host).reserve(LARGE).at(place).build().unwrap();
    open(&mut region, Bytes(0), SMALL);
    let was = region.address();
    let file = case.save(vec![region]);
    let mut same = restore(&host, &Restore::new(), &file).unwrap().remove(0).region;
    assert_eq!((same.address(), same.settings().below), (was, Some(limit)));
    // The first one has the addresses.
    let moved = restore(&host, &Restore::new().relocate(), &file).unwrap().remove(0).region;
    assert_ne!(moved.address(), was);
    assert!(moved.range().end() <= limit && moved.settings().below == Some(limit), "{:?}", moved.range());
    same.grow_or_move(LARGE + LARGE, WaitFor::all_devices()).unwrap();
    assert!(same.range().end() <= limit, "{:?}", same.range());
}

/// The devices of the other machine have the UUIDs of this one in another order.
#[test]
fn restored_memory_follows_the_uuid() {
    let case = Case::new();
    let mut region = case.region(&machine(SMALL), Bytes(0), SMALL);
    open(&mut region, Bytes(0), SMALL);
    region.write_pattern(DEVICE, Bytes(0), SMALL, 5).unwrap();
    let mut described = case.save(vec![region]).description().clone();
    let uuids = [0, 1].map(|device| described.devices[device].uuid);
    assert!(uuids[0].is_some() && uuids[0] != uuids[1], "{uuids:?}");
    let write = |described: &Description| {
        let mut contents = vec![0; SMALL.0 as usize];
        SnapshotFile::open(&case.path).unwrap().read_block(0, 0, &mut contents).unwrap();
        let writer = SnapshotWriter::create(&case.path, described, WriteOptions::default()).unwrap();
        writer.write_block(0, 0, &contents).unwrap();
        writer.finish().unwrap();
        SnapshotFile::open(&case.path).unwrap()
    };
    let target = machine(SMALL);
    let device = |file: &SnapshotFile, options: Restore| {
        let region = restore(&target, &options, file)?.remove(0).region;
        let device = region.mapping_at(Bytes(0)).unwrap().memory.device();
        assert_eq!(region.count_wrong(device, Bytes(0), SMALL, 5).unwrap(), 0);
        Ok::<_, Error>(device.0)
    };
    (described.devices[0].uuid, described.devices[1].uuid) = (uuids[1], uuids[0]);
    let file = write(&described);
    assert_eq!(device(&file, Restore::new()).unwrap(), 0);
    assert_eq!(device(&file, Restore::new().by_uuid()).unwrap(), 1);
    assert_eq!(device(&file, Restore::new().by_uuid().all_on(DEVICE)).unwrap(), 1);
    assert_eq!(device(&file, Restore::new().by_uuid().device(DEVICE, DEVICE)).unwrap(), 0);
    // A device that nothing uses may be missing.
    described.devices[1].uuid = Some(DeviceUuid([7; 16]));
    assert_eq!(device(&write(&described), Restore::new().by_uuid()).unwrap(), 1);
    described.devices[0].uuid = None;
    assert_eq!(device(&write(&described), Restore::new().by_uuid()).unwrap(), 0);
    described.devices[0].uuid = Some(DeviceUuid([7; 16]));
    let file = write(&described);
    let error = device(&file, Restore::new().by_uuid()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchDevice);
    let text = error.to_string();
    assert!(text.contains("device 0 of the snapshot (host memory 0, UUID 07070707-"), "{text}");
    assert_eq!(device(&file, Restore::new().by_uuid().all_on(DeviceId(1))).unwrap(), 1);
}

#[test]
fn zeros_beside_other_contents() {
    let case = Case::new();
    let mut region = case.region(&machine(SMALL), Bytes(0), LARGE);
    for at in 0..512 {
        open(&mut region, Bytes(SMALL.0 * at), SMALL);
    }
    // In the target these pieces are one, which is written in chunks of several pieces: a chunk begins or ends with zeros, has
    // zeros inside, or has nothing else.
    let mut contents: Vec<u8> = (0..LARGE.0).map(|at| (at % 251) as u8 + 1).collect();
    for zeros in [0..1, 7..9, 24..26, 49..50, 75..125, 300..301, 511..512] {
        contents[zeros.start << 12..zeros.end << 12].fill(0);
    }
    region.write(Bytes(0), &contents).unwrap();
    let file = case.save(vec![region]);
    let region = restore(&machine(LARGE), &Restore::new(), &file).unwrap().remove(0).region;
    assert_eq!(region.mappings().count(), 1);
    let mut found = vec![9; contents.len()];
    region.read(Bytes(0), &mut found).unwrap();
    let wrong =
        (0..512_usize).find(|at| found[at << 12..(at + 1) << 12] != contents[at << 12..(at + 1) << 12]);
    assert_eq!(wrong, None, "the first piece that differs");
}

#[test]
fn unfit_snapshot_is_refused_with_place() {
    for (hole, alias, read_only) in [(true, false, false), (false, true, false), (false, false, true)] {
        let case = Case::new();
        let half = Bytes::mib(1);
        let mut region = case.region(&machine(SMALL), Bytes(0), LARGE + LARGE);
        open(&mut region, Bytes(0), half);
        if !hole {
            open(&mut region, half, half);
        }
        if alias {
            let memory = region.mapping_at(half).unwrap().memory.clone();
            region.map(LARGE, &memory).unwrap();
        }
        if read_only {
            region.set_access(half, half, DEVICE, Access::Read).unwrap();
        }
        let file = case.save(vec![region]);
        let target = machine(LARGE);
        let error = restore(&target, &Restore::new(), &file).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{text}");
        for part in ["units", "1 MiB at offset", "2 MiB here", &case.address.to_string()] {
            assert!(text.contains(part), "{text:?} does not say {part:?}");
        }
        restore(&machine(SMALL), &Restore::new(), &file).unwrap();
    }
}

#[test]
fn an_address_between_the_targets_units() {
    let case = Case::new();
    let mut region = case.region(&machine(SMALL), SMALL, LARGE);
    open(&mut region, Bytes(0), LARGE);
    region.write_pattern(DEVICE, Bytes(0), LARGE, 6).unwrap();
    let file = case.save(vec![region]);
    let target = machine(LARGE);
    let error = restore(&target, &Restore::new(), &file).unwrap_err();
    let is_said = |value: u64| value == (case.address + SMALL).0;
    assert!(
        matches!(error.detail(), Detail::Unaligned { what: "address", value, .. } if is_said(*value)),
        "{error}"
    );
    let moved = restore(&target, &Restore::new().relocate(), &file).unwrap().remove(0);
    assert!(moved.has_moved() && moved.was.base == case.address + SMALL);
    assert_eq!(moved.region.count_wrong(DEVICE, Bytes(0), LARGE, 6).unwrap(), 0);
}

#[test]
fn more_than_one_device_has() {
    const SECOND: DeviceId = DeviceId(1);
    let case = Case::new();
    let source = machine(LARGE);
    let place = Placement::Exact(case.address);
    let builder = Region::builder(&source).reserve(Bytes::mib(80)).at(place).access(DEVICE, RW);
    let mut region = builder.access(SECOND, RW).build().unwrap();
    region.grow_to_on(DEVICE, Bytes::mib(40)).unwrap();
    region.grow_to_on(SECOND, Bytes::mib(80)).unwrap();
    let file = case.save(vec![region]);
    let error = restore(&source, &Restore::new().all_on(SECOND), &file).unwrap_err();
    let Detail::ExceedsDevice { requested, device, total } = error.detail() else { panic!("{error}") };
    let expected = (Operation::Restore, Bytes::mib(80), SECOND, Bytes::mib(64));
    assert_eq!((error.operation(), *requested, *device, *total), expected);
    // Devices that are no peers.
    let apart = HostConfig::new().devices(2).memory(Bytes::mib(64)).without_peers().open().unwrap();
    let error = restore(&apart, &Restore::new(), &file).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::PeerUnreachable { .. }) && error.operation() == Operation::Restore,
        "{error}"
    );
    // A single device.
    let alone = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let error = restore(&alone, &Restore::new(), &file).unwrap_err();
    assert!(matches!(error.detail(), Detail::NoSuchDevice { device: SECOND, .. }), "{error}");
    let enough = HostConfig::new().memory(Bytes::mib(128)).open().unwrap();
    let region = restore(&enough, &Restore::new().all_on(DEVICE), &file).unwrap().remove(0).region;
    assert_eq!(region.mappings().map(|mapping| mapping.memory.device()).collect::<Vec<_>>(), [DEVICE; 2]);
}

#[test]
fn memory_that_is_of_another_unit_there() {
    let case = Case::new();
    let source = machine(LARGE);
    let place = Placement::Exact(case.address);
    let builder = Region::builder(&source).reserve(Bytes::mib(8)).at(place);
    let mut region = builder.memory(Properties::on(DEVICE).located(Location::Host)).build().unwrap();
    region.grow_to(LARGE).unwrap();
    region.write_pattern(DEVICE, Bytes(0), LARGE, 7).unwrap();
    let file = case.save(vec![region]);
    let target = HostConfig::new().host_granularity(Bytes::mib(4)).open().unwrap();
    let error = restore(&target, &Restore::new(), &file).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("4 MiB here")),
        "{error}"
    );
    let options = Restore::new().memory(|was| Properties { location: Location::Device, ..was });
    let mut region = restore(&target, &options, &file).unwrap().remove(0).region;
    region.grow_to(LARGE + LARGE).unwrap();
    let locations = region.mappings().map(|mapping| mapping.memory.properties().location);
    assert_eq!(locations.collect::<Vec<_>>(), [Location::Device; 2]);
    assert_eq!(region.count_wrong(DEVICE, Bytes(0), LARGE, 7).unwrap(), 0);
}

/// A region of the device's memory in which host memory is mapped too. The target maps host memory in larger units.
#[test]
fn host_memory_in_a_device_region() {
    const COARSE: Bytes = Bytes::mib(4);
    let case = Case::new();
    let mut region = case.region(&machine(LARGE), LARGE, COARSE + COARSE);
    open(&mut region, Bytes(0), LARGE);
    open_at(&mut region, COARSE, COARSE, Location::Host);
    region.write_pattern(DEVICE, COARSE, COARSE, 8).unwrap();
    let file = case.save(vec![region]);
    let target = HostConfig::new().host_granularity(COARSE).open().unwrap();
    let error = restore(&target, &Restore::new(), &file).unwrap_err();
    let Detail::Unaligned { value, granularity, .. } = error.detail() else { panic!("{error}") };
    assert_eq!((*value, granularity.bytes()), ((case.address + LARGE).0, COARSE));
    let moved = restore(&target, &Restore::new().relocate(), &file).unwrap().remove(0);
    assert!(moved.has_moved() && moved.region.address().is_aligned_to(COARSE));
    assert_eq!(moved.region.count_wrong(DEVICE, COARSE, COARSE, 8).unwrap(), 0);
}

/// A plan counts no host memory as the device's. The host backend takes both from one amount, so that the restore fails later.
#[test]
fn host_memory_takes_no_device_memory() {
    let case = Case::new();
    let source = HostConfig::new().memory(Bytes::mib(80)).open().unwrap();
    let half = Bytes::mib(40);
    let mut region = case.region(&source, Bytes(0), half + half);
    open(&mut region, Bytes(0), half);
    open_at(&mut region, half, half, Location::Host);
    let file = case.save(vec![region]);
    let error = restore(&machine(LARGE), &Restore::new(), &file).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutOfMemory { .. }), "{error}");
    restore(&source, &Restore::new(), &file).unwrap();
}

/// The region has memory of the device, and grows by host memory, which the target maps in larger units.
#[test]
fn memory_in_region_with_larger_units() {
    const COARSE: Bytes = Bytes::mib(4);
    let case = Case::new();
    let source = machine(LARGE);
    let builder = Region::builder(&source).reserve(COARSE + COARSE).at(Placement::Exact(case.address));
    let mut region = builder.memory(Properties::on(DEVICE).located(Location::Host)).build().unwrap();
    open(&mut region, Bytes(0), LARGE);
    open(&mut region, LARGE, LARGE);
    region.write_pattern(DEVICE, Bytes(0), COARSE, 9).unwrap();
    let file = case.save(vec![region]);
    let target = HostConfig::new().host_granularity(COARSE).open().unwrap();
    let mut region = restore(&target, &Restore::new(), &file).unwrap().remove(0).region;
    assert_eq!((region.granularity().bytes(), region.mappings().count()), (COARSE, 1));
    assert_eq!(region.count_wrong(DEVICE, Bytes(0), COARSE, 9).unwrap(), 0);
    region.grow_to(COARSE + COARSE).unwrap();
}

#[test]
fn snapshot_names_machine_and_time() {
    let case = Case::new();
    let host = machine(LARGE);
    let file = case.save(vec![case.region(&host, Bytes(0), LARGE)]);
    let found = file.description();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(found.created.abs_diff(now) < 10 * 60, "{} and {now}", found.created);
    assert_eq!((&*found.vendor, &*found.library), ("host", env!("CARGO_PKG_VERSION")));
    assert_eq!(found.driver, host.driver().version);
    let devices = found.devices.iter().zip(host.devices()).map(|(found, device)| {
        assert_eq!((found.id, &found.name, found.uuid), (device.id, &device.name, device.uuid));
        (found.granularity.bytes(), found.total_memory)
    });
    assert_eq!(devices.collect::<Vec<_>>(), [(LARGE, Bytes::mib(64)); 2]);
}

/// Copies in both directions, and the release of the addresses afterwards.
const COPY_AND_RELEASE: &[Operation] = &[
    Operation::CopyToHost,
    Operation::CopyFromHost,
    Operation::QueueCopyToHost,
    Operation::QueueCopyFromHost,
    Operation::Unmap,
];

#[test]
fn failed_copy_and_release_are_reported() {
    let case = Case::new();
    let host = FaultInject::new(machine(LARGE));
    let ring = StagingRing::new(&host, 1, Bytes::kib(100)).unwrap();
    let builder = Region::builder(&host).reserve(LARGE).at(Placement::Exact(case.address));
    let mut region = builder.build().unwrap();
    // No device may read the memory there, so that it is mapped at other addresses too while it is read.
    let memory = PhysicalMemory::create(&host, LARGE, Properties::on(DEVICE)).unwrap();
    region.map(Bytes(0), &memory).unwrap();
    memory.write(Bytes(0), b"some contents").unwrap();
    let snapshot = Snapshot::new(&ring).region(&region);
    let both = |error: Error| {
        host.stop();
        let Detail::RollbackFailed { error, undo } = error.detail() else { panic!("{error}") };
        assert!(COPY_AND_RELEASE[..4].contains(&error.operation()), "{error}");
        assert_eq!(undo.operation(), Operation::Unmap, "{undo}");
    };
    host.fail_calls(COPY_AND_RELEASE);
    both(snapshot.write(&case.path, WaitFor::all_devices()).unwrap_err());
    assert!(!case.path.exists(), "there is no new file");
    snapshot.write(&case.path, WaitFor::all_devices()).unwrap();
    drop((region, memory));
    let file = SnapshotFile::open(&case.path).unwrap();
    host.fail_calls(COPY_AND_RELEASE);
    both(Restore::new().relocate().regions(&file, &ring).unwrap_err());
    // SAFETY: all regions are dropped, and no device uses host memory.
    assert_eq!(unsafe { host.reclaim() }.unwrap(), 2, "those that could not be released");
}
