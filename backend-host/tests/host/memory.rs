//! Physical memory: its contents, its amount, and when it is free again.

use crate::range::{Range, create, create_as, free, properties_of};
use crate::{GRANULE, ONE, SMALL};
use gpu_vmm_core::{
    Access, Backend, BackingStore, Bytes, Detail, Location, Operation, POISON, PageList, PhysicalMemory,
    Properties, Region, StagingRing,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;

fn machine(memory: Bytes) -> HostBackend {
    HostConfig::new().devices(2).memory(memory).open().unwrap()
}

#[test]
fn fresh_memory_reads_as_zero() {
    let host = machine(Bytes::mib(8));
    let mut range = Range::new(&host, Bytes::mib(8));
    for round in 0..6 {
        // Sizes differ, so that parts of the store are split and merged.
        let size = Bytes::mib([2, 4, 8][round % 3]);
        let properties = properties_of(ONE, round >= 3);
        let handle = create_as(&host, size, properties).unwrap();
        range.put(Bytes::ZERO, &handle);
        assert!(range.read(ONE, Bytes::ZERO, size.0 as usize).unwrap().iter().all(|byte| *byte == 0));
        range.fill(ONE, Bytes::ZERO, size, 0xA5).unwrap();
        range.unmap(Bytes::ZERO, size).unwrap();
    }
}

#[test]
fn oversized_pinned_store_pins_nothing() {
    let host = FaultInject::new(machine(Bytes::mib(64)));
    let much = Bytes::gib(1 << 30);
    host.fail_calls(&[Operation::PinMemory]);
    let error = BackingStore::pinned(&host, much).unwrap_err();
    host.stop();
    let Detail::BackingStoreFull { needed, free, capacity } = error.detail() else { panic!("{error}") };
    assert_eq!((error.operation(), *needed), (Operation::PinMemory, much));
    assert!(free <= capacity && *capacity < much, "{error}");
}

/// Memory of the host can need addresses at larger multiples than memory of its device.
#[test]
fn contents_are_copied_at_aligned_addresses() {
    let large = Bytes::mib(64);
    let host = HostConfig::new().memory(Bytes::mib(256)).host_granularity(large).open().unwrap();
    let properties = Properties::on(ONE).located(Location::Host);
    let memory = PhysicalMemory::create(&host, large, properties).unwrap();
    let mut before = Vec::new();
    for round in 0..4 {
        // A reservation of one granule moves the next addresses away from those multiples.
        before.push(Region::builder(&host).reserve(GRANULE).build().unwrap());
        memory.write(Bytes(round), b"contents").unwrap();
        let mut bytes = [0; 8];
        memory.read(Bytes(round), &mut bytes).unwrap();
        assert_eq!(&bytes, b"contents");
    }
}

/// Memory of a guarded region is mapped once more to be overwritten, at an address that suits it too.
#[test]
fn memory_is_overwritten_at_aligned_addresses() {
    let large = Bytes::mib(64);
    let host = HostConfig::new().memory(Bytes::mib(256)).host_granularity(large).open().unwrap();
    let pages = PageList::new(&host, large, Properties::on(ONE).located(Location::Host), large).unwrap();
    let mut before = Vec::new();
    for _ in 0..4 {
        before.push(Region::builder(&host).reserve(GRANULE).build().unwrap());
        let mut region =
            Region::builder(&host).memory(pages.properties()).reserve(large).guarded().build().unwrap();
        region.grow_with(&pages.take(large).unwrap()).unwrap();
        region.write(Bytes::ZERO, b"contents").unwrap();
        drop(region);
        assert!(host.drop_log().take_last().is_none());
        let mut bytes = [0; 8];
        pages.take(large).unwrap()[0].read(Bytes::ZERO, &mut bytes).unwrap();
        assert_eq!(bytes, [POISON; 8]);
    }
}

#[test]
fn unaligned_size_is_refused() {
    let host = machine(Bytes::mib(8));
    let error = create(&host, ONE, GRANULE + SMALL).unwrap_err();
    assert_eq!(error.driver_error().unwrap().name, "EINVAL", "{error}");
    for part in ["2112 KiB is no multiple of the granularity 2 MiB", "device memory of device 0"] {
        assert!(error.to_string().contains(part), "{part:?} is missing in {error}");
    }
    assert_eq!(free(&host, ONE), Bytes::mib(8));
}

#[test]
fn a_hundred_thousand_handles() {
    let count = 100_000;
    let host = HostConfig::new().granularity(SMALL).memory(Bytes(SMALL.0 * count)).open().unwrap();
    let mut handles: Vec<_> = (0..count).map(|_| create(&host, ONE, SMALL).unwrap()).collect();
    assert_eq!(free(&host, ONE), Bytes::ZERO);
    // Every other handle is dropped, and handles of twice the size are created in between.
    let mut index = 0;
    handles.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    let larger: Vec<_> = (0..count / 4).map(|_| create(&host, ONE, Bytes(SMALL.0 * 2)).unwrap()).collect();
    assert_eq!(free(&host, ONE), Bytes::ZERO);
    drop(handles);
    drop(larger);
    assert_eq!(free(&host, ONE), Bytes(SMALL.0 * count));
}

#[test]
fn a_hundred_thousand_mappings_in_a_row() {
    let count = 100_000;
    let host = HostConfig::new().granularity(SMALL).memory(Bytes(SMALL.0 * count)).open().unwrap();
    let handles: Vec<_> = (0..count).map(|_| create(&host, ONE, SMALL).unwrap()).collect();
    let all = Bytes(SMALL.0 * count);
    let mut range = Range::new(&host, all);
    for (offset, handle) in (0..).step_by(SMALL.0 as usize).zip(&handles) {
        range.map(Bytes(offset), handle).unwrap();
    }
    range.grant(Bytes::ZERO, all, ONE, Access::ReadWrite).unwrap();
    range.write(ONE, all - Bytes(3), b"end").unwrap();
    assert_eq!(range.read(ONE, all - Bytes(3), 3).unwrap(), b"end");
    range.unmap(Bytes::ZERO, all).unwrap();
    drop(handles);
    assert_eq!(free(&host, ONE), all);
}

#[test]
fn pinned_pieces_keep_all_bytes() {
    // More than is page-locked in one call.
    let size = Bytes::mib(256) + GRANULE;
    let host = HostConfig::new().memory(Bytes::gib(1)).open().unwrap();
    let mut region = gpu_vmm_core::Region::builder(&host).on(ONE).reserve(size).build().unwrap();
    region.grow_to(size).unwrap();
    region.write(size - Bytes(4), b"last").unwrap();
    let store = gpu_vmm_core::BackingStore::pinned(&host, size).unwrap();
    region.suspend(&store, gpu_vmm_core::WaitFor::all_devices()).unwrap();
    region.resume().unwrap();
    let mut bytes = [0; 4];
    region.read(size - Bytes(4), &mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
}

#[test]
fn what_is_mapped_can_be_shown() {
    let backend = gpu_vmm_host::HostBackend::open().unwrap();
    let mut region = gpu_vmm_core::Region::builder(&backend).on(ONE).reserve(GRANULE).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    let shown = format!("{region:?}");
    assert!(shown.contains(&region.address().to_string()), "{shown}");
    assert_eq!(format!("{backend:?}"), "host memory, devices: 1");
    let shown = format!("{:?}", create(&backend, ONE, GRANULE).unwrap());
    assert!(shown.contains("Memory { place: Stored { offset: 2097152 }, size: "), "{shown}");
}

#[test]
fn ring_has_at_most_sixteen_threads() {
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(StagingRing::<HostBackend>::threads(), cores.min(16));
}
