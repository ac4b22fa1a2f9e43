//! Physical memory: its contents, its amount, and when it is free again.

use crate::range::{Range, create, create_as, free, properties_of};
use crate::{GRANULE, ONE, SMALL, TWO};
use gpu_vmm_core::{
    Access, Backend, BackingStore, Bytes, Detail, DeviceId, Handle, HandleTypes, Location, Operation, POISON,
    PageList, PhysicalMemory, Properties, Region, RegionBuilder, StagingRing,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;

fn machine(memory: Bytes) -> HostBackend {
    HostConfig::new().devices(2).memory(memory).open().unwrap()
}

#[test]
fn a_whole_cycle() {
    let host = machine(Bytes::mib(64));
    let handle = create(&host, ONE, Bytes::mib(4)).unwrap();
    assert_eq!((handle.size(), handle.properties()), (Bytes::mib(4), Properties::on(ONE)));
    let mut range = Range::new(&host, Bytes::mib(8));
    range.put(GRANULE, &handle);
    range.write(ONE, GRANULE, b"first").unwrap();
    range.write(ONE, Bytes::mib(6) - Bytes(4), b"last").unwrap();
    assert_eq!(range.read(ONE, GRANULE, 5).unwrap(), b"first");
    assert_eq!(range.read(ONE, Bytes::mib(6) - Bytes(4), 4).unwrap(), b"last");
    range.unmap(GRANULE, Bytes::mib(4)).unwrap();
    drop((range, handle));
    assert_eq!(free(&host, ONE), Bytes::mib(64));
}

#[test]
fn contents_stay_with_the_handle() {
    let host = machine(Bytes::mib(64));
    let (mut one, mut two) = (Range::new(&host, GRANULE), Range::new(&host, GRANULE));
    for shareable in [false, true] {
        let handle = create_as(&host, GRANULE, properties_of(ONE, shareable)).unwrap();
        one.put(Bytes::ZERO, &handle);
        one.write(ONE, Bytes(77), b"stays").unwrap();
        one.unmap(Bytes::ZERO, GRANULE).unwrap();
        two.put(Bytes::ZERO, &handle);
        assert_eq!(two.read(ONE, Bytes(77), 5).unwrap(), b"stays");
        two.unmap(Bytes::ZERO, GRANULE).unwrap();
    }
}

#[test]
fn aliases_show_the_same_bytes() {
    let host = machine(Bytes::mib(64));
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, Bytes::mib(6));
    range.put(Bytes::ZERO, &handle);
    range.put(Bytes::mib(4), &handle);
    range.write(ONE, Bytes(9), b"alias").unwrap();
    assert_eq!(range.read(ONE, Bytes::mib(4) + Bytes(9), 5).unwrap(), b"alias");
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
    assert_eq!(range.read(ONE, Bytes::mib(4) + Bytes(9), 5).unwrap(), b"alias");
    range.unmap(Bytes::mib(4), GRANULE).unwrap();
}

#[test]
fn fresh_memory_reads_as_zero_also_where_other_memory_was() {
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
fn a_pinned_store_larger_than_the_machine_is_refused_before_anything_is_pinned() {
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
fn contents_are_written_and_read_at_addresses_that_suit_the_memory() {
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
fn memory_is_overwritten_at_addresses_that_suit_it() {
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
fn neighbours_in_the_store_do_not_touch() {
    let host = HostConfig::new().granularity(SMALL).open().unwrap();
    let handles: Vec<_> = (0..64).map(|_| create(&host, ONE, SMALL).unwrap()).collect();
    let mut range = Range::new(&host, Bytes(SMALL.0 * 64));
    let at = |index: usize| Bytes(SMALL.0 * index as u64);
    // Mapped in another order than in the file.
    for (index, handle) in handles.iter().rev().enumerate() {
        range.put(at(index), handle);
        range.fill(ONE, at(index), SMALL, index as u8).unwrap();
    }
    for index in 0..64 {
        let bytes = range.read(ONE, at(index), SMALL.0 as usize).unwrap();
        assert!(bytes.iter().all(|byte| *byte == index as u8), "piece {index}");
    }
    range.unmap(Bytes::ZERO, at(64)).unwrap();
}

#[test]
fn free_memory_is_exact_and_memory_lives_while_it_is_mapped() {
    let host = machine(Bytes::mib(64));
    let first = create(&host, ONE, Bytes::mib(6)).unwrap();
    let second = create_as(&host, Bytes::mib(2), Properties::on(ONE).shareable()).unwrap();
    assert_eq!((free(&host, ONE), free(&host, TWO)), (Bytes::mib(56), Bytes::mib(64)));
    let mut range = Range::new(&host, Bytes::mib(16));
    range.put(Bytes::ZERO, &first);
    range.put(Bytes::mib(8), &first);
    range.write(ONE, Bytes::ZERO, b"lives").unwrap();
    drop(first);
    assert_eq!(free(&host, ONE), Bytes::mib(56));
    range.unmap(Bytes::ZERO, Bytes::mib(6)).unwrap();
    assert_eq!(free(&host, ONE), Bytes::mib(56));
    assert_eq!(range.read(ONE, Bytes::mib(8), 5).unwrap(), b"lives");
    range.unmap(Bytes::mib(8), Bytes::mib(6)).unwrap();
    assert_eq!(free(&host, ONE), Bytes::mib(62));
    drop(second);
    assert_eq!(free(&host, ONE), Bytes::mib(64));
}

#[test]
fn out_of_memory_has_the_numbers_and_takes_nothing() {
    let host = machine(Bytes::mib(8));
    for shareable in [false, true] {
        let properties = properties_of(TWO, shareable);
        let held = create_as(&host, Bytes::mib(6), properties).unwrap();
        let error = create_as(&host, Bytes::mib(4), properties).unwrap_err();
        let Detail::OutOfMemory { device, requested, free: left, total, source, .. } = error.detail() else {
            panic!("{error:?}")
        };
        assert_eq!((*device, *requested, *left, *total), (TWO, Bytes::mib(4), Bytes::mib(2), Bytes::mib(8)));
        assert_eq!((source.name.as_ref(), source.code), ("ENOMEM", 12));
        assert!(error.is_out_of_memory());
        // The other device has its own amount, and the remaining memory is available.
        create_as(&host, Bytes::mib(8), properties_of(ONE, shareable)).unwrap();
        create_as(&host, Bytes::mib(2), properties).unwrap();
        drop(held);
        create_as(&host, Bytes::mib(8), properties).unwrap();
    }
}

#[test]
fn a_size_that_is_no_multiple_of_the_granularity_is_refused() {
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
fn a_hundred_thousand_mappings_of_handles_created_in_a_row() {
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
fn a_store_that_is_page_locked_in_several_pieces_keeps_all_bytes() {
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

/// A driver gives a peer access to several handles of 256 MiB faster than to one large handle. For the owner and the CPU that is no
/// difference.
#[test]
fn growth_for_peers_has_handles_of_256_mib() {
    let (host, size) = (machine(Bytes::gib(1)), Bytes::mib(600));
    let lengths = |builder: RegionBuilder<'_, HostBackend>| -> Vec<Bytes> {
        let mut region: Region<HostBackend> = builder.reserve(size).build().unwrap();
        region.grow_to(size).unwrap();
        region.mappings().map(|mapping| mapping.length).collect()
    };
    let builder = || Region::builder(&host).on(ONE);
    assert_eq!(lengths(builder()), [size]);
    assert_eq!(lengths(builder().access(DeviceId::HOST, Access::ReadWrite)), [size]);
    assert_eq!(lengths(builder().access(TWO, Access::Read)), [256, 256, 88].map(Bytes::mib));
}

/// Creating it is refused too.
#[test]
#[cfg(not(windows))]
fn memory_with_a_handle_type_of_another_system_is_not_imported() {
    use std::os::fd::AsFd;
    let host = machine(Bytes::mib(64));
    let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(ONE).shareable()).unwrap();
    let descriptor = memory.export().unwrap();
    let foreign = memory.properties().exported_as(HandleTypes::WIN32);
    // SAFETY: the descriptor is that of memory of this size.
    let imported = unsafe { PhysicalMemory::import(&host, descriptor.as_fd(), GRANULE, foreign) };
    for (answer, operation) in
        [(imported, "import memory"), (PhysicalMemory::create(&host, GRANULE, foreign), "create memory")]
    {
        let advice = "Win32 handles exist only on Windows; export the memory as a file descriptor";
        assert_eq!(answer.unwrap_err().to_string(), format!("{operation}: not supported: {advice}"));
    }
}

#[test]
fn a_ring_has_a_thread_for_each_core_up_to_sixteen() {
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(StagingRing::<HostBackend>::threads(), cores.min(16));
}
