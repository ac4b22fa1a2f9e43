//! Memory of several devices, and devices that do not exist.

use crate::rig::{Must, ONE, Rig, UNIT, ZERO, found, units};
use gpu_vmm_core::{
    Access, Alignment, Backend, Bytes, CopyCalls, Detail, DeviceId, Feature, Grant, MemoryCalls, Operation,
    Properties, Reservation, SyncCalls,
};
use gpu_vmm_test_settings::cases;

cases! {
    each_part_of_copy_is_checked;
    peer_is_added_beside_owners_work;
    single_device_has_no_peers [DEVICES = "1"];
    missing_device_is_refused;
    little_memory_shows_virtual_memory;
}

/// Device 0 reads memory of device 1, which has access to the first part only. HIP 6 would have device 1 do it.
fn each_part_of_copy_is_checked(rig: &mut Rig) {
    let mut from = rig.region(3).on(ONE).build().must("addresses");
    from.map(Bytes::ZERO, &rig.memory(ONE, 2)).must("mapped");
    from.map(units(2), &rig.memory(ONE, 1)).must("mapped");
    from.set_access(Bytes::ZERO, units(2), ONE, Access::Read).must("access of the first part");
    from.set_access(Bytes::ZERO, units(3), ZERO, Access::Read).must("the peer's access");
    let mut to = rig.region(4).build().must("addresses");
    to.grow_to(units(4)).must("growth");
    // SAFETY: all of it is mapped; device 0 may read the one and owns the other.
    let copied = unsafe { rig.backend.copy(ZERO, to.address(), from.address(), units(3)) };
    if rig.has("copy-by-source") {
        let error = copied.expect_err("the owner has no access to the last part");
        let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
        let (version, at) = (rig.backend.driver().version, from.address() + units(2));
        let expected = format!(
            "HIP {version} copies memory at {at} with its owner device 1, which has no access there, and not with \
             device 0"
        );
        assert_eq!(*reason, expected);
    } else {
        copied.must("copied");
    }
}

/// Versions that need it take the owner's access away for a moment, and so wait for its work first.
fn peer_is_added_beside_owners_work(rig: &mut Rig) {
    let alignment = Alignment::new(units(1)).expect("a power of two");
    let both = [ZERO, ONE].map(|device| Grant { device, access: Access::ReadWrite });
    // SAFETY: memory that fits the empty reservation. Device 0 works on it only while it has access.
    unsafe {
        let mut reservation = rig.backend.reserve(units(1), alignment, None).must("addresses");
        let handle = rig.backend.create(units(1), &Properties::on(ZERO)).must("memory");
        reservation.map(Bytes::ZERO, &handle).must("mapped");
        reservation.set_access(Bytes::ZERO, units(1), &both[..1]).must("the owner's access");
        let at = reservation.range().base;
        rig.hip("hipMemset", [at.0 as usize, 7, UNIT]);
        reservation.set_access(Bytes::ZERO, units(1), &both[1..]).must("the peer's access");
        let mut bytes = [0; 3];
        rig.backend.copy_to_host(ZERO, &mut bytes, at).must("read");
        assert_eq!(bytes, [7; 3]);
        reservation.unmap(Bytes::ZERO, units(1)).must("unmapped");
    }
}

fn missing_device_is_refused(rig: &mut Rig) {
    let none = DeviceId(2);
    let properties = Properties::on(none);
    let backend = &rig.backend;
    let answers = [
        (backend.memory_info(none).map(drop), Operation::QueryMemory),
        (backend.can_access(none, ZERO).map(drop), Operation::QueryPeerAccess),
        (backend.can_access(ZERO, none).map(drop), Operation::QueryPeerAccess),
        (backend.capabilities(none).map(drop), Operation::QueryCapabilities),
        // SAFETY: a whole unit.
        (unsafe { backend.create(units(1), &properties) }.map(drop), Operation::CreateMemory),
        (backend.granularity_of(Operation::Grow, &properties).map(drop), Operation::Grow),
        (backend.check_host_access(Operation::SetAccess, &properties), Operation::SetAccess),
        (backend.copy_stream(none).map(drop), Operation::CreateStream),
        (backend.event(none).map(drop), Operation::CreateEvent),
        (backend.synchronize(none), Operation::WaitForDevice),
    ];
    for (answer, operation) in answers {
        let error = answer.expect_err("there is no such device");
        assert_eq!(error.operation(), operation);
        let Detail::NoSuchDevice { device, count, .. } = error.detail() else { panic!("{error}") };
        assert_eq!((*device, *count), (none, 2), "{operation}");
    }
}

/// A device alone has no peers, which is not the same as peers that it cannot reach.
fn single_device_has_no_peers(rig: &mut Rig) {
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let peers = found(&all, Feature::PeerAccess);
    assert!(!peers.available && peers.note == "there is no other device", "{}", peers.note);
}

/// The trial takes less memory there. Some versions keep the memory of each trial.
fn little_memory_shows_virtual_memory(rig: &mut Rig) {
    let free = rig.backend.memory_info(ZERO).must("amounts").free;
    let taken = rig.memory(ZERO, free.0 / UNIT as u64 - 16);
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let virtual_memory = found(&all, Feature::VirtualMemory);
    assert!(virtual_memory.available, "{}", virtual_memory.note);
    drop(taken);
}
