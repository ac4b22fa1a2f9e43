//! Access by device: which copies are allowed, across several mappings.

use crate::range::{Range, create};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{
    Access, Address, AddressRange, BackingStore, Bytes, CopyCalls, Detail, DeviceId, Error, Location,
    Operation, Properties, Region, RegionBuilder, Reservation, WaitFor,
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
fn copy_stops_at_first_refusing_mapping() {
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
fn copy_is_refused_at_a_hole() {
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
fn foreign_addresses_are_refused() {
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
fn refused_copy_names_its_first_address() {
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
fn access_change_waits_for_previous_device() {
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

/// The owner has write access for the copy, and afterwards each device has the access that it had.
#[test]
fn resume_restores_access_of_each_device() {
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

/// The CPU writes the contents of host memory, and may only read it afterwards.
#[test]
fn resume_removes_host_write_access() {
    let host = FaultInject::new(pair());
    let memory = Properties::on(ONE).located(Location::Host);
    let builder = Region::builder(&host).memory(memory).access(ONE, Access::ReadWrite);
    let mut region = builder.access(DeviceId::HOST, Access::Read).reserve(GRANULE).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    let store = BackingStore::pinned(&host, region.end()).unwrap();
    region.suspend(&store, WaitFor::all_devices()).unwrap();
    region.resume().unwrap();
    for (device, access) in [(ONE, Access::ReadWrite), (DeviceId::HOST, Access::Read)] {
        assert_eq!(region.access(Bytes::ZERO, device), access);
        assert_eq!(host.access_at(region.address(), device).unwrap(), Some(access), "{device}");
    }
}
