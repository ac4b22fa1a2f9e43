//! The current device, imported memory of a peer, and the reasons of capabilities.

use crate::rig::{ONE, Rig, ZERO, read, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::multicast::Team;
use gpu_vmm_core::{
    Access, Backend, Bytes, ComputeMode, Detail, Error, Feature, MemoryCalls, Properties, Reservation,
    SyncCalls,
};
use gpu_vmm_testkit::TestKit;
use std::os::fd::AsFd;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "devices::the_current_device_stays", needs: Needs::TwoDevices, run: current },
    Test {
        name: "devices::peer_gets_import_without_its_neighbor",
        needs: Needs::Peers,
        run: peer_of_imports,
    },
    Test { name: "devices::capabilities_have_reasons", needs: Needs::Device, run: capabilities },
];

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

fn capabilities(rig: &Rig) {
    let all = rig.backend.capabilities(ZERO).unwrap();
    for capability in &all {
        eprintln!(
            "{:>18}: {:5} ({}) {}",
            capability.feature, capability.available, capability.found_by, capability.note
        );
        assert!(capability.available || !capability.note.is_empty(), "{capability:?}");
    }
    assert_eq!(rig.backend.devices()[0].compute_mode, Some(ComputeMode::Default), "HIP has no other");
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
