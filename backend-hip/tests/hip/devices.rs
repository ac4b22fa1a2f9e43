//! The owner of memory, and access by other devices.

use crate::rig::{ONE, Rig, ZERO, read, read_write, simulated_without};
use crate::{Needs, Test};
use gpu_vmm_core::multicast::Team;
use gpu_vmm_core::{
    Access, Backend, Bytes, CopyCalls, Detail, Error, Feature, MemoryCalls, Properties, Reservation,
    SyncCalls,
};
use gpu_vmm_testkit::TestKit;
use std::collections::HashSet;
use std::os::fd::AsFd;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "devices::what_they_say_of_themselves", needs: Needs::Device, run: described },
    Test { name: "devices::one_that_is_not_there", needs: Needs::Device, run: missing },
    Test { name: "devices::memory_is_of_the_device_that_was_asked", needs: Needs::TwoDevices, run: placed },
    Test { name: "devices::the_current_device_stays", needs: Needs::TwoDevices, run: current },
    Test { name: "devices::a_peer_is_given_access", needs: Needs::Peers, run: peer },
    Test {
        name: "devices::a_peer_is_given_imported_memory_and_not_its_neighbour",
        needs: Needs::Peers,
        run: peer_of_imports,
    },
    Test { name: "devices::memory_of_both_in_one_reservation", needs: Needs::TwoDevices, run: both },
    Test { name: "devices::capabilities_have_reasons", needs: Needs::Device, run: capabilities },
];

fn described(rig: &Rig) {
    for (ordinal, device) in rig.backend.devices().iter().enumerate() {
        assert_eq!(device.id.0 as usize, ordinal);
        assert!(!device.name.is_empty());
        assert!(device.granularity.bytes() >= Bytes::mib(2), "{device:?}");
        let info = rig.backend.memory_info(device.id).unwrap();
        assert_eq!(info.total, device.total_memory);
        assert!(info.free <= info.total);
    }
    let numbers: HashSet<_> = rig.backend.devices().iter().filter_map(|device| device.uuid).collect();
    let expected = if simulated_without("UUIDS") { 0 } else { rig.backend.devices().len() };
    assert_eq!(numbers.len(), expected, "each has its own UUID");
    let driver = rig.backend.driver();
    assert!(driver.version_number >= 60_100_000 && driver.library.contains("amdhip64"), "{driver:?}");
}

fn missing(rig: &Rig) {
    let count = rig.backend.devices().len() as u32;
    let device = gpu_vmm_core::DeviceId(count);
    for error in [
        rig.backend.memory_info(device).expect_err("none"),
        rig.backend.can_access(device, ZERO).expect_err("none"),
        rig.backend.can_access(ZERO, device).expect_err("none"),
        rig.backend.capabilities(device).expect_err("none"),
        rig.backend.synchronize(device).expect_err("none"),
    ] {
        assert!(matches!(error.detail(), Detail::NoSuchDevice { count: c, .. } if *c == count), "{error:?}");
    }
}

fn placed(rig: &Rig) {
    assert_eq!(rig.hip("hipSetDevice", 0), 0);
    for (device, other) in [(ONE, ZERO), (ZERO, ONE)] {
        let (mine, theirs) = (rig.free(device), rig.free(other));
        let mut reservation = rig.mapped(device, rig.units(4));
        assert_eq!(mine - rig.free(device), rig.units(4), "taken from {device}");
        assert_eq!(theirs, rig.free(other), "not from {other}");
        rig.works(device, &reservation, Bytes::ZERO, rig.units(4), 1);
        // SAFETY: one whole mapping, no longer used.
        unsafe { reservation.unmap(Bytes::ZERO, rig.units(4)) }.unwrap();
        rig.returned(&mut reservation);
        assert_eq!(mine, rig.free(device));
    }
}

fn current(rig: &Rig) {
    for ordinal in [0, 1] {
        assert_eq!(rig.hip("hipSetDevice", ordinal), 0);
        for device in [ZERO, ONE] {
            let mut reservation = rig.mapped(device, rig.unit());
            rig.works(device, &reservation, Bytes::ZERO, rig.unit(), 1);
            // SAFETY: one whole mapping, no longer used.
            unsafe { reservation.unmap(Bytes::ZERO, rig.unit()) }.unwrap();
            // SAFETY: larger than any device.
            let error = unsafe { rig.backend.create(Bytes::gib(1 << 16), &Properties::on(device)) };
            assert!(error.expect_err("64 TiB").is_out_of_memory());
            rig.backend.synchronize(device).unwrap();
            let properties = Properties::on(device).shareable();
            // SAFETY: a unit; the imported memory was exported here.
            unsafe {
                let handle = rig.backend.create(rig.unit(), &properties).unwrap();
                let fd = gpu_vmm_core::Handle::export(&handle).unwrap();
                drop(rig.backend.import(fd.as_fd(), rig.unit(), &properties).unwrap());
                rig.counts_import();
            }
        }
        assert_eq!(rig.current_device(), ordinal as i32);
    }
    assert_eq!(rig.hip("hipSetDevice", 0), 0);
}

fn peer(rig: &Rig) {
    assert!(rig.backend.can_access(ONE, ONE).unwrap());
    let size = rig.units(3);
    let mut reservation = rig.mapped(ZERO, size);
    let base = reservation.range().base;
    rig.writes_all(ZERO, &reservation, Bytes::ZERO, size, 77);
    // SAFETY: all of it is mapped; the peer writes only after it got write access.
    unsafe {
        assert_eq!(reservation.access(Bytes::ZERO, ONE).unwrap(), Access::None);
        reservation.set_access(Bytes::ZERO, size, &[read(ONE)]).unwrap();
        assert_eq!(reservation.access(Bytes::ZERO, ONE).unwrap(), Access::Read);
        assert_eq!(
            reservation.access(Bytes::ZERO, ZERO).unwrap(),
            Access::ReadWrite,
            "the owner keeps its access"
        );
        reservation.set_access(Bytes::ZERO, size, &[read_write(ZERO), read_write(ONE)]).unwrap();
        assert_eq!(reservation.access(Bytes::ZERO, ONE).unwrap(), Access::ReadWrite);
        // The peer copies to its own memory.
        let mut theirs = rig.mapped(ONE, size);
        rig.backend.copy(ONE, theirs.range().base, base, size).unwrap();
        rig.backend.copy(ONE, theirs.range().base, base, Bytes::ZERO).unwrap();
        assert_eq!(rig.backend.count_wrong(ONE, theirs.range().base, size, 77).unwrap(), 0);
        theirs.unmap(Bytes::ZERO, size).unwrap();
        reservation.unmap(Bytes::ZERO, size).unwrap();
    }
}

/// An import belongs to its exporter's device: that device is the owner, whose access is set last, and the other one is
/// the peer.
fn peer_of_imports(rig: &Rig) {
    let properties = Properties::on(ONE).shareable();
    let unit = rig.unit();
    let mut reservation = rig.reserve(rig.units(2));
    // SAFETY: two adjacent imports of memory that was exported here; no work uses them when they are unmapped.
    unsafe {
        for place in 0..2 {
            let fd = gpu_vmm_core::Handle::export(&rig.backend.create(unit, &properties).unwrap()).unwrap();
            let imported = rig.backend.import(fd.as_fd(), unit, &properties).unwrap();
            rig.counts_import();
            reservation.map(rig.units(place), &imported).unwrap();
        }
        reservation.set_access(Bytes::ZERO, rig.units(2), &[read_write(ONE)]).unwrap();
        rig.writes_all(ONE, &reservation, Bytes::ZERO, rig.units(2), 91);
        reservation.set_access(Bytes::ZERO, unit, &[read(ZERO)]).unwrap();
        let rights = |reservation: &gpu_vmm_hip::HipReservation| {
            [(0, ZERO), (0, ONE), (1, ZERO), (1, ONE)]
                .map(|(place, device)| reservation.access(rig.units(place), device).unwrap())
        };
        use Access::{None, Read, ReadWrite};
        assert_eq!(rights(&reservation), [Read, ReadWrite, None, ReadWrite]);
        assert_eq!(rig.backend.count_wrong(ZERO, reservation.range().base, unit, 91).unwrap(), 0);
        reservation.set_access(unit, unit, &[read_write(ONE), read_write(ZERO)]).unwrap();
        assert_eq!(rights(&reservation), [Read, ReadWrite, ReadWrite, ReadWrite]);
        rig.works(ZERO, &reservation, unit, unit, 92);
        reservation.unmap(Bytes::ZERO, unit).unwrap();
        reservation.unmap(unit, unit).unwrap();
    }
}

fn both(rig: &Rig) {
    let mut reservation = rig.reserve(rig.units(6));
    let mappings = [(ZERO, 0, 1), (ONE, 1, 3), (ZERO, 4, 2)];
    let reach = rig.lacks(Needs::Peers).is_none();
    // SAFETY: the handles are adjacent in an empty reservation.
    unsafe {
        for (device, place, count) in mappings {
            let handle = rig.create(device, rig.units(count));
            reservation.map(rig.units(place), &handle).unwrap();
            reservation.set_access(rig.units(place), rig.units(count), &[read_write(device)]).unwrap();
            rig.works(device, &reservation, rig.units(place), rig.units(count), place);
        }
        if reach {
            reservation.set_access(Bytes::ZERO, rig.units(6), &[read_write(ZERO), read_write(ONE)]).unwrap();
            for (_, place, _) in mappings {
                for device in [ZERO, ONE] {
                    assert_eq!(reservation.access(rig.units(place), device).unwrap(), Access::ReadWrite);
                }
            }
        }
        for (_, place, count) in mappings {
            reservation.unmap(rig.units(place), rig.units(count)).unwrap();
        }
    }
}

fn capabilities(rig: &Rig) {
    let all = rig.backend.capabilities(ZERO).unwrap();
    for capability in &all {
        eprintln!(
            "{:>18}: {:5} ({}) {}",
            capability.feature, capability.available, capability.found_by, capability.note
        );
        assert!(capability.available || !capability.note.is_empty(), "{capability:?}");
    }
    let has = |feature| all.iter().find(|one| one.feature == feature).expect("listed").available;
    assert!(has(Feature::VirtualMemory) && has(Feature::FixedAddress) && has(Feature::ReadOnlyAccess));
    assert!(!has(Feature::Multicast) && !has(Feature::FabricHandle));
    let team = Team::builder(&rig.backend).size(Bytes::mib(2)).device(ZERO).create();
    let Err(Detail::Unsupported { reason, .. }) = team.as_ref().map_err(Error::detail) else {
        panic!("{team:?}")
    };
    assert!(all.iter().any(|one| one.feature == Feature::Multicast && one.note == *reason), "{reason}");
    if rig.lacks(Needs::TwoDevices).is_some() {
        assert!(!has(Feature::PeerAccess));
    }
}
