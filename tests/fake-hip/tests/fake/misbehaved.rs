//! Drivers of which a call misbehaves in a way that no known version does.

use crate::flow::check;
use crate::rig::{Must, ONE, Rig, UNEQUAL, ZERO, units};
use gpu_vmm_core::{
    Access, Address, Alignment, Backend, Bytes, CopyCalls, Detail, Feature, Grant, MemoryCalls, Operation,
    PhysicalMemory, Placement, Properties, Reservation, SyncCalls,
};
use gpu_vmm_test_settings::cases;

cases! {
    unset_access_of_second_mapping_is_noticed [SETS_ACCESS_OF = "1"];
    failed_release_is_recorded [FAILS = "hipMemRelease"];
    refused_access_denies_virtual_memory [FAILS = "hipMemSetAccess"];
    each_range_is_freed_despite_failures [FAILS = "hipMemAddressFree"];
    unknown_agent_leaves_nothing [FAILS = "hsa_amd_pointer_info"];
    failed_waits_are_reported [FAILS = "hipFree,hipDeviceSynchronize"];
    ignored_hints_are_reported [TAKES_HINTS = "0"];
    wider_access_is_an_error [SETS_WRITE = "1"];
    small_loss_is_no_leak [LOSES_MEMORY = "1"];
    device_of_unknown_granularity_is_unusable [FAILS = "hipMemGetAllocationGranularity"];
    failed_ends_are_recorded [FAILS = "hipHostFree,hipStreamDestroy"];
    short_memory_without_numbers [FAILS = "hipMemGetInfo"];
    device_without_uuid_has_none [FAILS = "hipDeviceGetUuid"];
    device_of_unknown_attributes_is_unusable [FAILS = "hipDeviceGetAttribute"];
    failed_peer_query_is_an_error [FAILS = "hipDeviceCanAccessPeer"];
}

/// The backend reads the access of the last mapping of a call back as well as the first one's.
fn unset_access_of_second_mapping_is_noticed(rig: &mut Rig) {
    let alignment = Alignment::new(units(1)).expect("a power of two");
    let both = Grant { device: ZERO, access: Access::ReadWrite };
    // SAFETY: whole units; each memory fits the empty reservation behind the other, and no device uses it.
    unsafe {
        let mut reservation = rig.backend.reserve(units(2), alignment, None).must("addresses");
        for place in [0, 1] {
            let handle = rig.backend.create(units(1), &Properties::on(ZERO)).must("memory");
            reservation.map(units(place), &handle).must("mapped");
        }
        reservation.set_access(Bytes::ZERO, units(1), &[both]).must("the first mapping's access");
        let answer = reservation.set_access(Bytes::ZERO, units(2), &[both]);
        let error = answer.expect_err("the second mapping has no access");
        assert!(matches!(error.detail(), Detail::DriverContractViolated { .. }), "{error}");
        assert!(error.to_string().contains(&(units(2) - Bytes(1)).to_string()), "{error}");
        for place in [0, 1] {
            reservation.unmap(units(place), units(1)).must("unmapped");
        }
    }
}

/// A destructor cannot return the error of its call, so the backend keeps it.
fn failed_release_is_recorded(rig: &mut Rig) {
    let before = rig.backend.drop_log().count();
    drop(PhysicalMemory::create(&rig.backend, units(1), Properties::on(ZERO)).must("memory"));
    assert_eq!(rig.backend.drop_log().count(), before + 1, "the failed release is not recorded");
    let error = rig.backend.drop_log().take_last().expect("it is the last one");
    assert!(error.to_string().contains("hipMemRelease"), "{error}");
    assert_eq!(error.driver_error().map(|source| source.code), Some(999), "{error}");
}

fn refused_access_denies_virtual_memory(rig: &mut Rig) {
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let found = all.iter().find(|one| one.feature == Feature::VirtualMemory).expect("it is reported");
    assert!(!found.available && found.note.contains("hipMemSetAccess"), "{}", found.note);
}

/// A range whose free fails is not freed again, and the others are freed.
fn each_range_is_freed_despite_failures(rig: &mut Rig) {
    drop([1, 2, 3].map(|count| rig.region(count).build().must("addresses")));
    let released = rig.backend.release_kept_addresses();
    let error = match released {
        Err(error) if rig.has("free-races") => error,
        answer => {
            assert_eq!(answer.must("nothing is kept"), 0);
            rig.backend.drop_log().take_last().expect("the destructor's error")
        }
    };
    assert!(error.to_string().contains("hipMemAddressFree"), "{error}");
    assert_eq!(rig.counts().others[0], 0, "reservations are left");
}

/// The allocation by which the agent of a device is found is freed also if it is not found. The first call that needs the agent
/// fails.
fn unknown_agent_leaves_nothing(rig: &mut Rig) {
    let mut region = rig.unequal_region();
    let mut mappings = UNEQUAL.into_iter();
    let answer = mappings
        .try_for_each(|(offset, size)| region.set_access(units(offset), units(size), ONE, Access::Read));
    if let Err(error) = answer {
        assert!(error.to_string().contains("hsa_amd_pointer_info"), "{error}");
        assert!(rig.has("access-sums"), "this version needs no agent");
    } else {
        assert!(!rig.has("access-sums"), "no agent was asked for");
    }
}

/// A wait that fails is no wait, whichever call waits.
fn failed_waits_are_reported(rig: &mut Rig) {
    for device in [ZERO, ONE] {
        let error = rig.backend.synchronize(device).expect_err("nothing has waited");
        assert_eq!(error.driver_error().map(|source| source.call), Some("hipDeviceSynchronize"), "{error}");
    }
    // The checks at the end of a case would wait too.
    std::process::exit(0);
}

fn ignored_hints_are_reported(rig: &mut Rig) {
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let fixed = all.iter().find(|one| one.feature == Feature::FixedAddress).expect("it is reported");
    assert!(!fixed.available, "{}", fixed.note);
    // Below the addresses that this driver chooses.
    let (hint, given) = fixed.note.split_once(" was requested and ").expect(&fixed.note);
    let given = given.strip_suffix(" returned").expect(&fixed.note);
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
    assert!(number(hint) < number(given), "{}", fixed.note);
    let free = rig.region(2).build().must("addresses").address();
    let far = Address(free.0 - Bytes::gib(64).0);
    let exact = rig.region(2).at(Placement::Exact(far)).build();
    assert!(exact.is_err(), "another address than the requested one is taken");
    let mut near = rig.region(2).at(Placement::Prefer(far)).build().must("any addresses");
    near.grow_to(units(2)).must("growth");
    check(&mut near, ZERO, Bytes::ZERO, units(2), 5);
}

/// More access than was set is an error, as less is.
fn wider_access_is_an_error(rig: &mut Rig) {
    let mut region = rig.region(1).build().must("addresses");
    region.grow_to(units(1)).must("growth");
    // The owner's access, which some versions must lose before a peer gets any, comes back after the failure.
    fails!(region.set_access(Bytes::ZERO, units(1), ONE, Access::Read), DriverContractViolated);
    check(&mut region, ZERO, Bytes::ZERO, units(1), 3);
    fails!(region.set_access(Bytes::ZERO, units(1), ZERO, Access::Read), DriverContractViolated);
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let found = all.iter().find(|one| one.feature == Feature::ReadOnlyAccess).expect("it is reported");
    assert!(!found.available, "{found:?}");
    assert!(found.note.ends_with("device 0 has read and write instead of read"), "{}", found.note);
}

/// The trial compares free memory before and after.
fn small_loss_is_no_leak(rig: &mut Rig) {
    let keeps = rig.has("release-frees-nothing") || rig.has("memory-stays-until-free");
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let found = all.iter().find(|one| one.feature == Feature::VirtualMemory).expect("it is reported");
    assert_eq!(found.note.contains("NOT"), keeps, "{}", found.note);
    let free = || rig.backend.memory_info(ZERO).must("amounts").free;
    assert!(free() > free(), "each answer is lower than the one before");
}

/// No call uses the device, and no capability of it is tried.
fn device_of_unknown_granularity_is_unusable(rig: &mut Rig) {
    let reason = rig.backend.devices()[0].unusable.clone().expect("a reason");
    assert!(reason.contains("hipMemGetAllocationGranularity"), "{reason}");
    fails!(PhysicalMemory::create(&rig.backend, units(1), Properties::on(ZERO)), Unsupported);
    let found = rig.backend.capabilities(ZERO).must("capabilities");
    assert!(matches!(&*found, [only] if !only.available && only.note == reason), "{found:?}");
}

/// The objects are gone all the same: this driver fails after it has done the work.
fn failed_ends_are_recorded(rig: &mut Rig) {
    let last = |call: &str| {
        let error = rig.backend.drop_log().take_last().expect("the failure is recorded");
        assert!(error.to_string().contains(call), "{error}");
    };
    drop(rig.backend.pin(units(1)).must("pinned"));
    last("hipHostFree");
    drop(rig.backend.copy_stream(ZERO).must("a copy stream"));
    last("hipStreamDestroy");
}

/// The error is HIP's own then, with the reason why the numbers are missing.
fn short_memory_without_numbers(rig: &mut Rig) {
    let _held = rig.memory(ONE, 200);
    let error = PhysicalMemory::create(&rig.backend, units(100), Properties::on(ONE)).expect_err("no more");
    let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
    assert_eq!((source.call, error.is_out_of_memory()), ("hipMemCreate", false), "{error}");
    let unknown = context.strip_prefix("200 MiB on device 1; the free memory is unknown: ");
    assert!(unknown.is_some_and(|why| why.contains("hipMemGetInfo")), "{context}");
}

fn device_without_uuid_has_none(rig: &mut Rig) {
    for device in rig.backend.devices() {
        assert_eq!((device.uuid, device.unusable.as_ref()), (None, None));
    }
    rig.region(1).build().must("addresses").grow_to(units(1)).must("growth");
}

/// Whether such a device has virtual memory management is not known.
fn device_of_unknown_attributes_is_unusable(rig: &mut Rig) {
    for device in rig.backend.devices() {
        let reason = device.unusable.as_deref().expect("a reason");
        assert!(reason.contains("hipDeviceGetAttribute") && reason.contains("(999)"), "{reason}");
        assert_eq!((device.no_virtual_memory.as_ref(), device.granularity.bytes()), (None, units(1)));
    }
    fails!(PhysicalMemory::create(&rig.backend, units(1), Properties::on(ONE)), Unsupported);
}

fn failed_peer_query_is_an_error(rig: &mut Rig) {
    let error = rig.backend.can_access(ONE, ZERO).expect_err("no answer");
    let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
    let expected = (Operation::QueryPeerAccess, "hipDeviceCanAccessPeer", "device 1 to device 0");
    assert_eq!((error.operation(), source.call, &**context), expected);
    // HIP is not asked whether a device can reach itself.
    assert!(rig.backend.can_access(ONE, ONE).must("its own memory"));
}
