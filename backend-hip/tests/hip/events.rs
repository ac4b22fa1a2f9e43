//! Events, and streams that capture.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{Backend, Detail, DeviceId, Error, Stream, SyncCalls};
use gpu_vmm_testkit::TestKit;
use std::ptr::null_mut;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "events::a_capture_is_told", needs: Needs::Device, run: captures },
    Test { name: "events::calls_leave_no_error_and_no_device_behind", needs: Needs::TwoDevices, run: left },
];

/// `hipStreamCaptureModeRelaxed`.
const RELAXED: usize = 2;

fn null() -> Stream<'static> {
    // SAFETY: null is the null stream.
    unsafe { Stream::from_raw(null_mut()) }
}

fn captures(rig: &Rig) {
    let (mut event, own) = (rig.backend.event(ZERO).unwrap(), rig.backend.own_stream(ZERO).unwrap());
    let raw = own.stream().as_raw().addr();
    assert!(!rig.backend.is_capturing(own.stream()).unwrap());
    assert_eq!(rig.hip2("hipStreamBeginCapture", raw, RELAXED), 0);
    assert!(rig.backend.is_capturing(own.stream()).unwrap());
    assert!(!rig.backend.is_capturing(null()).unwrap());
    event.record(own.stream()).unwrap();
    let mut graph = 0usize;
    assert_eq!(rig.hip2("hipStreamEndCapture", raw, (&raw mut graph).addr()), 0, "the capture is valid");
    assert_eq!(rig.hip("hipGraphDestroy", graph), 0);
    assert!(!rig.backend.is_capturing(own.stream()).unwrap());
    // Recorded outside of a capture, the event works again.
    event.record(own.stream()).unwrap();
    event.wait().unwrap();
    assert!(event.is_done().unwrap());
}

/// The calls leave HIP's last error and current device unchanged, because the program uses both.
fn left(rig: &Rig) {
    let last = DeviceId(rig.backend.devices().len() as u32 - 1);
    let (mut event, own) = (rig.backend.event(last).unwrap(), rig.backend.own_stream(last).unwrap());
    let foreign = rig.backend.own_stream(ZERO).unwrap();
    for stream in [own.stream(), null()] {
        event.record(stream).unwrap();
        event.hold(foreign.stream()).unwrap();
        while !event.is_done().unwrap() {}
        event.wait().unwrap();
    }
    assert!(matches!(
        event.record(foreign.stream()).as_ref().map_err(Error::detail),
        Err(Detail::ForeignStream { .. })
    ));
    drop((event, own, foreign));
    assert_eq!((rig.current_device(), rig.hip("hipGetLastError", 0)), (0, 0));
}
