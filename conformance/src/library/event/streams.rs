//! The test kit's own streams, and whether they capture.

use super::{default, event, region};
use crate::case::cases;
use crate::library::flights::{finish, own, start_on};
use crate::subject::Subject;
use gpu_vmm_core::Bytes;
use gpu_vmm_testkit::TestKit;
use std::collections::BTreeSet;

cases! { "event":
    /// A new stream differs from the default streams and from all other existing streams.
    own_streams_are_apart,
    /// A new stream without work is done, and can be waited for repeatedly.
    an_own_stream_without_work,
    /// Dropping a stream waits for its work.
    dropping_an_own_stream_waits,
    /// Several threads can create, use and drop streams at once.
    own_streams_on_threads,
    /// No stream reports a capture that was not begun, neither a new stream nor the default one.
    nothing_captures,
}

fn own_streams_are_apart<B: TestKit>(subject: &Subject<B>) {
    let streams: Vec<_> = (0..8).map(|_| own(subject)).collect();
    let names: BTreeSet<_> = streams.iter().map(|own| own.stream().as_raw()).collect();
    assert_eq!(names.len(), streams.len(), "two streams are the same");
    // Null, and the handles of the legacy and the per-thread default stream.
    assert!(names.iter().all(|name| name.addr() > 2), "{names:?}");
    assert_ne!(streams[0].stream(), default());
}

fn an_own_stream_without_work<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    assert!(own.is_done().unwrap());
    for _ in 0..3 {
        finish(subject, &*own);
    }
}

fn dropping_an_own_stream_waits<B: TestKit>(subject: &Subject<B>) {
    let (mut event, own, region) = (event(subject), own(subject), region(subject, 1));
    start_on(subject, &*own, (&region, Bytes::ZERO), 1, 1);
    event.record(own.stream()).unwrap();
    drop(own);
    assert!(event.is_done().unwrap(), "the stream was dropped while its work ran");
    subject.check(&region, Bytes::ZERO, subject.unit(), 1);
}

fn own_streams_on_threads<B: TestKit>(subject: &Subject<B>) {
    // If the backend has no streams, the case ends here, with the reason, and not in a thread.
    drop(own(subject));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    let (mut event, own) = (event(subject), own(subject));
                    event.record(own.stream()).unwrap();
                    event.wait().unwrap();
                    assert!(event.is_done().unwrap() && own.is_done().unwrap());
                }
            });
        }
    });
}

fn nothing_captures<B: TestKit>(subject: &Subject<B>) {
    let (mut event, own) = (event(subject), own(subject));
    for stream in [own.stream(), default()] {
        assert!(!subject.backend.is_capturing(stream).unwrap());
        event.record(stream).unwrap();
        assert!(!subject.backend.is_capturing(stream).unwrap());
    }
}
