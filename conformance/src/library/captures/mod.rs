//! Captures: the library's behavior while a stream's work is recorded into a graph.
//!
//! A device cannot be waited for while one of its streams captures, and the attempt invalidates the capture. So gpu-vmm unmaps
//! nothing and keeps dropped memory. The graph that uses the memory can be launched until the memory is collected.

mod beside;
mod kept;

use crate::case::Case;
use crate::library::flights::{finish, queue};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Address, Backend, Bytes, Region, Result};
use gpu_vmm_testkit::{CaptureMode, Graph, TestKit, WorkStream};

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [kept::cases(), beside::cases()].concat()
}

/// The pattern that captured work writes.
const CAPTURED: u64 = 7 << 32;

/// The two kinds of stream: the default stream waits for a blocking stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Blocking,
    NonBlocking,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Blocking, Self::NonBlocking];

    /// Creates a stream of this kind on the chosen device.
    fn stream<B: TestKit>(self, subject: &Subject<B>) -> Box<dyn WorkStream> {
        or_skip(match self {
            Self::Blocking => subject.backend.blocking_stream(subject.device),
            Self::NonBlocking => subject.backend.own_stream(subject.device),
        })
    }
}

/// Calls `act` for every capture mode on streams of these kinds.
fn in_all_modes<B: TestKit>(
    subject: &Subject<B>,
    kinds: &[Kind],
    mut act: impl FnMut(&dyn WorkStream, Kind, CaptureMode),
) {
    for kind in kinds {
        let stream = kind.stream(subject);
        CaptureMode::ALL.iter().for_each(|mode| act(&*stream, *kind, *mode));
    }
}

/// Announces a capture to the backend until this value is dropped.
pub(crate) struct Announced<'a, B: Backend>(&'a B);

impl<'a, B: Backend> Announced<'a, B> {
    pub(crate) fn new(backend: &'a B) -> Self {
        backend.deferred().capture_begins();
        Self(backend)
    }
}

impl<B: Backend> Drop for Announced<'_, B> {
    fn drop(&mut self) {
        self.0.deferred().capture_ends();
    }
}

/// Begins a capture, which the case must end on this thread. Skips the case if the driver lacks graphs.
#[allow(unsafe_code)]
fn begin<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream, mode: CaptureMode) {
    // Not when the work is queued: a capture would stay open.
    subject.needs_kernels();
    // SAFETY: the callers end the capture, as the function requires.
    or_skip(unsafe { subject.backend.begin_capture(subject.device, stream.stream(), mode) });
}

/// Begins a capture with work on the first unit of a region.
fn begin_with_work<B: TestKit>(
    subject: &Subject<B>,
    stream: &dyn WorkStream,
    mode: CaptureMode,
    region: &Region<B>,
) {
    begin(subject, stream, mode);
    queue(subject, stream, (region, Bytes::ZERO), CAPTURED, 2);
}

fn end<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream) -> Result<Box<dyn Graph>> {
    subject.backend.end_capture(subject.device, stream.stream())
}

/// Launches a graph and waits for it. Checks that the unit at an address has the captured pattern only afterwards.
#[allow(unsafe_code)]
fn launch<B: TestKit>(subject: &Subject<B>, graph: &dyn Graph, stream: &dyn WorkStream, at: Address) {
    // SAFETY: the unit is mapped, or the case checks exactly that; if it is not, this process ends.
    let wrong =
        || unsafe { subject.backend.count_wrong(subject.device, at, subject.unit(), CAPTURED).unwrap() };
    assert_ne!(wrong(), 0, "captured work has run");
    // SAFETY: as above, until the stream has been waited for.
    unsafe { graph.launch(stream.stream()) }.unwrap();
    finish(subject, stream);
    assert_eq!(wrong(), 0, "words that the graph should have written");
}

/// Creates a region of one unit that contains a pattern other than the captured one.
fn region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    region.write_pattern(subject.device, Bytes::ZERO, subject.unit(), 1).unwrap();
    region
}

/// Checks that free memory is unchanged, except for what graphs use: AMD's runtime stores their arguments there.
#[track_caller]
fn assert_free<B: TestKit>(subject: &Subject<B>, had: Bytes, when: &str) {
    let has = subject.free_here();
    assert!(has.0.abs_diff(had.0) < subject.unit().0, "{has} of memory are free, and were {had}: {when}");
}

/// Returns the size of the memory that the backend keeps.
fn kept<B: Backend>(backend: &B) -> Bytes {
    backend.deferred().kept()
}
