//! The work that an event marks: querying it and waiting for it.

use super::{default, event, region};
use crate::case::cases;
use crate::library::flights::{finish, goes_on, own, queue, start_on};
use crate::subject::Subject;
use gpu_vmm_core::Bytes;
use gpu_vmm_testkit::TestKit;

cases! { "event":
    /// An event that was never recorded is done, and waiting for it returns at once and delays no stream.
    never_recorded,
    /// An event is done when the work before it is done, on a new stream and on the default stream.
    done_after_the_work,
    /// An event is not done while the work before it runs.
    not_done_while_work_runs,
    /// Waiting for an event returns after the work before it has finished, with its complete result.
    wait_waits,
    /// Waiting for an event does not wait for work that was queued after it.
    wait_waits_for_nothing_behind,
    /// An event that is recorded again marks the later work.
    recorded_again_covers_later_work,
    /// An event that is recorded on another stream no longer marks work of the first one.
    recorded_elsewhere_forgets,
    /// An event can be queried and waited for after its stream was destroyed.
    outlives_its_stream,
    /// An event of the default stream becomes done while a non-blocking stream works.
    the_default_stream_is_another,
    /// Events on one stream become done in the order in which they were recorded.
    many_in_order,
    /// Several threads can query an event while another waits for it, and all see that it is done only after the work.
    asked_by_threads,
    /// Dropping an event neither waits for the work that it marks nor disturbs that work.
    dropped_under_work,
}

fn never_recorded<B: TestKit>(subject: &Subject<B>) {
    let (event, own) = (event(subject), own(subject));
    assert!(event.is_done().unwrap());
    event.wait().unwrap();
    for stream in [own.stream(), default()] {
        event.hold(stream).unwrap();
        subject.backend.synchronize_stream(subject.device, stream).unwrap();
    }
    assert!(event.is_done().unwrap() && own.is_done().unwrap());
}

fn done_after_the_work<B: TestKit>(subject: &Subject<B>) {
    let (mut event, own) = (event(subject), own(subject));
    let mut region = region(subject, 1);
    for stream in [own.stream(), default()] {
        region.write_pattern(subject.device, Bytes::ZERO, subject.unit(), 1).unwrap();
        event.record(stream).unwrap();
        subject.backend.synchronize_stream(subject.device, stream).unwrap();
        assert!(event.is_done().unwrap(), "the stream was waited for");
        event.wait().unwrap();
    }
}

fn not_done_while_work_runs<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject, 1);
    goes_on(subject, |times| {
        let (mut event, own) = (event(subject), own(subject));
        start_on(subject, &*own, (&region, Bytes::ZERO), 1, times);
        event.record(own.stream()).unwrap();
        // The event is queried first, so that work that ends in between causes no failure.
        let (is_done, was_running) = (event.is_done().unwrap(), !own.is_done().unwrap());
        assert!(!(is_done && was_running), "the event is done while the work runs");
        finish(subject, &*own);
        assert!(event.is_done().unwrap());
        was_running
    });
}

fn wait_waits<B: TestKit>(subject: &Subject<B>) {
    let (mut event, own, region) = (event(subject), own(subject), region(subject, 1));
    start_on(subject, &*own, (&region, Bytes::ZERO), 1, 1);
    event.record(own.stream()).unwrap();
    event.wait().unwrap();
    assert!(event.is_done().unwrap() && own.is_done().unwrap(), "the wait returned too early");
    subject.check(&region, Bytes::ZERO, subject.unit(), 1);
}

fn wait_waits_for_nothing_behind<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject, 2);
    goes_on(subject, |times| {
        let (mut event, own) = (event(subject), own(subject));
        event.record(own.stream()).unwrap();
        start_on(subject, &*own, (&region, Bytes::ZERO), 1, times);
        event.wait().unwrap();
        let is_done = event.is_done().unwrap();
        let went_on = !own.is_done().unwrap();
        finish(subject, &*own);
        is_done && went_on
    });
}

fn recorded_again_covers_later_work<B: TestKit>(subject: &Subject<B>) {
    let (mut event, own, region) = (event(subject), own(subject), region(subject, 1));
    for seed in [1, 2] {
        event.record(own.stream()).unwrap();
        event.wait().unwrap();
        assert!(event.is_done().unwrap(), "no work is before the event");
        start_on(subject, &*own, (&region, Bytes::ZERO), seed, 1);
        event.record(own.stream()).unwrap();
        event.wait().unwrap();
        assert!(own.is_done().unwrap(), "the event marks the earlier position");
        subject.check(&region, Bytes::ZERO, subject.unit(), seed);
    }
}

fn recorded_elsewhere_forgets<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject, 1);
    goes_on(subject, |times| {
        let (mut event, [busy, free]) = (event(subject), [(); 2].map(|()| own(subject)));
        start_on(subject, &*busy, (&region, Bytes::ZERO), 1, times);
        event.record(busy.stream()).unwrap();
        event.record(free.stream()).unwrap();
        event.wait().unwrap();
        let went_on = !busy.is_done().unwrap();
        finish(subject, &*busy);
        went_on
    });
}

fn outlives_its_stream<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject, 1);
    let events = [(); 16].map(|()| {
        let (mut event, own) = (event(subject), own(subject));
        queue(subject, &*own, (&region, Bytes::ZERO), 1, 2);
        event.record(own.stream()).unwrap();
        event
    });
    for event in &events {
        assert!(event.is_done().unwrap(), "destroying a stream waits for its work");
        event.wait().unwrap();
    }
}

fn the_default_stream_is_another<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject, 1);
    goes_on(subject, |times| {
        let (mut event, own) = (event(subject), own(subject));
        start_on(subject, &*own, (&region, Bytes::ZERO), 1, times);
        event.record(default()).unwrap();
        event.wait().unwrap();
        let went_on = !own.is_done().unwrap();
        finish(subject, &*own);
        went_on
    });
}

fn many_in_order<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let mut events: Vec<_> = (0..64).map(|_| event(subject)).collect();
    for event in &mut events {
        event.record(own.stream()).unwrap();
    }
    for (number, event) in events.iter().enumerate().rev() {
        event.wait().unwrap();
        assert!(
            events[..=number].iter().all(|earlier| earlier.is_done().unwrap()),
            "an event before number {number} is not done"
        );
    }
}

fn asked_by_threads<B: TestKit>(subject: &Subject<B>) {
    let (mut event, own, region) = (event(subject), own(subject), region(subject, 1));
    start_on(subject, &*own, (&region, Bytes::ZERO), 1, 1);
    event.record(own.stream()).unwrap();
    let event = &*event;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !event.is_done().unwrap() {
                    std::thread::yield_now();
                }
                assert!(own.is_done().unwrap(), "the event is done while the work runs");
            });
        }
        event.wait().unwrap();
        assert!(event.is_done().unwrap());
    });
    subject.check(&region, Bytes::ZERO, subject.unit(), 1);
}

fn dropped_under_work<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject, 1);
    goes_on(subject, |times| {
        let (mut event, own) = (event(subject), own(subject));
        start_on(subject, &*own, (&region, Bytes::ZERO), u64::from(times), times);
        event.record(own.stream()).unwrap();
        drop(event);
        let went_on = !own.is_done().unwrap();
        finish(subject, &*own);
        subject.check(&region, Bytes::ZERO, subject.unit(), u64::from(times));
        went_on
    });
}
