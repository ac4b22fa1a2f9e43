//! Captures of host streams: what they forbid, and which capture a forbidden call invalidates.

use crate::{ONE, TWO};
use gpu_vmm_core::{Detail, DeviceId, Error, Event, Result, Stream, SyncCalls};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::{CaptureMode, TestKit};
use std::fmt::Debug;

fn pair() -> HostBackend {
    HostConfig::new().devices(2).open().unwrap()
}

fn begin(host: &HostBackend, device: DeviceId, stream: Stream<'_>) -> Result<()> {
    // SAFETY: the tests end each capture, and capture no work.
    unsafe { host.begin_capture(device, stream, CaptureMode::Relaxed) }
}

fn is_capturing<T: Debug>(result: Result<T>) -> bool {
    matches!(result.as_ref().map_err(Error::detail), Err(Detail::Capturing { .. }))
}

#[test]
fn stream_captures_once_default_stream_never() {
    let host = pair();
    let own = host.own_stream(ONE).unwrap();
    let assert_invalid = |result: Result<()>, why: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.driver_error().unwrap().name, "EINVAL", "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    assert_invalid(begin(&host, ONE, Stream::DEFAULT), "the default stream cannot capture");
    assert_invalid(host.end_capture(ONE, own.stream()).map(drop), "the stream does not capture");
    begin(&host, ONE, own.stream()).unwrap();
    assert_invalid(begin(&host, ONE, own.stream()), "the stream captures already");
    host.end_capture(ONE, own.stream()).unwrap();
    assert!(!host.is_capturing(own.stream()).unwrap());
}

#[test]
fn capture_forbids_waits_for_its_device() {
    let host = pair();
    let [own, beside] = [(); 2].map(|()| host.own_stream(ONE).unwrap());
    begin(&host, ONE, own.stream()).unwrap();
    host.synchronize(TWO).unwrap();
    for stream in [beside.stream(), Stream::DEFAULT] {
        host.synchronize_stream(ONE, stream).unwrap();
    }
    assert!(beside.is_done().unwrap());
    host.end_capture(ONE, own.stream()).unwrap();
    let forbidden: [&dyn Fn() -> Result<()>; 3] =
        [&|| host.synchronize(ONE), &|| host.synchronize_stream(ONE, own.stream()), &|| {
            own.is_done().map(drop)
        }];
    for (number, call) in forbidden.iter().enumerate() {
        begin(&host, ONE, own.stream()).unwrap();
        let refused = call().unwrap_err();
        let ended = host.end_capture(ONE, own.stream()).unwrap_err();
        for (error, name, why) in [
            (refused, "EBUSY", "a stream captures"),
            (ended, "ECANCELED", "a call has invalidated the capture"),
        ] {
            let source = error.driver_error().unwrap();
            assert!(source.name == name && source.description.contains(why), "call {number}: {error}");
            assert!(is_capturing(Err::<(), _>(error)), "call {number}");
        }
    }
}

#[test]
fn blocking_capture_forbids_default_stream_waits() {
    let host = pair();
    for (device, other) in [(ONE, TWO), (TWO, ONE)] {
        let blocking = host.blocking_stream(device).unwrap();
        begin(&host, device, blocking.stream()).unwrap();
        assert!(host.is_capturing(Stream::DEFAULT).unwrap());
        host.synchronize_stream(other, Stream::DEFAULT).unwrap();
        host.end_capture(device, blocking.stream()).unwrap();
        assert!(!host.is_capturing(Stream::DEFAULT).unwrap());
        begin(&host, device, blocking.stream()).unwrap();
        assert!(is_capturing(host.synchronize_stream(device, Stream::DEFAULT)));
        assert!(is_capturing(host.end_capture(device, blocking.stream())));
    }
}

#[test]
fn event_query_invalidates_only_its_capture() {
    let host = pair();
    let own = host.own_stream(ONE).unwrap();
    for waits in [false, true] {
        let query = |event: &dyn Event| if waits { event.wait() } else { event.is_done().map(drop) };
        let mut event = host.event(ONE).unwrap();
        begin(&host, ONE, own.stream()).unwrap();
        event.record(own.stream()).unwrap();
        assert!(query(&*event).is_err());
        assert!(is_capturing(host.end_capture(ONE, own.stream())));
        // The event is still in the capture that has ended.
        begin(&host, ONE, own.stream()).unwrap();
        assert!(query(&*event).is_err());
        host.end_capture(ONE, own.stream()).unwrap();
        event.record(own.stream()).unwrap();
        query(&*event).unwrap();
    }
}
