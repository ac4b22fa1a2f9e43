//! Errors that are detected before any driver call: after each of these, no violation was counted and nothing is left.

use super::{
    BOTH, CudaBackend, GRANULE, ONE, SIZE, TWO, UNIT, both, bound, check_nothing_is_left, memory, open,
};
use crate::rig::Cuda;
use gpu_vmm_core::multicast::{MulticastBackend, Team};
use gpu_vmm_core::{
    Backend, Bytes, Capability, Detail, DeviceId, Error, Evidence, Feature, HandleTypes, Location, Operation,
    PhysicalMemory, Placement, Properties,
};
use gpu_vmm_test_settings::cases;

cases! {
    a_team_that_cannot_be_is_refused;
    a_binding_that_cannot_be_is_refused;
    what_can_be_exported_takes_shareable_memory;
    all_devices_of_a_team_are_named [GPUS = "3"];
    an_object_is_exported_as_requested;
    map_needs_bindings_of_each_device;
    what_was_not_bound_is_not_unbound;
    the_capability_is_the_drivers_word;
    a_device_without_it_says_so [MULTICAST = "0"];
    a_device_that_does_not_tell [FAIL = "cuDeviceGetAttribute:7+:999"];
    a_driver_without_the_functions_says_so [VERSION = "12.0"] => a_driver_without_says_so;
    and_so_does_the_oldest [VERSION = "11.4"] => a_driver_without_says_so;
}

macro_rules! refused {
    ($answer:expr, $kind:pat $(, $part:expr)*) => {
        let error = Error::from($answer.unwrap_err());
        assert!(matches!(error.detail(), $kind), "{error:?}");
        $(assert!(error.to_string().contains($part), "{:?} is not in {error}", $part);)*
    };
}

fn a_team_that_cannot_be_is_refused(cuda: &Cuda) {
    let backend = open(cuda);
    let builder = || Team::builder(&backend).size(SIZE);
    refused!(builder().create(), Detail::BadTeam { .. }, "add at least one");
    refused!(builder().elsewhere(2).create(), Detail::BadTeam { .. }, "no device of this process");
    refused!(both(&backend).device(TWO).create(), Detail::BadTeam { .. }, "device 1 is in the team twice");
    refused!(
        both(&backend).elsewhere(u32::MAX).create(),
        Detail::BadTeam { .. },
        "2 devices here and 4294967295 elsewhere are too many"
    );
    refused!(builder().device(DeviceId(2)).create(), Detail::NoSuchDevice { .. });
    refused!(builder().device(DeviceId::HOST).create(), Detail::Unsupported { .. });
    refused!(both(&backend).size(Bytes::ZERO).create(), Detail::ZeroSize);
    refused!(both(&backend).size(Bytes::gib(5)).create(), Detail::ExceedsDevice { .. });
    refused!(both(&backend).size(Bytes(u64::MAX)).granularity(), Detail::ExceedsDevice { .. });
    let error = both(&backend).size(Bytes::ZERO).granularity().unwrap_err();
    assert_eq!(error.operation(), Operation::QueryMulticast);
    // All of a device's memory is not too much.
    let total = backend.device(Operation::QueryDevice, ONE).unwrap().total_memory;
    both(&backend).size(total).granularity().unwrap();
    check_nothing_is_left(cuda, &backend);
}

fn a_binding_that_cannot_be_is_refused(cuda: &Cuda) {
    let backend = open(cuda);
    let mut object = Team::builder(&backend).size(SIZE).device(ONE).create().unwrap().complete();
    let own = memory(&backend, ONE);
    refused!(
        object.bind(Bytes::ZERO, &memory(&backend, TWO), Bytes::ZERO, SIZE),
        Detail::NotInTeam { .. },
        "device 1 is not in the team; the devices of this process in it are: device 0"
    );
    let located = Properties::on(ONE).located(Location::Host);
    let of_the_host = PhysicalMemory::create(&backend, SIZE, located).unwrap();
    refused!(
        object.bind(Bytes::ZERO, &of_the_host, Bytes::ZERO, SIZE),
        Detail::Unsupported { .. },
        "this is memory of the host"
    );
    drop(of_the_host);
    for (offset, from, length, what) in [
        (GRANULE, Bytes::ZERO, UNIT, "offset 0x200000"),
        (Bytes::ZERO, GRANULE, UNIT, "offset in the memory 0x200000"),
        (Bytes::ZERO, Bytes::ZERO, GRANULE, "length 0x200000"),
    ] {
        refused!(object.bind(offset, &own, from, length), Detail::Unaligned { .. }, what);
    }
    refused!(object.bind(Bytes::ZERO, &own, Bytes::ZERO, Bytes::ZERO), Detail::ZeroSize);
    let last = Bytes(u64::MAX - UNIT.0 + 1);
    refused!(object.bind(last, &own, Bytes::ZERO, UNIT), Detail::Overflow { .. });
    refused!(object.bind(Bytes::ZERO, &own, last, UNIT), Detail::Overflow { .. });
    refused!(object.bind(SIZE, &own, Bytes::ZERO, UNIT), Detail::OutOfRange { .. });
    refused!(object.bind(Bytes::ZERO, &own, SIZE, UNIT), Detail::OutOfRange { .. });
    refused!(object.bind(UNIT, &own, Bytes::ZERO, SIZE), Detail::OutOfRange { .. });
    assert_eq!(object.bindings().count(), 0);
    // Between two bound ranges there is space for one, and no more.
    let at = |units: u64| Bytes(units * UNIT.0);
    object.bind(at(0), &own, at(0), at(2)).unwrap();
    object.bind(at(4), &own, at(4), at(2)).unwrap();
    for (first, count) in [(0, 1), (1, 1), (1, 2), (3, 2), (5, 1), (0, 16), (3, 13)] {
        refused!(
            object.bind(at(first), &own, at(0), at(count)),
            Detail::AlreadyBound { .. },
            "unbind that one first"
        );
    }
    let error = object.bind(at(1), &own, at(0), at(2)).unwrap_err();
    let Detail::AlreadyBound { device, range, binding } = error.detail() else { panic!("{error}") };
    assert_eq!((*device, range.offset, binding.offset, binding.length), (ONE, at(1), at(0), at(2)));
    object.bind(at(2), &own, at(0), at(2)).unwrap();
    assert_eq!(object.bindings().count(), 3);
    drop((object, own));
    check_nothing_is_left(cuda, &backend);
}

fn what_can_be_exported_takes_shareable_memory(cuda: &Cuda) {
    let backend = open(cuda);
    let builder = || Team::builder(&backend).size(SIZE).device(ONE);
    let unshared = builder().create().unwrap();
    refused!(unshared.export(), Detail::Unsupported { .. });
    let shared = builder().exported_as(HandleTypes::NATIVE).create().unwrap();
    shared.export().unwrap();
    let mut object = shared.complete();
    let own = memory(&backend, ONE);
    refused!(
        object.bind(Bytes::ZERO, &own, Bytes::ZERO, SIZE),
        Detail::Unsupported { .. },
        "create it as shareable"
    );
    let shareable = PhysicalMemory::create(&backend, SIZE, Properties::on(ONE).shareable()).unwrap();
    object.bind(Bytes::ZERO, &shareable, Bytes::ZERO, SIZE).unwrap();
    // The reverse is allowed.
    unshared.complete().bind(Bytes::ZERO, &shareable, Bytes::ZERO, SIZE).unwrap();
    drop((object, own, shareable));
    check_nothing_is_left(cuda, &backend);
}

fn all_devices_of_a_team_are_named(cuda: &Cuda) {
    let backend = open(cuda);
    let mut object = both(&backend).create().unwrap().complete();
    refused!(
        object.bind(Bytes::ZERO, &memory(&backend, DeviceId(2)), Bytes::ZERO, SIZE),
        Detail::NotInTeam { .. },
        "device 2 is not in the team; the devices of this process in it are: device 0, device 1"
    );
    drop(object);
    check_nothing_is_left(cuda, &backend);
}

/// A native handle is the default with devices of other processes, and types add up.
fn an_object_is_exported_as_requested(cuda: &Cuda) {
    let backend = open(cuda);
    let builder = || Team::builder(&backend).size(SIZE).device(ONE);
    let native = builder().exported_as(HandleTypes::NATIVE);
    for (builder, is_native) in [(builder(), false), (builder().elsewhere(1), true), (native, true)] {
        assert_eq!(builder.create().unwrap().export().is_ok(), is_native);
    }
    // The fake driver has no objects with fabric handles.
    let both = builder().exported_as(HandleTypes::FABRIC).exported_as(HandleTypes::NATIVE);
    assert!(both.create().unwrap_err().to_string().contains("CUDA_ERROR_NOT_PERMITTED"));
    check_nothing_is_left(cuda, &backend);
}

fn map_needs_bindings_of_each_device(cuda: &Cuda) {
    let backend = open(cuda);
    let mut object = both(&backend).create().unwrap().complete();
    for device in BOTH {
        let failed = object.map(Placement::Anywhere).unwrap_err();
        assert!(
            matches!(failed.error().detail(), Detail::NotBound { device: missing, .. } if *missing == device),
            "{failed}"
        );
        let text = format!("no memory of {device} is bound anywhere, and every device needs a binding");
        assert!(failed.to_string().contains(&text), "{failed}");
        object = failed.into_kept();
        object.bind(Bytes::ZERO, &memory(&backend, device), Bytes::ZERO, SIZE).unwrap();
    }
    drop(object.map(Placement::Anywhere).unwrap());
    check_nothing_is_left(cuda, &backend);
}

fn what_was_not_bound_is_not_unbound(cuda: &Cuda) {
    let backend = open(cuda);
    let mut object = bound(&backend);
    refused!(
        object.unbind(ONE, UNIT),
        Detail::NotBound { .. },
        "no memory of device 0 is bound from offset 4 MiB on"
    );
    refused!(object.unbind(DeviceId(2), Bytes::ZERO), Detail::NotBound { .. });
    object.unbind(ONE, Bytes::ZERO).unwrap();
    refused!(object.unbind(ONE, Bytes::ZERO), Detail::NotBound { .. });
    object.close().unwrap();
    check_nothing_is_left(cuda, &backend);
}

fn capability(backend: &CudaBackend) -> Capability {
    let all = backend.capabilities(TWO).unwrap();
    all.into_iter().find(|one| one.feature == Feature::Multicast).unwrap()
}

fn the_capability_is_the_drivers_word(cuda: &Cuda) {
    let backend = open(cuda);
    let Capability { available, found_by, note, .. } = capability(&backend);
    assert!(available && found_by == Evidence::Attribute);
    assert!(note.contains("never tried"), "{note}");
    check_nothing_is_left(cuda, &backend);
}

/// Each call returns the reason that the capability reports.
fn check_unsupported(backend: &CudaBackend, found_by: Evidence, reason: &str) {
    let found = capability(backend);
    assert!(!found.available && found.found_by == found_by, "{found:?}");
    assert!(found.note.contains(reason), "{found:?}");
    for answer in [
        both(backend).create().map(drop),
        both(backend).granularity().map(drop),
        // SAFETY: it is refused before the descriptor is used.
        unsafe { both(backend).import(std::os::fd::AsFd::as_fd(&std::io::stdin())) }.map(drop),
    ] {
        refused!(answer, Detail::Unsupported { .. }, &found.note);
    }
}

fn a_device_without_it_says_so(cuda: &Cuda) {
    let backend = open(cuda);
    check_unsupported(&backend, Evidence::Attribute, "MULTICAST_SUPPORTED is 0");
    let part = "device 0: CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED is 0";
    refused!(both(&backend).create(), Detail::Unsupported { .. }, part);
    check_nothing_is_left(cuda, &backend);
}

/// The first four calls are made when the driver is opened.
fn a_device_that_does_not_tell(cuda: &Cuda) {
    let backend = open(cuda);
    let part = "device 0: asked for CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, cuDeviceGetAttribute";
    refused!(both(&backend).create(), Detail::Unsupported { .. }, part, "(999)");
    check_nothing_is_left(cuda, &backend);
}

fn a_driver_without_says_so(cuda: &Cuda) {
    assert!(!cuda.has("cuMulticastCreate"));
    let backend = open(cuda);
    check_unsupported(&backend, Evidence::Version, "cuMulticastCreate");
    assert!(backend.multicast(Operation::Allocate).is_err());
    check_nothing_is_left(cuda, &backend);
}
