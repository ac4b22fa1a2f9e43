//! The pattern and plain allocations.

use crate::range::{Range, create, free};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{
    Access, Address, Bytes, CopyCalls, Detail, DeviceId, Error, MemoryCalls, Stream, SyncCalls,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::{TestKit, pattern_word};

fn machine() -> HostBackend {
    HostConfig::new().devices(2).memory(Bytes::mib(16)).open().unwrap()
}

#[test]
fn core_pattern_counts_wrong_words() {
    let host = machine();
    let mut range = Range::new(&host, Bytes::mib(4));
    let handles = [create(&host, ONE, GRANULE).unwrap(), create(&host, ONE, GRANULE).unwrap()];
    range.put(Bytes::ZERO, &handles[1]);
    range.put(GRANULE, &handles[0]);
    let (at, length) = (range.at(Bytes::ZERO), Bytes::mib(4));
    // SAFETY: the range is mapped and this test's own; here and below.
    unsafe { host.write_pattern(ONE, at, length, 7) }.unwrap();
    let index = GRANULE.0 / 8 + 3;
    assert_eq!(range.read(ONE, Bytes(index * 8), 8).unwrap(), pattern_word(7, index).to_ne_bytes());
    // SAFETY: as above.
    let wrong = |seed| unsafe { host.count_wrong(ONE, at, length, seed) }.unwrap();
    assert_eq!((wrong(7), wrong(8)), (0, length.0 / 8));
    range.write(ONE, Bytes(4099), b"0123456789").unwrap();
    assert_eq!(wrong(7), 2);
    range.unmap(Bytes::ZERO, length).unwrap();
}

/// Work in flight writes in pieces, of which the last is shorter.
#[test]
fn work_writes_only_its_bytes() {
    let host = machine();
    let mut range = Range::new(&host, GRANULE);
    let handle = create(&host, ONE, GRANULE).unwrap();
    range.put(Bytes::ZERO, &handle);
    let (at, length) = (range.at(Bytes::ZERO), Bytes::kib(96));
    // SAFETY: the granule is mapped until the work has been waited for.
    unsafe { host.start_pattern_on(ONE, Stream::DEFAULT, at, length, 7, 1) }.unwrap();
    host.synchronize(ONE).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { host.count_wrong(ONE, at, length, 7) }.unwrap(), 0);
    let behind = range.read(ONE, length, (GRANULE - length).0 as usize).unwrap();
    assert!(behind.iter().all(|byte| *byte == 0), "bytes behind the pattern were written");
    assert_eq!(host.pattern_by(), "the CPU");
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn the_pattern_keeps_to_access_and_alignment() {
    let host = machine();
    let mut range = Range::new(&host, GRANULE);
    let handle = create(&host, ONE, GRANULE).unwrap();
    range.put(Bytes::ZERO, &handle);
    range.grant(Bytes::ZERO, GRANULE, TWO, Access::Read).unwrap();
    let at = range.at(Bytes::ZERO);
    // SAFETY: the backend refuses access that the device lacks; here and below.
    let error = unsafe { host.write_pattern(TWO, at, GRANULE, 1) }.unwrap_err();
    assert_eq!(error.driver_error().unwrap().name, "EACCES");
    // SAFETY: as above.
    unsafe { host.count_wrong(TWO, at, GRANULE, 1) }.unwrap();
    for (at, length, wrong) in
        [(at + Bytes(4), Bytes(8), ("address", at.0 + 4)), (at, Bytes(12), ("length", 12))]
    {
        // SAFETY: as above.
        let written = unsafe { host.write_pattern(ONE, at, length, 1) };
        // SAFETY: as above.
        let started = unsafe { host.start_pattern(ONE, at, length, 1, 1) }.map(drop);
        for error in [written.unwrap_err(), started.unwrap_err()] {
            let Detail::Unaligned { what, value, granularity } = error.detail() else { panic!("{error}") };
            assert_eq!((*what, *value, granularity.bytes()), (wrong.0, wrong.1, Bytes(8)), "{error}");
        }
    }
    let behind = Address(u64::MAX - 7);
    // SAFETY: as above.
    let error = unsafe { host.start_pattern(ONE, behind, Bytes(8), 1, 1) }.unwrap_err();
    assert!(matches!(error.detail(), Detail::Overflow { base, length: 8 } if *base == behind.0), "{error}");
    // SAFETY: as above.
    unsafe { host.write_pattern(ONE, at, Bytes::ZERO, 1) }.unwrap();
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn plain_allocations_belong_to_their_device() {
    let host = machine();
    let page = Bytes(rustix::param::page_size() as u64);
    let at = host.allocate_plain(ONE, Bytes::mib(3) + Bytes(1)).unwrap();
    assert_eq!(free(&host, ONE), Bytes::mib(13) - page);
    let error = host.allocate_plain(ONE, Bytes::mib(13)).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    // SAFETY: the allocation is this test's own; here and below.
    unsafe { host.write_pattern(ONE, at, Bytes::mib(3), 1) }.unwrap();
    // SAFETY: as above.
    assert!(unsafe { host.fill(TWO, at, Bytes(1), 1) }.is_err());
    let theirs = host.allocate_plain(TWO, page).unwrap();
    // SAFETY: as above.
    unsafe {
        assert!(host.fill(ONE, theirs, Bytes(1), 1).is_err());
        host.fill(TWO, theirs, page, 1).unwrap();
        host.free_plain(TWO, theirs, page).unwrap();
    }

    // A copy from the allocation to mapped memory.
    let mut range = Range::new(&host, GRANULE);
    let handle = create(&host, ONE, GRANULE).unwrap();
    range.put(Bytes::ZERO, &handle);
    // SAFETY: as above.
    unsafe { host.copy(ONE, range.at(Bytes::ZERO), at, GRANULE) }.unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { host.count_wrong(ONE, range.at(Bytes::ZERO), GRANULE, 1) }.unwrap(), 0);

    for (wrong, size) in [(at, Bytes::mib(2)), (at + page, Bytes::mib(3)), (range.at(Bytes::ZERO), GRANULE)] {
        // SAFETY: the backend refuses ranges that are not plain allocations.
        let error = unsafe { host.free_plain(ONE, wrong, size) }.unwrap_err();
        assert_eq!(error.driver_error().unwrap().name, "EINVAL");
    }
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
    drop(handle);
    // SAFETY: allocated above and no longer used.
    unsafe { host.free_plain(ONE, at, Bytes::mib(3) + Bytes(1)) }.unwrap();
    assert_eq!(free(&host, ONE), Bytes::mib(16));
    let page = rustix::param::page_size() as u64;
    // SAFETY: no allocation has this size.
    let freed = unsafe { host.free_plain(ONE, at, Bytes(u64::MAX)) };
    for error in [host.allocate_plain(ONE, Bytes(u64::MAX)).unwrap_err(), freed.unwrap_err()] {
        let Detail::Overflow { base, length } = error.detail() else { panic!("{error}") };
        assert_eq!((*base, *length), (u64::MAX, page), "{error}");
    }
    // SAFETY: the device does not exist.
    let error = unsafe { host.free_plain(DeviceId(2), at, Bytes::mib(3)) }.unwrap_err();
    assert!(matches!(error.detail(), Detail::NoSuchDevice { device: DeviceId(2), .. }), "{error}");
    // SAFETY: the backend refuses an allocation that was freed.
    assert!(unsafe { host.free_plain(ONE, at, Bytes::mib(3) + Bytes(1)) }.is_err());
    assert!(matches!(
        host.allocate_plain(ONE, Bytes::ZERO).as_ref().map_err(Error::detail),
        Err(Detail::ZeroSize)
    ));
}
