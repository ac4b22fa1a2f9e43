//! Events, streams that capture, and the null stream.
#![allow(unsafe_code)] // the backend's traits

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Address, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, Operation, Reservation, Stream, SyncCalls,
};
use gpu_vmm_testkit::TestKit;
use std::ptr::null_mut;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "events::a_capture_is_told", needs: Needs::Device, run: captures },
    Test { name: "events::calls_leave_no_error_or_device", needs: Needs::TwoDevices, run: left },
    Test {
        name: "events::event_follows_its_last_recorded_stream",
        needs: Needs::Device,
        run: recorded_again,
    },
    Test { name: "events::destroyed_stream_is_not_read", needs: Needs::Device, run: outlived_streams },
    Test { name: "events::event_outlives_its_stream", needs: Needs::Device, run: independent_of_streams },
    Test { name: "events::copies_come_after_the_null_stream", needs: Needs::Device, run: ordered },
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

/// On HIP 6 an event is not asked while its stream captures, since that would spoil the capture.
fn recorded_again(rig: &Rig) {
    let [mut event, mut kept] = [(); 2].map(|()| rig.backend.event(ZERO).unwrap());
    let [captured, other] = [(); 2].map(|()| rig.backend.own_stream(ZERO).unwrap());
    let raw = captured.stream().as_raw().addr();
    for event in [&mut event, &mut kept] {
        event.record(captured.stream()).unwrap();
        event.wait().unwrap();
    }
    assert_eq!(rig.hip2("hipStreamBeginCapture", raw, RELAXED), 0);
    event.record(other.stream()).unwrap();
    event.wait().unwrap();
    assert!(event.is_done().unwrap());
    let is_asked = !rig.has_quirk("events-spoil-captures");
    assert_eq!(kept.is_done().unwrap(), is_asked);
    let waited = kept.wait();
    assert_eq!(waited.is_ok(), is_asked);
    if let Err(error) = waited {
        assert!(matches!(error.detail(), Detail::Capturing { source: None }), "{error}");
        assert_eq!(error.operation(), Operation::WaitForEvent);
    }
    let mut graph = 0usize;
    assert_eq!(rig.hip2("hipStreamEndCapture", raw, (&raw mut graph).addr()), 0, "the capture is valid");
    assert_eq!(rig.hip("hipGraphDestroy", graph), 0);
    assert!(kept.is_done().unwrap());
}

/// On HIP 6 an event is not asked after its stream was destroyed: HIP would read the stream's memory, which other code has by then.
fn outlived_streams(rig: &Rig) {
    let (mut event, waiting) = (rig.backend.event(ZERO).unwrap(), rig.backend.own_stream(ZERO).unwrap());
    let mut others = Vec::new();
    for round in 0..3000_usize {
        let own = rig.backend.own_stream(ZERO).unwrap();
        event.record(own.stream()).unwrap();
        drop(own);
        // As memory of another owner: words of 1 are the status of a stream that captures.
        others.push(vec![1_u32; 16 + round * 7 % 700]);
        if others.len() > 64 {
            others.clear();
        }
        assert!(event.is_done().unwrap(), "round {round}");
        event.wait().unwrap();
        event.hold(waiting.stream()).unwrap();
    }
}

/// Such an event can be asked while another thread destroys the stream.
fn independent_of_streams(rig: &Rig) {
    let reservation = rig.mapped(ZERO, rig.unit());
    let own = rig.backend.own_stream(ZERO).unwrap();
    let mut event = rig.backend.event(ZERO).unwrap();
    event.outlive_stream().unwrap();
    // SAFETY: the unit is mapped, and the stream is waited for.
    unsafe { rig.backend.start_pattern_on(ZERO, own.stream(), reservation.range().base, rig.unit(), 1, 64) }
        .unwrap();
    event.record(own.stream()).unwrap();
    event.outlive_stream().unwrap();
    event.outlive_stream().unwrap();
    drop(own);
    event.wait().unwrap();
    assert!(event.is_done().unwrap());
    // SAFETY: as above.
    let wrong = unsafe { rig.backend.count_wrong(ZERO, reservation.range().base, rig.unit(), 1) }.unwrap();
    assert_eq!(wrong, 0);
    // The event can be recorded on another stream, which gets its own stream destroyed.
    let other = rig.backend.own_stream(ZERO).unwrap();
    event.record(other.stream()).unwrap();
    event.wait().unwrap();
    rig.unmapped(reservation);
}

/// Starts work on the null stream that has not ended yet. It writes the memory several times, at last with this seed.
fn start(rig: &Rig, at: Address, seed: u64) {
    let mut event = rig.backend.event(ZERO).unwrap();
    for rounds in (4..10).map(|power| 1 << power) {
        // SAFETY: the tests have mapped a unit there, and wait for the work.
        unsafe { rig.backend.start_pattern_on(ZERO, null(), at, rig.unit(), seed, rounds) }.unwrap();
        event.record(null()).unwrap();
        if !event.is_done().unwrap() {
            return;
        }
    }
    panic!("the work ends at once")
}

fn ordered(rig: &Rig) {
    let reservation = rig.mapped(ZERO, rig.unit());
    let (first, last) = (reservation.range().base, reservation.range().base + rig.unit() - Bytes(64));
    let read = |at| {
        let mut bytes = [0; 64];
        // SAFETY: the bytes are mapped.
        unsafe { rig.backend.copy_to_host(ZERO, &mut bytes, at) }.unwrap();
        bytes
    };
    let finished = |at| {
        rig.backend.synchronize(ZERO).unwrap();
        read(at)
    };
    start(rig, first, 1 << 40);
    let early = read(last);
    assert_eq!(early, finished(last), "read before the work on the null stream had ended");
    start(rig, first, 2 << 40);
    // SAFETY: the bytes are mapped.
    unsafe { rig.backend.copy_from_host(ZERO, last, &[3; 64]) }.unwrap();
    assert_eq!(finished(last), [3; 64], "written before the work on the null stream had ended");
    start(rig, first, 4 << 40);
    // SAFETY: as above.
    unsafe { rig.backend.fill(ZERO, last, Bytes(64), 5) }.unwrap();
    assert_eq!(finished(last), [5; 64], "filled before the work on the null stream had ended");
    rig.unmapped(reservation);
}
