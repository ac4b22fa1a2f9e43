//! gpu-vmm-cuda's events, and whether a stream captures.

use crate::rig::{Cuda, DEVICE, answered, open};
use gpu_vmm_core::{Backend, Detail, DeviceId, Event, Operation, Stream, SyncCalls};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::TestKit;
use std::ptr::with_exposed_provenance_mut;

cases! {
    a_capture_is_told;
    a_stream_of_another_context_is_refused;
    nothing_is_left_current;
    failed_event_calls_change_nothing
        [FAIL = "cuEventCreate:1:2,cuEventRecord:1:1,cuEventQuery:1:1,cuEventSynchronize:1:1,\
                 cuStreamWaitEvent:1:1,cuStreamIsCapturing:1:1"];
    the_dead_are_done [FAIL = "cuEventQuery:1:719,cuEventSynchronize:1:700"];
    undestroyed_event_is_logged [FAIL = "cuEventDestroy_v2:1:1"];
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: usize = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: usize = 2;
const CAPTURE_UNSUPPORTED: u32 = 900;
const CAPTURE_INVALIDATED: u32 = 901;
const CAPTURED_EVENT: u32 = 907;

/// Ends a valid capture.
fn end(cuda: &Cuda, stream: usize) {
    let mut graph = 0usize;
    cuda.ok("cuStreamEndCapture", &[stream, (&raw mut graph).addr()]);
    cuda.ok("cuGraphDestroy", &[graph]);
}

/// Wraps a raw stream for the core.
fn stream(raw: usize) -> Stream<'static> {
    // SAFETY: cases name streams that live as long as they use this.
    unsafe { Stream::from_raw(with_exposed_provenance_mut(raw)) }
}

fn a_capture_is_told(cuda: &Cuda) {
    let backend = open();
    let (mut event, own) = (backend.event(DEVICE).unwrap(), backend.own_stream(DEVICE).unwrap());
    let raw = own.stream().as_raw().addr();
    let captures = |stream| backend.is_capturing(stream).unwrap();
    assert!(!captures(own.stream()));
    cuda.enter(0);
    cuda.ok("cuStreamBeginCapture_v2", &[raw, RELAXED]);
    // The legacy default stream does not capture, under either name, nor does the thread's own.
    assert!(captures(own.stream()) && [0, 1, 2].iter().all(|default| !captures(stream(*default))));
    event.record(own.stream()).unwrap();
    for error in [event.is_done().unwrap_err(), event.wait().unwrap_err()] {
        assert_eq!(error.driver_error().unwrap().code, i64::from(CAPTURED_EVENT), "{error}");
    }
    // An invalidated capture has not ended.
    cuda.answers("cuStreamSynchronize", &[raw], CAPTURE_UNSUPPORTED);
    assert!(captures(own.stream()));
    let mut graph = 0usize;
    cuda.answers("cuStreamEndCapture", &[raw, (&raw mut graph).addr()], CAPTURE_INVALIDATED);
    assert!(!captures(own.stream()));
    event.record(own.stream()).unwrap();
    event.wait().unwrap();
    assert!(event.is_done().unwrap());
    // The thread's own default stream can capture.
    cuda.ok("cuStreamBeginCapture_v2", &[2, RELAXED]);
    // It blocks, so work on the shared default stream would invalidate its capture.
    assert!(captures(stream(2)) && captures(stream(1)));
    // That another device has work too, and captures nothing, changes no answer.
    let other = backend.own_stream(DeviceId(1)).unwrap();
    assert!(captures(stream(2)) && captures(stream(1)));
    end(cuda, 2);
    assert!(!captures(stream(2)) && !captures(stream(1)));
    drop((event, own, other));
    assert_eq!(backend.drop_log().count(), 0);
}

fn a_stream_of_another_context_is_refused(cuda: &Cuda) {
    let backend = open();
    let mut event = backend.event(DEVICE).unwrap();
    let context = cuda.get("cuCtxCreate_v2", &[0, 0]);
    let foreign = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    let error = event.record(stream(foreign)).unwrap_err();
    assert_eq!(error.operation(), Operation::RecordEvent);
    let Detail::ForeignStream { theirs, ours } = error.detail() else { panic!("{error}") };
    let context_of = |text: &str| {
        text.strip_prefix("device 0, context ").map(|rest| rest.contains(&format!("{context:#x}")))
    };
    assert_eq!((context_of(theirs), context_of(ours)), (Some(true), Some(false)), "{error}");
    // It can be held nevertheless.
    event.hold(stream(foreign)).unwrap();
    assert!(!backend.is_capturing(stream(foreign)).unwrap());
    assert_eq!(cuda.violations(), 0);
    cuda.ok("cuStreamDestroy_v2", &[foreign]);
    cuda.ok("cuCtxDestroy_v2", &[context]);
}

fn nothing_is_left_current(cuda: &Cuda) {
    let backend = open();
    let current = || cuda.get("cuCtxGetCurrent", &[]);
    let (mut event, own) = (backend.event(DEVICE).unwrap(), backend.own_stream(DEVICE).unwrap());
    for stream in [own.stream(), stream(0)] {
        event.record(stream).unwrap();
        event.hold(stream).unwrap();
        event.wait().unwrap();
        assert!(event.is_done().unwrap() && !backend.is_capturing(stream).unwrap());
        assert_eq!(current(), 0);
    }
    let counts = cuda.counts();
    assert_eq!((counts.events, counts.streams), (1, 1));
    drop((event, own));
    let counts = cuda.counts();
    assert_eq!((counts.events, counts.streams, current(), cuda.violations()), (0, 0, 0, 0));
}

fn event() -> (CudaBackend, Box<dyn Event>) {
    let backend = open();
    let event = backend.event(DEVICE).unwrap();
    (backend, event)
}

/// Each call fails once, is named with its code, and then succeeds.
fn failed_event_calls_change_nothing(_: &Cuda) {
    let backend = open();
    assert_eq!(answered(&backend.event(DEVICE).unwrap_err()), ("cuEventCreate", 2));
    let own = backend.own_stream(DEVICE).unwrap();
    let error = backend.is_capturing(own.stream()).unwrap_err();
    assert_eq!(answered(&error), ("cuStreamIsCapturing", 1));
    assert!(!backend.is_capturing(own.stream()).unwrap());
    let mut event = backend.event(DEVICE).unwrap();
    assert_eq!(answered(&event.record(stream(0)).unwrap_err()), ("cuEventRecord", 1));
    assert_eq!(answered(&event.is_done().unwrap_err()), ("cuEventQuery", 1));
    assert!(event.is_done().unwrap());
    assert_eq!(answered(&event.wait().unwrap_err()), ("cuEventSynchronize", 1));
    event.wait().unwrap();
    event.record(stream(0)).unwrap();
    assert_eq!(answered(&event.hold(stream(0)).unwrap_err()), ("cuStreamWaitEvent", 1));
    event.hold(stream(0)).unwrap();
}

fn the_dead_are_done(_: &Cuda) {
    let (_backend, event) = event();
    assert!(event.is_done().unwrap());
    event.wait().unwrap();
}

fn undestroyed_event_is_logged(cuda: &Cuda) {
    let (backend, event) = event();
    drop(event);
    let error = backend.drop_log().take_last().unwrap();
    assert_eq!((answered(&error), backend.drop_log().count()), (("cuEventDestroy_v2", 1), 1));
    // The driver still has the event, and the check for leaks sees it: it ends with its context.
    assert_eq!(cuda.counts().events, 1);
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
}
