//! Memory, addresses, mappings and access.
#![allow(unsafe_code)]

use crate::support::*;
use gpu_vmm_core::{
    Access, Alignment, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, Feature, Handle, MemoryCalls,
    Operation, Properties, Reservation, SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use std::collections::HashSet;

pub(crate) fn devices_are_described(backend: &CudaBackend) {
    let driver = backend.driver();
    println!("driver of CUDA {} ({}), {}", driver.version, driver.version_number, driver.library);
    assert!(driver.version_number >= 11_040 && CudaBackend::is_loaded());
    for (ordinal, device) in backend.devices().iter().enumerate() {
        println!("{device:?}");
        assert_eq!(device.id, DeviceId(ordinal as u32));
        assert!(!device.name.is_empty() && device.total_memory > Bytes::gib(1));
        let info = backend.memory_info(device.id).unwrap();
        assert!(info.free <= info.total && !info.free.is_zero(), "{info:?}");
        assert!(backend.can_access(device.id, device.id).unwrap());
    }
    let none = DeviceId(backend.devices().len() as u32);
    assert!(matches!(
        backend.memory_info(none).as_ref().map_err(Error::detail),
        Err(Detail::NoSuchDevice { .. })
    ));
    assert!(matches!(
        backend.capabilities(none).as_ref().map_err(Error::detail),
        Err(Detail::NoSuchDevice { .. })
    ));
    assert!(matches!(
        backend.can_access(DEVICE, none).as_ref().map_err(Error::detail),
        Err(Detail::NoSuchDevice { .. })
    ));
    assert!(matches!(
        backend.synchronize(none).as_ref().map_err(Error::detail),
        Err(Detail::NoSuchDevice { .. })
    ));
    assert!(!backend.quirks().is_empty());
    assert_eq!(CudaBackend::open().unwrap().instance(), backend.instance());
}

pub(crate) fn capabilities_are_found_out_and_leave_nothing(backend: &CudaBackend) {
    // The driver keeps some memory after the first use of anything.
    a_whole_cycle(backend);
    let before = free(backend);
    for device in backend.devices() {
        let found = backend.capabilities(device.id).unwrap();
        for one in &found {
            let answer = if one.available { "yes" } else { "no" };
            println!("{}: {} {answer}, {}; {}", device.id, one.feature, one.found_by, one.note);
        }
        let features: HashSet<_> = found.iter().map(|one| one.feature).collect();
        assert_eq!(features.len(), found.len());
        for feature in [Feature::VirtualMemory, Feature::FixedAddress, Feature::ReadOnlyAccess] {
            assert!(found.iter().any(|one| one.feature == feature && one.available), "{feature}");
        }
        assert!(found.iter().all(|one| one.available || !one.note.is_empty()));
    }
    assert_eq!(free(backend), before);
}

pub(crate) fn a_whole_cycle(backend: &CudaBackend) {
    let granule = granules(backend, 1);
    let mut reservation = reserve(backend, granules(backend, 4), None);
    let (first, second) = (create(backend, granule), create(backend, granules(backend, 2)));
    map(&mut reservation, Bytes::ZERO, &first);
    map(&mut reservation, granule, &second);

    // Across the boundary of the two handles, at odd offsets.
    let text: Vec<u8> = (0..100_003u32).map(|n| (n * 7 % 251) as u8).collect();
    let place = at(&reservation, Bytes(granule.0 - 50_001));
    write(backend, place, &text);
    assert_eq!(read(backend, place, text.len()), text);

    let target = at(&reservation, granules(backend, 2));
    // SAFETY: both sides are mapped and do not overlap.
    unsafe { backend.copy(DEVICE, target, place, Bytes(text.len() as u64)) }.unwrap();
    assert_eq!(read(backend, target, text.len()), text);
    // SAFETY: the bytes are mapped.
    unsafe { backend.fill(DEVICE, target, Bytes(17), 0xA5) }.unwrap();
    let after = read(backend, target, 18);
    assert_eq!((&after[..17], after[17]), (&[0xA5; 17][..], text[17]));
    // SAFETY: no bytes are accessed.
    unsafe {
        backend.copy_from_host(DEVICE, target, &[]).unwrap();
        backend.copy_to_host(DEVICE, &mut [], target).unwrap();
        backend.copy(DEVICE, target, place, Bytes::ZERO).unwrap();
        backend.fill(DEVICE, target, Bytes::ZERO, 0).unwrap();
    }

    // One call unmaps both mappings. Then the handles are mapped in the other order: the bytes belong to the handle.
    unmap(&mut reservation, Bytes::ZERO, granules(backend, 3));
    map(&mut reservation, Bytes::ZERO, &second);
    assert_eq!(read(backend, at(&reservation, granule), 17), [0xA5; 17]);
    unmap(&mut reservation, Bytes::ZERO, second.size());
}

pub(crate) fn access_is_what_was_set(backend: &CudaBackend) {
    let granule = granules(backend, 1);
    let mut reservation = reserve(backend, granule, None);
    let handle = create(backend, granule);
    // SAFETY: nothing is mapped there.
    unsafe { reservation.map(Bytes::ZERO, &handle) }.unwrap();
    assert_eq!(access(&reservation, Bytes::ZERO), Access::None);
    for wanted in [Access::Read, Access::ReadWrite, Access::None, Access::ReadWrite, Access::Read] {
        set_access(&mut reservation, Bytes::ZERO, granule, &[grant(DEVICE, wanted)]);
        assert_eq!(access(&reservation, Bytes::ZERO), wanted);
    }
    set_access(&mut reservation, Bytes::ZERO, granule, &[]);
    assert_eq!(access(&reservation, Bytes::ZERO), Access::Read);
    // The driver itself refuses a copy to read-only memory, and stays usable.
    // SAFETY: the driver is known to check this.
    let refused = unsafe { backend.copy_from_host(DEVICE, at(&reservation, Bytes::ZERO), &[1]) }.unwrap_err();
    assert!(matches!(refused.detail(), Detail::Driver { .. }), "{refused}");
    println!("{refused}");
    assert_eq!(read(backend, at(&reservation, Bytes::ZERO), 1).len(), 1);
    unmap(&mut reservation, Bytes::ZERO, granule);
}

pub(crate) fn growth_in_unequal_steps_keeps_the_bytes(backend: &CudaBackend) {
    let mut reservation = reserve(backend, granules(backend, 128), None);
    let base = at(&reservation, Bytes::ZERO);
    let mut handles = Vec::new();
    let mut mapped = Bytes::ZERO;
    for (seed, step) in (1u64..).zip([1, 3, 2, 7, 1, 16, 5, 64, 29]) {
        let handle = create(backend, granules(backend, step));
        map(&mut reservation, mapped, &handle);
        assert_eq!(count_wrong(backend, DEVICE, base, mapped, seed - 1), 0, "after growing by {step}");
        mapped += handle.size();
        handles.push(handle);
        write_pattern(backend, DEVICE, base, mapped, seed);
        assert_eq!(count_wrong(backend, DEVICE, base, mapped, seed), 0);
    }
    assert_eq!(mapped, reservation.range().size);
    unmap(&mut reservation, Bytes::ZERO, mapped);
}

pub(crate) fn aliases_are_one_memory(backend: &CudaBackend) {
    let granule = granules(backend, 1);
    let mut reservation = reserve(backend, granules(backend, 2), None);
    let handle = create(backend, granule);
    map(&mut reservation, Bytes::ZERO, &handle);
    // SAFETY: nothing is mapped there.
    unsafe { reservation.map(granule, &handle) }.unwrap();
    assert_eq!(access(&reservation, granule), Access::None);
    set_access(&mut reservation, granule, granule, &[grant(DEVICE, Access::Read)]);
    assert_eq!(access(&reservation, Bytes::ZERO), Access::ReadWrite);

    write_pattern(backend, DEVICE, at(&reservation, Bytes::ZERO), granule, 7);
    assert_eq!(count_wrong(backend, DEVICE, at(&reservation, granule), granule, 7), 0);
    unmap(&mut reservation, Bytes::ZERO, granule);
    // The memory outlives its handle and its first mapping.
    drop(handle);
    assert_eq!(count_wrong(backend, DEVICE, at(&reservation, granule), granule, 7), 0);
    unmap(&mut reservation, granule, granule);
}

pub(crate) fn a_free_hint_is_honoured_and_a_taken_one_is_not(backend: &CudaBackend) {
    let size = granules(backend, 8);
    let wanted = reserve(backend, size, None).range().base;
    let exact = reserve(backend, size, Some(wanted));
    assert_eq!(exact.range().base, wanted);
    let moved = reserve(backend, size, Some(wanted));
    assert_ne!(moved.range().base, wanted);
    assert_eq!(moved.range().size, size);
}

pub(crate) fn alignment_is_honoured(backend: &CudaBackend) {
    for alignment in [Bytes::mib(2), Bytes::mib(64), Bytes::gib(1), Bytes::gib(64)] {
        let asked = Alignment::new(alignment).unwrap();
        // SAFETY: the size is a granule.
        let reservation = unsafe { backend.reserve(granules(backend, 1), asked, None) }.unwrap();
        assert!(reservation.range().base.is_aligned_to(alignment), "{reservation:?}");
    }
}

/// Breaks the contracts of the unsafe calls deliberately: the driver is known to return errors for these.
pub(crate) fn failed_calls_change_and_leak_nothing(backend: &CudaBackend) {
    let (granule, size) = (granules(backend, 1), granules(backend, 16));
    let rounds = |count: u32| {
        for _ in 0..count {
            let mut reservation = reserve(backend, granules(backend, 32), None);
            let (mapped, other) = (create(backend, size), create(backend, size));
            map(&mut reservation, Bytes::ZERO, &mapped);
            write(backend, at(&reservation, Bytes::ZERO), b"stays");
            // SAFETY: each of these is checked by the driver.
            let answers = unsafe {
                [
                    reservation.map(Bytes::ZERO, &other),
                    reservation.set_access(size, granule, &[grant(DEVICE, Access::Read)]),
                    reservation.set_access(Bytes::ZERO, granule, &[grant(DEVICE, Access::Read)]),
                    reservation.unmap(Bytes::ZERO, granule),
                    backend.create(Bytes(granule.0 + 1), &Properties::on(DEVICE)).map(drop),
                    backend.create(granule, &Properties::on(DeviceId(99))).map(drop),
                ]
            };
            for answer in answers {
                let error = answer.unwrap_err();
                assert!(
                    matches!(error.detail(), Detail::Driver { source, .. } if source.name.starts_with("CUDA_ERROR")),
                    "{error}"
                );
            }
            assert_eq!(access(&reservation, Bytes::ZERO), Access::ReadWrite);
            assert_eq!(read(backend, at(&reservation, Bytes::ZERO), 5), b"stays");
            unmap(&mut reservation, Bytes::ZERO, size);
        }
    };
    rounds(1);
    let before = free(backend);
    rounds(20);
    let lost = before - free(backend);
    assert!(lost < size, "{lost} are gone after 20 rounds with two handles of {size}");
}

/// gpu-vmm's own checks prevent this call; the driver's result is still worth knowing (quirk `map-past-the-end`).
pub(crate) fn a_map_past_the_end_can_be_undone(backend: &CudaBackend) {
    let size = granules(backend, 16);
    for size_of_all in [granules(backend, 32), Bytes::gib(64)] {
        let mut reservation = reserve(backend, size_of_all, None);
        let memory = create(backend, size);
        let offset = size_of_all - granules(backend, 8);
        // SAFETY: the driver is known to return an error, or to map addresses of its own arena.
        match unsafe { reservation.map(offset, &memory) } {
            Err(error) => println!("{size_of_all} at {}: {error}", reservation.range().base),
            Ok(()) => {
                println!("{size_of_all} at {}: mapped past the end", reservation.range().base);
                unmap(&mut reservation, offset, size);
            }
        }
    }
}

pub(crate) fn too_much_is_an_error_with_numbers(backend: &CudaBackend) {
    let device = backend.device(Operation::QueryDevice, DEVICE).unwrap();
    let all = device.granularity.round_up(device.total_memory).unwrap();
    // SAFETY: the size is a multiple of the granularity.
    let error = unsafe { backend.create(all, &Properties::on(DEVICE)) }.unwrap_err();
    println!("{error}");
    assert!(error.is_out_of_memory());
    let Detail::OutOfMemory { device, requested, free, total, source, .. } = error.detail() else {
        unreachable!()
    };
    assert_eq!((*device, *requested), (DEVICE, all));
    assert!(!free.is_zero() && free < total && *free < all);
    assert_eq!((source.call, source.code, &*source.name), ("cuMemCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"));
    // The device stays usable.
    a_whole_cycle(backend);
}

pub(crate) fn threads_may_do_all_of_it_at_once(backend: &CudaBackend) {
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            scope.spawn(move || {
                let size = granules(backend, 1 + thread % 3);
                for round in 0..20 {
                    let mut reservation = reserve(backend, size, None);
                    let handle = create(backend, size);
                    map(&mut reservation, Bytes::ZERO, &handle);
                    let (base, seed) = (at(&reservation, Bytes::ZERO), thread << 32 | round);
                    write_pattern(backend, DEVICE, base, size, seed);
                    assert_eq!(count_wrong(backend, DEVICE, base, size, seed), 0);
                    backend.synchronize(DEVICE).unwrap();
                    unmap(&mut reservation, Bytes::ZERO, size);
                }
            });
        }
    });
}

pub(crate) fn peers_read_and_write_what_they_may(backend: &CudaBackend) {
    let peer = DeviceId(1);
    if !backend.can_access(peer, DEVICE).unwrap() {
        println!("{peer} cannot reach {DEVICE}: nothing to see");
        return;
    }
    let size = granules(backend, 8);
    let mut reservation = reserve(backend, size, None);
    let handle = create(backend, size);
    map(&mut reservation, Bytes::ZERO, &handle);
    let base = at(&reservation, Bytes::ZERO);
    write_pattern(backend, DEVICE, base, size, 3);

    set_access(&mut reservation, Bytes::ZERO, size, &[grant(peer, Access::Read)]);
    // SAFETY: memory is mapped there.
    assert_eq!(unsafe { reservation.access(Bytes::ZERO, peer) }.unwrap(), Access::Read);
    assert_eq!(
        access(&reservation, Bytes::ZERO),
        Access::ReadWrite,
        "a device that was not named keeps its access"
    );
    assert_eq!(count_wrong(backend, peer, base, size, 3), 0);

    let both = [grant(DEVICE, Access::Read), grant(peer, Access::ReadWrite)];
    set_access(&mut reservation, Bytes::ZERO, size, &both);
    write_pattern(backend, peer, base, size, 4);
    assert_eq!(count_wrong(backend, DEVICE, base, size, 4), 0);

    // From the peer's memory to a device's own.
    let mut own = reserve(backend, size, None);
    let memory = create_with(backend, size, Properties::on(peer));
    // SAFETY: nothing is mapped there.
    unsafe { own.map(Bytes::ZERO, &memory) }.unwrap();
    set_access(&mut own, Bytes::ZERO, size, &[grant(peer, Access::ReadWrite)]);
    // SAFETY: both sides are mapped and do not overlap; the peer has access to both.
    unsafe { backend.copy(peer, own.range().base, base, size) }.unwrap();
    assert_eq!(count_wrong(backend, peer, own.range().base, size, 4), 0);
    unmap(&mut own, Bytes::ZERO, size);
    unmap(&mut reservation, Bytes::ZERO, size);
}
