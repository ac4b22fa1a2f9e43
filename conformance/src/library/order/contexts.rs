//! Work in another context than the backend's own. On CUDA, a wait for the backend's context does not cover it.

use super::in_flight::{AFTER, check, mapped};
use crate::case::cases;
use crate::library::flights::{finish, goes_on, start_on};
use crate::library::tools::{idle, streams_idle};
use crate::peer::Peer;
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Bytes, Detail, Error, Region, Result, Stream, WaitFor};
use gpu_vmm_testkit::{TestKit, WorkStream};

cases! { "order":
    /// Unmapping, shrinking, closing and dropping wait for work in the calling thread's current context.
    the_current_context_is_waited_for,
    /// Unmapping, shrinking, closing and dropping wait for work in a context that another backend was opened with.
    an_attached_context_is_waited_for,
    /// Work in another backend's context is still waited for after a further such backend has been dropped.
    other_attached_contexts_are_waited_for,
    /// Waiting for a device does not wait for another device whose context is the calling thread's current one.
    the_current_context_of_another_device,
    /// A backend that was opened with a context waits for work in the primary context that other backends use.
    the_usual_context_is_waited_for,
    /// Waiting for the default stream covers the default stream of a context that another backend was opened with.
    all_contexts_default_streams_are_awaited,
    /// An event on the default stream completes after the work on the default stream of a context that another backend was
    /// opened with.
    events_cover_all_contexts_default_streams,
    /// A context that dies is lost only for the backend that was opened with it; other backends wait for the rest of the
    /// device.
    another_context_dies with loses_another_context,
}

/// A way to take memory away that waits for the devices first.
type TakeAway<B> = fn(Region<B>, Bytes);

/// All ways to take memory away.
fn ways<B: TestKit>() -> [(&'static str, TakeAway<B>); 4] {
    [
        ("unmap", |mut region, length| region.unmap(Bytes::ZERO, length, idle()).unwrap()),
        ("shrink", |mut region, _| {
            let _ = region.shrink_to(Bytes::ZERO, idle()).unwrap();
        }),
        ("close", |region, _| region.close(idle()).unwrap()),
        ("drop", |region, _| drop(region)),
    ]
}

/// A stream in a separate context. Skips the case if a device has only one context.
fn elsewhere<B: TestKit>(subject: &Subject<B>) -> Box<dyn WorkStream> {
    or_skip(subject.backend.stream_elsewhere(subject.device))
}

/// A backend that uses the context of this stream.
#[allow(unsafe_code)]
fn attached<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream) -> Subject<B> {
    // SAFETY: the cases drop the stream last.
    let backend = or_skip(unsafe { subject.backend.open_in_context_of(subject.device, stream) });
    subject.of(backend, subject.device)
}

/// Takes memory away in every way while work on a stream uses it, on a thread that `inside` prepares.
fn take_away<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream, inside: impl Fn(&mut dyn FnMut())) {
    for (way, act) in ways::<B>() {
        let memory = subject.memory(1);
        let region = mapped(subject, &memory);
        start_on(subject, stream, (&region, Bytes::ZERO), AFTER, 1);
        let mut region = Some(region);
        inside(&mut || act(region.take().unwrap(), subject.unit()));
        assert!(stream.is_done().unwrap(), "{way}: taken away before the work had ended");
        check(subject, &mapped(subject, &memory), Bytes::ZERO);
    }
}

fn the_current_context_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    let stream = elsewhere(subject);
    take_away(subject, &*stream, |act| subject.backend.in_context_of(&*stream, act).unwrap());
}

fn an_attached_context_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    let stream = elsewhere(subject);
    let other = attached(subject, &*stream);
    take_away(subject, &*stream, |act| act());
    drop(other);
}

fn other_attached_contexts_are_waited_for<B: TestKit>(subject: &Subject<B>) {
    let (ended, stream) = (elsewhere(subject), elsewhere(subject));
    let other = attached(subject, &*stream);
    drop(attached(subject, &*ended));
    // Another backend of the same context has ended.
    drop(attached(subject, &*stream));
    take_away(subject, &*stream, |act| act());
    drop(other);
}

fn the_current_context_of_another_device<B: TestKit>(subject: &Subject<B>) {
    let (_, other) = subject.two_devices();
    let stream = elsewhere(subject);
    let region = mapped(subject, &subject.memory(1));
    goes_on(subject, |times| {
        start_on(subject, &*stream, (&region, Bytes::ZERO), AFTER, times);
        let wait = &mut || {
            subject.backend.synchronize(other).unwrap();
            subject.backend.synchronize_stream(other, Stream::DEFAULT).unwrap();
        };
        subject.backend.in_context_of(&*stream, wait).unwrap();
        let went_on = !stream.is_done().unwrap();
        finish(subject, &*stream);
        went_on
    });
}

fn the_usual_context_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    let (stream, own) = (elsewhere(subject), subject.backend.own_stream(subject.device).unwrap());
    let other = attached(subject, &*stream);
    take_away(&other, &*own, |act| act());
    drop(other);
}

/// Takes memory away with a wait for the default stream while work on the default stream of another context uses it.
fn take_away_from_default<B: TestKit>(subject: &Subject<B>, act: impl FnOnce(Region<B>)) {
    let stream = elsewhere(subject);
    let other = attached(subject, &*stream);
    let memory = subject.memory(1);
    let region = mapped(subject, &memory);
    super::streams::start_default(&other, (subject.device, region.address()), 1, |_| act(region));
    // If the memory was taken away too early, the work has faulted or is still running.
    check(subject, &mapped(subject, &memory), Bytes::ZERO);
    drop(other);
}

fn all_contexts_default_streams_are_awaited<B: TestKit>(subject: &Subject<B>) {
    take_away_from_default(subject, |region| {
        region.close(streams_idle(&[Stream::DEFAULT])).unwrap();
    });
}

#[allow(unsafe_code)]
fn events_cover_all_contexts_default_streams<B: TestKit>(subject: &Subject<B>) {
    take_away_from_default(subject, |region| {
        let mut event = subject.backend.event(subject.device).unwrap();
        event.record(Stream::DEFAULT).unwrap();
        event.wait().unwrap();
        // SAFETY: the event is done, and all work was recorded before it, as this case checks.
        region.close(unsafe { WaitFor::nothing() }).unwrap();
    });
}

fn another_context_dies<B: TestKit>(subject: &Subject<B>) {
    elsewhere(subject);
    subject.child().finish();
}

#[allow(unsafe_code)]
fn loses_another_context<B: TestKit>(subject: &Subject<B>, _: &Peer) {
    let (backend, device) = (&subject.backend, subject.device);
    let stream = elsewhere(subject);
    let other = attached(subject, &*stream);
    let mut region = mapped(subject, &subject.memory(1));
    let unmapped = region.address() + subject.unit();
    // SAFETY: nothing is mapped in the second unit; the fault is intended.
    or_skip(unsafe { backend.start_pattern_on(device, stream.stream(), unmapped, subject.unit(), AFTER, 1) });
    let is_lost =
        |answer: Result<()>| matches!(answer.as_ref().map_err(Error::detail), Err(Detail::DeviceLost { .. }));
    assert!(is_lost(backend.synchronize_stream(device, stream.stream())));
    assert!(is_lost(other.backend.synchronize(device)));
    if is_lost(region.fill(Bytes::ZERO, subject.unit(), 1)) {
        skip("when a context dies, all contexts of its device are lost");
    }
    backend.synchronize(device).unwrap();
    backend.synchronize_stream(device, Stream::DEFAULT).unwrap();
    region.close(idle()).unwrap();
}
