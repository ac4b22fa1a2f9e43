//! Calls that work during a capture and do not disturb it.

use super::{Kind, begin_with_work, end, in_all_modes, launch, region};
use crate::case::cases;
use crate::library::flights::{finish, own, queue, registered};
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Bytes, Detail, Operation, PhysicalMemory, Region, Stream, Vendor, WaitFor};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::{CaptureMode, FaultInject, TestKit};

cases! { "captures":
    /// Creating, mapping, access changes, growth and unmapping without a wait succeed during a capture in every mode, and it ends
    /// well.
    virtual_memory_goes_on,
    /// Filling, writing and reading regions succeed during a capture on a non-blocking stream, and the capture ends well.
    copies_go_on,
    /// Recording, querying and awaiting events of other streams, awaiting streams, and page-locking host memory succeed during a
    /// capture, and it ends well.
    questions_spoil_nothing,
    /// An event recorded on a stream before its capture can be queried, and the capture ends well; then the event is done.
    events_from_before,
    /// A finished event that was recorded on the default stream is reported as done while a stream captures, and waiting for it
    /// returns.
    default_events_from_before,
    /// A stream's capture is detected although another stream was destroyed before.
    after_another_stream,
    /// Calls on another thread do not disturb a capture either.
    other_threads_go_on,
    /// A capture that another thread begins while a pool records an event on the stream ends well, and the pool can
    /// release its memory after it.
    begun_while_a_pool_marks,
    /// The default stream is reported as capturing while a blocking stream of any device captures, and not afterwards.
    a_blocking_capture_of_any_device,
}

/// Calls `act` during captures of streams of these kinds. Each graph can be launched afterwards.
fn beside_captures<B: TestKit>(subject: &Subject<B>, kinds: &[Kind], mut act: impl FnMut()) {
    in_all_modes(subject, kinds, |stream, kind, mode| {
        let region = region(subject);
        begin_with_work(subject, stream, mode, &region);
        act();
        let graph = end(subject, stream).unwrap_or_else(|error| panic!("{kind:?} {mode:?}: {error}"));
        launch(subject, &*graph, stream, region.address());
    });
}

/// Makes all calls that need no wait.
#[allow(unsafe_code)]
fn map_and_unmap<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    region.grow_to(subject.units(3)).unwrap();
    let memory = PhysicalMemory::create(&subject.backend, subject.unit(), subject.properties()).unwrap();
    subject.open(&mut region, subject.units(3), &memory);
    // SAFETY: no work is queued on the region.
    region.unmap(Bytes::ZERO, subject.unit(), unsafe { WaitFor::nothing() }).unwrap();
    // SAFETY: as above.
    region.close(unsafe { WaitFor::nothing() }).unwrap();
}

fn virtual_memory_goes_on<B: TestKit>(subject: &Subject<B>) {
    beside_captures(subject, &Kind::ALL, || map_and_unmap(subject));
}

/// Copies on the default stream.
fn copy<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>) {
    let mut bytes = [0; 4096];
    region.fill(Bytes::ZERO, subject.unit(), 3).unwrap();
    region.write(Bytes::ZERO, &[5; 100]).unwrap();
    region.read(Bytes::ZERO, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[99], bytes[100]), (5, 5, 3));
}

fn copies_go_on<B: TestKit>(subject: &Subject<B>) {
    let mut other = region(subject);
    beside_captures(subject, &[Kind::NonBlocking], || copy(subject, &mut other));
}

/// Uses events and streams that are unrelated to the capture.
fn ask<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    let (mut event, own) = (or_skip(backend.event(subject.device)), own(subject));
    for stream in [own.stream(), Stream::DEFAULT] {
        event.record(stream).unwrap();
        event.wait().unwrap();
        backend.synchronize_stream(subject.device, stream).unwrap();
        assert!(event.is_done().unwrap() && own.is_done().unwrap());
        assert!(!backend.is_capturing(stream).unwrap());
    }
    drop(backend.pin(subject.unit()).unwrap());
    drop(backend.copy_stream(subject.device).unwrap());
}

/// Skips the case if any query about an event invalidates captures.
fn needs_harmless_questions<B: TestKit>(subject: &Subject<B>) {
    if subject.backend.queries_spoil_captures() {
        skip("this driver invalidates captures when events are queried");
    }
}

fn questions_spoil_nothing<B: TestKit>(subject: &Subject<B>) {
    needs_harmless_questions(subject);
    beside_captures(subject, &[Kind::NonBlocking], || ask(subject));
}

fn events_from_before<B: TestKit>(subject: &Subject<B>) {
    needs_harmless_questions(subject);
    in_all_modes(subject, &Kind::ALL, |stream, kind, mode| {
        let (region, mut event) = (region(subject), or_skip(subject.backend.event(subject.device)));
        queue(subject, stream, (&region, Bytes::ZERO), 1, 2);
        event.record(stream.stream()).unwrap();
        begin_with_work(subject, stream, mode, &region);
        event.is_done().unwrap();
        match event.wait() {
            Ok(()) => assert!(event.is_done().unwrap(), "the event was waited for"),
            Err(error) => assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}"),
        }
        let graph = end(subject, stream).unwrap_or_else(|error| panic!("{kind:?} {mode:?}: {error}"));
        event.wait().unwrap();
        assert!(event.is_done().unwrap());
        launch(subject, &*graph, stream, region.address());
    });
}

fn default_events_from_before<B: TestKit>(subject: &Subject<B>) {
    needs_harmless_questions(subject);
    let mut event = or_skip(subject.backend.event(subject.device));
    event.record(Stream::DEFAULT).unwrap();
    event.wait().unwrap();
    beside_captures(subject, &Kind::ALL, || {
        assert!(event.is_done().unwrap(), "no later work was recorded");
        event.wait().unwrap();
    });
}

fn after_another_stream<B: TestKit>(subject: &Subject<B>) {
    in_all_modes(subject, &Kind::ALL, |stream, kind, mode| {
        let region = region(subject);
        let ended = kind.stream(subject);
        queue(subject, &*ended, (&region, Bytes::ZERO), 1, 2);
        finish(subject, &*ended);
        drop(ended);
        let captures = || subject.backend.is_capturing(stream.stream()).unwrap();
        assert!(!captures(), "{kind:?} {mode:?}");
        begin_with_work(subject, stream, mode, &region);
        assert!(captures(), "{kind:?} {mode:?}");
        let graph = end(subject, stream).unwrap_or_else(|error| panic!("{kind:?} {mode:?}: {error}"));
        assert!(!captures(), "{kind:?} {mode:?}");
        launch(subject, &*graph, stream, region.address());
    });
}

fn other_threads_go_on<B: TestKit>(subject: &Subject<B>) {
    needs_harmless_questions(subject);
    let mut other = region(subject);
    beside_captures(subject, &[Kind::NonBlocking], || {
        let act = || {
            map_and_unmap(subject);
            ask(subject);
            copy(subject, &mut other);
        };
        std::thread::scope(|scope| scope.spawn(act).join()).unwrap_or_else(|panic| {
            std::panic::resume_unwind(panic);
        });
    });
}

#[allow(unsafe_code)]
fn begun_while_a_pool_marks<B: TestKit>(subject: &Subject<B>) {
    needs_harmless_questions(subject);
    let backend = FaultInject::new(subject.backend.clone());
    for mode in CaptureMode::ALL {
        let pool = Pool::builder(&backend).device(subject.device).build().unwrap();
        let page = Bytes(pool.snapshot().page);
        let streams = [(); 2].map(|()| own(subject));
        let [ours, theirs] = streams.each_ref().map(|stream| registered(&pool, &**stream));
        drop(ours.alloc(page).unwrap());
        let (inner, device, raw) =
            (subject.backend.clone(), subject.device, streams[0].stream().as_raw().addr());
        backend.during(Operation::RecordEvent, move || {
            // SAFETY: the stream lives until the end of the case, which ends the capture.
            let stream = unsafe { Stream::from_raw(std::ptr::with_exposed_provenance_mut(raw)) };
            // SAFETY: as above.
            or_skip(unsafe { inner.begin_capture(device, stream, mode) });
        });
        let captures = || subject.backend.is_capturing(streams[0].stream()).unwrap();
        let mut blocks = Vec::new();
        // Each request makes the pool poll the stream.
        for _ in 0..3 {
            blocks.push(theirs.alloc(page).unwrap());
        }
        assert!(captures(), "no event was recorded");
        let ended = subject.backend.end_capture(subject.device, streams[0].stream());
        drop(ended.unwrap_or_else(|error| panic!("{mode:?}: {error}")));
        drop((blocks, ours, theirs));
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.stats().held, 0, "{mode:?}");
    }
}

#[allow(unsafe_code)]
fn a_blocking_capture_of_any_device<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    if backend.vendor() != Vendor::Cuda {
        skip("only NVIDIA's driver reports a capture that was not announced");
    }
    let (a, b) = subject.two_devices();
    for device in [a, b] {
        let stream = or_skip(backend.blocking_stream(device));
        // SAFETY: no work is captured, and the capture ends below.
        or_skip(unsafe { backend.begin_capture(device, stream.stream(), CaptureMode::Relaxed) });
        let during = backend.is_capturing(Stream::DEFAULT);
        drop(backend.end_capture(device, stream.stream()).unwrap());
        assert!(during.unwrap(), "a stream of {device} captures");
        assert!(!backend.is_capturing(Stream::DEFAULT).unwrap(), "no stream of {device} still captures");
    }
}
