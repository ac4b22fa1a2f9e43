//! Access by device: which copies are allowed, across several mappings.

use crate::range::{Range, create};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{
    Access, Address, AddressRange, BackingStore, Bytes, CopyCalls, Detail, DeviceId, Error, Grant, Location,
    Operation, PhysicalMemory, Properties, Region, RegionBuilder, Reservation, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;

fn pair() -> HostBackend {
    HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap()
}

/// Returns the name and the text of a refusal.
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, String) {
    let error = result.unwrap_err();
    (error.driver_error().unwrap().name.clone().into_owned(), error.to_string())
}

#[test]
fn a_new_mapping_gives_no_device_access() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, GRANULE);
    range.map(Bytes::ZERO, &handle).unwrap();
    for device in [ONE, TWO] {
        assert_eq!(range.access(Bytes::ZERO, device).unwrap(), Access::None);
        let (name, text) = refused(range.read(device, Bytes::ZERO, 1));
        assert_eq!(name, "EACCES");
        assert!(text.contains(&format!("{device} has no access")), "{text}");
        assert_eq!(range.read(device, Bytes(1), 0).unwrap(), [], "nothing is read");
    }
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn each_device_may_do_what_it_was_granted_and_no_more() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, GRANULE);
    range.map(Bytes::ZERO, &handle).unwrap();
    let grants =
        [Grant { device: ONE, access: Access::ReadWrite }, Grant { device: TWO, access: Access::Read }];
    // SAFETY: the range is the one mapping, and no other code uses it.
    unsafe { range.inner.set_access(Bytes::ZERO, GRANULE, &grants) }.unwrap();
    range.write(ONE, Bytes::ZERO, b"from one").unwrap();
    assert_eq!(range.read(TWO, Bytes::ZERO, 8).unwrap(), b"from one");
    assert_eq!(refused(range.write(TWO, Bytes::ZERO, b"x")).0, "EACCES");
    assert_eq!(refused(range.fill(TWO, Bytes::ZERO, GRANULE, 1)).0, "EACCES");

    // A device that a call does not name keeps its access.
    range.grant(Bytes::ZERO, GRANULE, ONE, Access::None).unwrap();
    assert_eq!(refused(range.read(ONE, Bytes::ZERO, 1)).0, "EACCES");
    assert_eq!(range.read(TWO, Bytes::ZERO, 8).unwrap(), b"from one");
    range.grant(Bytes::ZERO, GRANULE, TWO, Access::ReadWrite).unwrap();
    range.write(TWO, Bytes::ZERO, b"by other").unwrap();
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn access_goes_with_the_mapping_and_not_with_the_memory() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, Bytes::mib(4));
    range.put(Bytes::ZERO, &handle);
    range.map(GRANULE, &handle).unwrap();
    assert_eq!(range.access(GRANULE, ONE).unwrap(), Access::None);
    range.grant(GRANULE, GRANULE, ONE, Access::Read).unwrap();
    range.write(ONE, Bytes::ZERO, b"one way").unwrap();
    assert_eq!(range.read(ONE, GRANULE, 7).unwrap(), b"one way");
    assert_eq!(refused(range.write(ONE, GRANULE, b"x")).0, "EACCES");
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
    range.unmap(GRANULE, GRANULE).unwrap();
    range.map(Bytes::ZERO, &handle).unwrap();
    assert_eq!(range.access(Bytes::ZERO, ONE).unwrap(), Access::None);
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn copies_span_mappings_and_stop_at_the_first_that_refuses() {
    let host = pair();
    let handles: Vec<_> = (0..4).map(|_| create(&host, ONE, GRANULE).unwrap()).collect();
    let mut range = Range::new(&host, Bytes::mib(10));
    // Not in the order of the file, so that the kernel keeps separate mappings too.
    for (index, handle) in handles.iter().rev().enumerate() {
        range.put(Bytes::mib(2 * index as u64), handle);
    }
    let bytes: Vec<u8> = (0..Bytes::mib(6).0).map(|index| (index / 4093) as u8).collect();
    let start = Bytes::mib(1);
    range.write(ONE, start, &bytes).unwrap();
    assert_eq!(range.read(ONE, start, bytes.len()).unwrap(), bytes);

    let (name, text) = refused(range.read(ONE, start, Bytes::mib(8).0 as usize));
    assert_eq!(name, "EFAULT");
    assert!(text.contains(&format!("nothing is mapped at {}", range.at(Bytes::mib(8)))), "{text}");

    // One access for the whole run, over mappings with different access.
    range.grant(GRANULE, GRANULE, ONE, Access::None).unwrap();
    range.grant(Bytes::mib(4), GRANULE, ONE, Access::Read).unwrap();
    let (name, text) = refused(range.read(ONE, start, Bytes::mib(5).0 as usize));
    assert_eq!(name, "EACCES");
    assert!(text.contains(&format!("has no access at {}", range.at(GRANULE))), "{text}");
    range.grant(Bytes::ZERO, Bytes::mib(8), ONE, Access::ReadWrite).unwrap();
    assert_eq!(range.read(ONE, start, bytes.len()).unwrap(), bytes);
    range.unmap(Bytes::ZERO, Bytes::mib(8)).unwrap();
    assert_eq!(refused(range.read(ONE, start, 1)).0, "EFAULT");
}

/// The mapping behind the hole has the access that the copy needs.
#[test]
fn a_copy_over_a_hole_is_refused_at_the_hole() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, Bytes::mib(8));
    for offset in [Bytes::ZERO, Bytes::mib(4)] {
        range.put(offset, &handle);
    }
    for (start, hole) in [(Bytes::mib(1), GRANULE), (Bytes::mib(3), Bytes::mib(3))] {
        let (name, text) = refused(range.fill(ONE, start, Bytes::mib(6) - start, 1));
        assert_eq!(name, "EFAULT");
        assert!(text.contains(&format!("nothing is mapped at {}", range.at(hole))), "{text}");
    }
    for offset in [Bytes::ZERO, Bytes::mib(4)] {
        range.unmap(offset, GRANULE).unwrap();
    }
}

#[test]
fn a_copy_needs_access_to_both_sides() {
    let host = pair();
    let (ones, twos) = (create(&host, ONE, GRANULE).unwrap(), create(&host, TWO, GRANULE).unwrap());
    let mut range = Range::new(&host, Bytes::mib(4));
    range.put(Bytes::ZERO, &ones);
    range.put(GRANULE, &twos);
    range.write(ONE, Bytes(5), b"travels").unwrap();
    let (from, to) = (range.at(Bytes(5)), range.at(GRANULE));
    // SAFETY: both sides are mapped; the backend checks the device's access.
    let copy = |device| unsafe { host.copy(device, to, from, Bytes(7)) };
    assert_eq!(refused(copy(ONE)).0, "EACCES");
    assert_eq!(refused(copy(TWO)).0, "EACCES");
    range.grant(Bytes::ZERO, GRANULE, TWO, Access::Read).unwrap();
    copy(TWO).unwrap();
    assert_eq!(range.read(TWO, GRANULE, 7).unwrap(), b"travels");
    assert!(matches!(copy(DeviceId(2)).as_ref().map_err(Error::detail), Err(Detail::NoSuchDevice { .. })));
    range.unmap(Bytes::ZERO, Bytes::mib(4)).unwrap();
}

#[test]
fn addresses_that_are_not_the_backends_are_refused() {
    let host = pair();
    let other = pair();
    let mut range = Range::new(&other, GRANULE);
    let handle = create(&other, ONE, GRANULE).unwrap();
    range.put(Bytes::ZERO, &handle);
    let own = [0u8; 8];
    for at in [range.at(Bytes::ZERO), Address(own.as_ptr() as u64), Address(0), Address(u64::MAX - 7)] {
        // SAFETY: the backend knows none of these addresses and accesses nothing.
        let result = unsafe { host.fill(ONE, at, Bytes(4), 1) };
        assert_eq!(refused(result).0, "EFAULT");
    }
    // SAFETY: as above.
    let result = unsafe { host.fill(ONE, Address(u64::MAX), Bytes(4), 1) };
    let detail = result.as_ref().map_err(Error::detail);
    assert!(matches!(detail, Err(Detail::Overflow { base: u64::MAX, length: 4 })), "{result:?}");
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn a_refusal_names_the_first_address_of_the_copy() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, GRANULE);
    range.map(Bytes::ZERO, &handle).unwrap();
    let (name, text) = refused(range.read(ONE, Bytes(4096), 3));
    let address = range.inner.range().base + Bytes(4096);
    assert_eq!(name, "EACCES");
    assert!(text.contains(&format!("has no access at {address} ")), "{text}");
    let whole = AddressRange { base: address, size: Bytes(3) };
    assert!(text.contains(&whole.to_string()), "{whole} is missing in {text}");
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn memory_that_peers_use_is_several_handles() {
    let host = HostConfig::new().devices(2).memory(Bytes::gib(1)).open().unwrap();
    let grow = |builder: RegionBuilder<'_, HostBackend>| {
        let mut region = builder.reserve(Bytes::gib(1)).build().unwrap();
        region.grow_to(Bytes::mib(2)).unwrap();
        region.grow_to(Bytes::mib(602)).unwrap();
        let sizes: Vec<_> = region.mappings().map(|mapping| mapping.length.0 >> 20).collect();
        sizes
    };
    assert_eq!(grow(Region::builder(&host)), [2, 600]);
    assert_eq!(grow(Region::builder(&host).access(TWO, Access::Read)), [2, 256, 256, 88]);
    // The owner is no peer.
    assert_eq!(grow(Region::builder(&host).access(ONE, Access::ReadWrite)), [2, 600]);
    assert_eq!(grow(Region::builder(&host).on(TWO).access(TWO, Access::Read)), [2, 600]);
}

/// A granule that is larger than a handle for peers is one handle.
#[test]
fn memory_that_peers_use_is_whole_granules() {
    let unit = Bytes::mib(512);
    let host = HostConfig::new().devices(2).granularity(unit).memory(Bytes::gib(2)).open().unwrap();
    let builder = Region::builder(&host).access(TWO, Access::Read).reserve(Bytes::gib(1));
    let mut region = builder.build().unwrap();
    region.grow_to(Bytes::gib(1)).unwrap();
    assert!(region.mappings().map(|mapping| mapping.length).eq([unit, unit]));
}

/// The host is no device whose work could be waited for. A device is waited for as soon as one mapping loses access.
#[test]
fn a_change_of_access_waits_for_the_device_that_had_some() {
    let host = FaultInject::new(pair());
    let properties = Properties::on(ONE).located(Location::Host);
    let mut region = Region::builder(&host).memory(properties).reserve(GRANULE + GRANULE).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    region.grow_to(GRANULE + GRANULE).unwrap();
    let mut set = |offset, length, device, access| {
        let before = host.made(Operation::WaitForDevice);
        region.set_access(offset, length, device, access).unwrap();
        host.made(Operation::WaitForDevice) - before
    };
    let (start, whole) = (Bytes::ZERO, GRANULE + GRANULE);
    for access in [Access::ReadWrite, Access::Read, Access::None] {
        assert_eq!(set(start, whole, DeviceId::HOST, access), 0, "{access}");
    }
    assert_eq!(set(start, GRANULE, TWO, Access::Read), 0, "the first access");
    assert_eq!(set(start, whole, TWO, Access::ReadWrite), 1, "the first mapping had some");
    assert_eq!(set(start, whole, TWO, Access::ReadWrite), 0, "the same again");
}

#[test]
fn shrinking_waits_for_the_devices_behind_a_hole_too() {
    let host = FaultInject::new(pair());
    let mut region = Region::builder(&host).reserve(Bytes(4 * GRANULE.0)).build().unwrap();
    for (granule, device) in [(0, ONE), (1, ONE), (3, TWO)] {
        let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(device)).unwrap();
        region.map_with_access(Bytes(granule * GRANULE.0), &memory, device, Access::ReadWrite).unwrap();
    }
    let shrunk = region.shrink_to(GRANULE, WaitFor::all_devices()).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (GRANULE, GRANULE + GRANULE), "the hole was not mapped");
    assert_eq!(host.made(Operation::WaitForDevice), 2);
}

/// The owner has write access for the copy, and afterwards each device has the access that it had.
#[test]
fn each_device_has_its_access_after_a_resume() {
    let host = FaultInject::new(pair());
    let builder = Region::builder(&host).on(ONE).access(ONE, Access::Read).access(TWO, Access::Read);
    let mut region = builder.reserve(GRANULE + GRANULE).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    region.grow_to_on(TWO, GRANULE + GRANULE).unwrap();
    let store = BackingStore::pinned(&host, region.end()).unwrap();
    region.suspend(&store, WaitFor::all_devices()).unwrap();
    region.resume().unwrap();
    for (offset, device) in [(Bytes::ZERO, ONE), (Bytes::ZERO, TWO), (GRANULE, ONE), (GRANULE, TWO)] {
        assert_eq!(region.access(offset, device), Access::Read);
        let access = host.access_at(region.address() + offset, device).unwrap();
        assert_eq!(access, Some(Access::Read), "{device} at offset {offset}");
    }
}
