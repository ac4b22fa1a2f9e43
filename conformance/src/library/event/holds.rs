//! Streams that wait for an event.

use super::{event, event_on, region};
use crate::case::cases;
use crate::library::flights::{finish, goes_on, own, queue, start_on};
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Event, Region};
use gpu_vmm_testkit::{TestKit, WorkStream};

cases! { "event":
    /// Work queued on a stream that waits for an event begins when the event is done, and no CPU thread waits for it.
    hold_makes_another_stream_wait,
    /// A stream waits for what the event marked when the wait was queued: recording or dropping the event later changes nothing.
    hold_keeps_what_was_marked,
    /// A wait for an event that is done does not delay a stream.
    done_holds_nothing,
    /// A stream can wait for an event that was recorded on itself.
    hold_on_its_own_stream,
    /// Streams in a chain, each waiting for the previous one, do their work in that order.
    a_chain_of_streams,
    /// A stream of one device can wait for an event of another device.
    hold_on_another_device,
}

/// Starts long work on one stream and short work on another, on the same memory. `order` must make the second wait, so that
/// the memory ends with its pattern. Returns true if the first was still running when all work was queued.
fn in_order<B: TestKit>(
    subject: &Subject<B>,
    region: &Region<B>,
    times: u32,
    order: impl FnOnce(&dyn WorkStream, &dyn WorkStream),
) -> bool {
    let [first, second] = [(); 2].map(|()| own(subject));
    start_on(subject, &*first, (region, Bytes::ZERO), 1, times);
    order(&*first, &*second);
    queue(subject, &*second, (region, Bytes::ZERO), 2, 1);
    let went_on = !first.is_done().unwrap();
    finish(subject, &*second);
    assert!(first.is_done().unwrap(), "the second stream did not wait");
    subject.check(region, Bytes::ZERO, subject.unit(), 2);
    went_on
}

fn hold_makes_another_stream_wait<B: TestKit>(subject: &Subject<B>) {
    let (mut event, region) = (event(subject), region(subject, 1));
    goes_on(subject, |times| {
        in_order(subject, &region, times, |first, second| {
            event.record(first.stream()).unwrap();
            event.hold(second.stream()).unwrap();
        })
    });
}

fn hold_keeps_what_was_marked<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject, 1);
    goes_on(subject, |times| {
        let free = own(subject);
        let mut event = Some(event(subject));
        in_order(subject, &region, times, |first, second| {
            let mut event = event.take().unwrap();
            event.record(first.stream()).unwrap();
            event.hold(second.stream()).unwrap();
            event.record(free.stream()).unwrap();
        })
    });
}

fn done_holds_nothing<B: TestKit>(subject: &Subject<B>) {
    let (mut event, [one, two]) = (event(subject), [(); 2].map(|()| own(subject)));
    event.record(one.stream()).unwrap();
    event.wait().unwrap();
    for _ in 0..3 {
        event.hold(two.stream()).unwrap();
        finish(subject, &*two);
    }
    assert!(event.is_done().unwrap());
}

fn hold_on_its_own_stream<B: TestKit>(subject: &Subject<B>) {
    let (mut event, own) = (event(subject), own(subject));
    for _ in 0..3 {
        event.record(own.stream()).unwrap();
        event.hold(own.stream()).unwrap();
    }
    finish(subject, &*own);
    assert!(event.is_done().unwrap());
}

fn a_chain_of_streams<B: TestKit>(subject: &Subject<B>) {
    let (region, streams) = (region(subject, 1), [(); 4].map(|()| own(subject)));
    let mut events: Vec<Box<dyn Event>> = streams.iter().map(|_| event(subject)).collect();
    for (number, own) in streams.iter().enumerate() {
        if number > 0 {
            events[number - 1].hold(own.stream()).unwrap();
        }
        // The first stream's work takes longest.
        queue(subject, &**own, (&region, Bytes::ZERO), number as u64, 64 >> (2 * number));
        events[number].record(own.stream()).unwrap();
    }
    events[3].wait().unwrap();
    assert!(
        events.iter().all(|event| event.is_done().unwrap()),
        "the last event is done before an earlier one"
    );
    subject.check(&region, Bytes::ZERO, subject.unit(), 3);
}

fn hold_on_another_device<B: TestKit>(subject: &Subject<B>) {
    let (device, other) = subject.two_devices();
    let theirs = subject.backend.own_stream(other).unwrap();
    let (mut one, mut two) = (event_on(subject, device), event_on(subject, other));
    let (own, region) = (own(subject), region(subject, 1));
    start_on(subject, &*own, (&region, Bytes::ZERO), 1, 1);
    one.record(own.stream()).unwrap();
    one.hold(theirs.stream()).unwrap();
    two.record(theirs.stream()).unwrap();
    two.wait().unwrap();
    assert!(own.is_done().unwrap(), "the other device did not wait");
    subject.check(&region, Bytes::ZERO, subject.unit(), 1);
}
