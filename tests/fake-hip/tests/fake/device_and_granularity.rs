//! Calls that set the thread's device, and queries of a granularity, that fail.

use crate::child::Case;
use crate::failures::logged;
use crate::rig::{Must, ONE, Rig, ZERO, units};
use gpu_vmm_core::{Backend, Bytes, Detail, Location, Operation, Properties};

/// Each case with the calls that are refused, as in `failures`. The code 0 is success without a result.
pub(crate) const CASES: [(Case, &str); 2] = [
    // The start makes the first two calls, and describes device 1.
    (Case { name: "a_device_that_is_not_set_back_is_recorded", run: not_set_back }, "hipSetDevice:4:999"),
    // The first two are of the devices' own memory.
    (
        Case { name: "a_granularity_of_0_of_the_hosts_memory_is_an_error", run: granularity_of_0 },
        "hipMemGetAllocationGranularity:3:0",
    ),
];

/// The call itself has succeeded, and the next ones set the device that they need.
fn not_set_back(rig: &mut Rig) {
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

fn granularity_of_0(rig: &mut Rig) {
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
