//! Copies by regions and by physical memory, and mappings that cannot be removed: the driver calls, and those that fail.

use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{Access, Backend, Bytes, Detail, Operation, PhysicalMemory, Properties, Region, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;

type Host = FaultInject<HostBackend>;

fn pair() -> Host {
    FaultInject::new(HostConfig::new().devices(2).open().unwrap())
}

fn granules(count: u64) -> Bytes {
    Bytes(count * GRANULE.0)
}

/// Returns the number of driver calls of `work`, which must succeed.
fn calls(host: &Host, work: impl FnOnce() -> gpu_vmm_core::Result<()>) -> u64 {
    host.fail(u64::MAX, 0);
    work().unwrap();
    host.stop()
}

#[test]
fn adjacent_mappings_are_copied_by_one_call() {
    let host = pair();
    let mut region = Region::builder(&host).reserve(granules(4)).build().unwrap();
    for end in [1, 2, 3] {
        region.grow_to(granules(end)).unwrap();
    }
    region.grow_to_on(TWO, granules(4)).unwrap();
    let mut bytes = vec![7; granules(3).0 as usize - 2];
    assert_eq!(calls(&host, || region.write(Bytes(1), &bytes)), 1);
    assert_eq!(calls(&host, || region.read(Bytes(1), &mut bytes)), 1);
    assert_eq!(calls(&host, || region.fill(Bytes(1), granules(3) - Bytes(2), 1)), 1);
    assert_eq!(calls(&host, || region.fill(granules(2), granules(2), 1)), 2, "one call for each owner");
}

#[test]
fn failed_copy_is_reported_as_copy() {
    let host = pair();
    let mut region = Region::builder(&host).reserve(granules(2)).build().unwrap();
    region.grow_to(granules(1)).unwrap();
    for (answer, operation) in [
        (region.write(granules(1), &[1]), Operation::Write),
        (region.read(granules(1), &mut [0]), Operation::Read),
        (region.fill(granules(1), Bytes(1), 0), Operation::Fill),
    ] {
        let error = answer.unwrap_err();
        assert!(matches!(error.detail(), Detail::NotMapped { .. }), "{error}");
        assert_eq!(error.operation(), operation);
    }
}

/// Its devices are not this machine's, so their numbers mean nothing.
#[test]
fn copy_from_foreign_memory_is_refused() {
    let (host, other) = (pair(), FaultInject::new(HostConfig::new().open().unwrap()));
    let to = PhysicalMemory::create(&host, GRANULE, Properties::on(TWO)).unwrap();
    let from = PhysicalMemory::create(&other, GRANULE, Properties::on(ONE)).unwrap();
    let error = to.copy_from(Bytes::ZERO, &from, Bytes::ZERO, GRANULE).unwrap_err();
    assert!(matches!(error.detail(), Detail::ForeignHandle { .. }), "{error}");
    assert_eq!(error.operation(), Operation::Copy);
}

/// The source is memory of two devices, so that the copy has two parts. The second must not be as long as both.
#[test]
fn copy_from_two_devices_ends_correctly() {
    let host = pair();
    let mut source =
        Region::builder(&host).access(ONE, Access::ReadWrite).reserve(granules(3)).build().unwrap();
    source.grow_to(granules(1)).unwrap();
    source.grow_to_on(TWO, granules(3)).unwrap();
    source.fill(Bytes::ZERO, granules(3), 1).unwrap();
    let mut target = Region::builder(&host).reserve(granules(3)).build().unwrap();
    target.grow_to(granules(3)).unwrap();
    target.fill(Bytes::ZERO, granules(3), 2).unwrap();
    target.copy_from(Bytes::ZERO, &source, Bytes::ZERO, granules(2)).unwrap();
    let mut bytes = vec![0; granules(3).0 as usize];
    target.read(Bytes::ZERO, &mut bytes).unwrap();
    let (copied, kept) = bytes.split_at(granules(2).0 as usize);
    assert!(copied.iter().all(|byte| *byte == 1));
    assert!(kept.iter().all(|byte| *byte == 2), "bytes behind the target were overwritten");
}

#[test]
fn copy_with_hole_makes_no_call() {
    let host = pair();
    let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(ONE)).unwrap();
    host.fail(0, u64::MAX);
    let error = memory.write(GRANULE - Bytes(1), &[0; 2]).unwrap_err();
    assert_eq!(host.stop(), 0);
    let Detail::OutOfRange { range, limit } = error.detail() else { panic!("{error}") };
    assert_eq!((range.offset, range.length, *limit), (GRANULE - Bytes(1), Bytes(2), GRANULE));
    assert_eq!(error.operation(), Operation::Write);
}

/// Of three mappings, the third cannot be removed. Then the first is mapped again, the second cannot be, and the first cannot be
/// removed a second time. It is listed once.
#[test]
fn restored_mapping_is_listed_once() {
    let host = FaultInject::new(HostConfig::new().unmapping_singly().open().unwrap());
    let mut region = Region::builder(&host).reserve(granules(4)).build().unwrap();
    for end in [1, 2, 3] {
        region.grow_to(granules(end)).unwrap();
    }
    // One call waits for the device.
    host.fail_each(&[3, 5, 6]);
    let error = region.unmap(Bytes::ZERO, granules(3), WaitFor::all_devices()).unwrap_err();
    assert_eq!(host.stop(), 7);
    assert!(matches!(error.detail(), Detail::RollbackFailed { .. }), "{error}");
    let mappings: Vec<_> = region.mappings().map(|one| (one.offset, one.poisoned)).collect();
    assert_eq!(mappings, [(Bytes::ZERO, true), (granules(1), true), (granules(2), false)]);
    assert_eq!((region.mapped(), region.end()), (granules(3), granules(3)));
    drop(region);
    // SAFETY: the region is dropped, and no device uses host memory.
    unsafe { host.reclaim() }.unwrap();
}

/// No device has access, so the memory is not kept until a device has finished, but released at once.
#[test]
fn unreleased_memory_without_access_is_logged() {
    let host = pair();
    let mut region = Region::builder(&host).reserve(GRANULE).build().unwrap();
    let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(ONE)).unwrap();
    region.map(Bytes::ZERO, &memory).unwrap();
    host.fail_calls(&[Operation::Unmap]);
    region.release_later();
    host.stop();
    assert_eq!((host.deferred().kept(), host.drop_log().count()), (Bytes::ZERO, 1));
    let error = host.drop_log().take_last().unwrap();
    assert!(matches!(error.detail(), Detail::RollbackFailed { .. }), "{error}");
    // SAFETY: the region is gone, and no device uses host memory.
    unsafe { host.reclaim() }.unwrap();
}
