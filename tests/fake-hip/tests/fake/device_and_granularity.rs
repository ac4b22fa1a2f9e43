//! Calls that set the thread's device, and queries of a granularity, that fail.

use crate::failures::logged;
use crate::rig::{Must, ONE, Rig, ZERO, units};
use gpu_vmm_core::{Backend, Bytes, Detail, Location, Operation, Properties};
use gpu_vmm_test_settings::cases;

cases! {
    // The first two calls are those of the start, which describes device 1.
    unrestored_device_is_recorded [REFUSES = "hipSetDevice:4:999"];
    // The first two are of the devices' own memory.
    host_granularity_of_0_is_an_error [REFUSES = "hipMemGetAllocationGranularity:3:0"];
}

/// The call itself has succeeded, and the next ones set the device that they need.
fn unrestored_device_is_recorded(rig: &mut Rig) {
    let current = || {
        let mut device = -1i32;
        rig.hip("hipGetDevice", [(&raw mut device).addr(), 0, 0]);
        device
    };
    assert_eq!(current(), 0);
    let total = rig.backend.memory_info(ONE).must("amounts").total;
    assert_eq!((total, current()), (Bytes::mib(512), 1));
    assert_eq!(logged(rig), (Operation::SetDevice, "hipSetDevice", "device 0".to_owned()));
    for device in [ZERO, ONE] {
        rig.backend.memory_info(device).must("amounts");
        assert_eq!(current(), 1, "the thread's device is set back");
    }
    assert_eq!(rig.backend.drop_log().count(), 1);
}

fn host_granularity_of_0_is_an_error(rig: &mut Rig) {
    let ask = || {
        let host = Properties::on(ONE).located(Location::Host);
        rig.backend.granularity_of(Operation::QueryGranularity, &host)
    };
    if rig.has("host-memory-is-the-devices") {
        fails!(ask(), Unsupported);
        return;
    }
    let error = ask().expect_err("no granularity");
    let Detail::DriverContractViolated { what } = error.detail() else { panic!("{error}") };
    assert_eq!(what, "hipMemGetAllocationGranularity returned 0 B, not a power of two");
    assert_eq!(error.operation(), Operation::QueryGranularity);
    assert_eq!(ask().must("the next one").bytes(), units(1));
}
