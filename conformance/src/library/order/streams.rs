//! Stream handles that do not identify one stream: the default stream, and the per-thread default stream.

use super::in_flight::{AFTER, mapped};
use crate::case::cases;
use crate::library::flights::{goes_on, rounds};
use crate::library::tools::{idle, refused, streams_idle};
use crate::subject::{RW, Subject, or_skip, skip};
use gpu_vmm_core::{Address, Bytes, Detail, DeviceId, Event, Stream};
use gpu_vmm_testkit::TestKit;

cases! { "order":
    /// Unmapping that waits for the default stream waits for the default stream of each device with access, whichever device
    /// is current on the thread.
    the_default_stream_of_each_device,
    /// Unmapping memory that one device alone can access, and not the first one, waits for this device.
    the_only_device_with_access,
    /// Waiting for one device's default stream does not wait for another device's default stream.
    default_streams_are_apart,
    /// Waiting for one device's default stream does not wait for a blocking stream of another device.
    blocking_streams_of_others,
    /// A list of streams with the per-thread handle, which means another stream in each thread, is refused and nothing has
    /// changed.
    the_per_thread_handle_is_refused,
}

/// Starts work on a device's default stream, on the unit at this address, `times` times as long as the shortest work. Calls
/// `act` with an event behind the work that has not completed yet.
#[allow(unsafe_code)]
pub(super) fn start_default<B: TestKit>(
    subject: &Subject<B>,
    (device, at): (DeviceId, Address),
    times: u32,
    act: impl FnOnce(&dyn Event),
) {
    let mut event = or_skip(subject.backend.event(device));
    let mut rounds = rounds(subject) * times;
    for _ in 0..4 {
        let (unit, stream) = (subject.unit(), Stream::DEFAULT);
        // SAFETY: the unit is mapped for the device until a call that must wait for the work, or the case waits itself.
        or_skip(unsafe { subject.backend.start_pattern_on(device, stream, at, unit, AFTER, rounds) });
        event.record(stream).unwrap();
        if !event.is_done().unwrap() {
            return act(&*event);
        }
        rounds *= 2;
    }
    panic!("{rounds} rounds of work end at once, too fast to check anything")
}

fn the_default_stream_of_each_device<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    // Short work can end before the call returns if this thread is not scheduled; longer work follows.
    for (device, times) in [(b, 1), (b, 4), (b, 16), (a, 1)] {
        let mut region = subject.region(2).access(b, RW).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        start_default(subject, (device, region.address()), times, |event| {
            region.unmap(Bytes::ZERO, subject.unit(), streams_idle(&[Stream::DEFAULT])).unwrap();
            assert!(event.is_done().unwrap(), "unmapped before the work of {device} had ended");
        });
    }
}

fn the_only_device_with_access<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = subject.two_devices();
    for times in [1, 4, 16] {
        let mut region = subject.region(2).on(b).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        start_default(subject, (b, region.address()), times, |event| {
            region.unmap(Bytes::ZERO, subject.unit(), idle()).unwrap();
            assert!(event.is_done().unwrap(), "unmapped before the work of {b} had ended");
        });
    }
}

fn default_streams_are_apart<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(2).on(b).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let mut went_on = false;
    // Work that has already ended when the event is queried shows nothing.
    for times in [1, 2, 4, 8] {
        start_default(subject, (b, region.address()), times, |event| {
            subject.backend.synchronize_stream(a, Stream::DEFAULT).unwrap();
            went_on |= !event.is_done().unwrap();
            subject.backend.synchronize_stream(b, Stream::DEFAULT).unwrap();
            assert!(event.is_done().unwrap());
        });
    }
    assert!(went_on, "waiting for {a}'s default stream also waited for {b}'s");
}

fn the_per_thread_handle_is_refused<B: TestKit>(subject: &Subject<B>) {
    let Some(stream) = subject.backend.per_thread_stream() else {
        skip("this backend has no handle for the per-thread default stream");
    };
    let memory = subject.memory(1);
    let mut region = mapped(subject, &memory);
    for streams in [&[stream][..], &[Stream::DEFAULT, stream]] {
        refused!(
            region.unmap(Bytes::ZERO, subject.unit(), streams_idle(streams)),
            Detail::Unsupported { .. },
            "per-thread default stream",
            "pass a stream"
        );
        assert_eq!(region.mapped(), subject.unit());
    }
    // The thread may wait for its own per-thread default stream.
    subject.backend.synchronize_stream(subject.device, stream).unwrap();
}

#[allow(unsafe_code)]
fn blocking_streams_of_others<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let blocking = or_skip(subject.backend.blocking_stream(b));
    let mut region = subject.region(2).on(b).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let mut event = or_skip(subject.backend.event(b));
    goes_on(subject, |times| {
        let (unit, at, rounds) = (subject.unit(), region.address(), rounds(subject) * times);
        // SAFETY: the unit is mapped until the work has been waited for.
        or_skip(unsafe { subject.backend.start_pattern_on(b, blocking.stream(), at, unit, AFTER, rounds) });
        event.record(blocking.stream()).unwrap();
        subject.backend.synchronize_stream(a, Stream::DEFAULT).unwrap();
        let went_on = !event.is_done().unwrap();
        event.wait().unwrap();
        went_on
    });
}
