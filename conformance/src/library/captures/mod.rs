//! Captures: what the library does while a stream's work goes into a graph.
//!
//! While a stream captures, its device cannot be waited for, and the attempt spoils the capture. So nothing is unmapped, what is
//! dropped is kept, and the graph that uses it can be launched until the memory is collected.
//!
//! | file | subject |
//! |---|---|
//! | `kept` | what is dropped, closed or unmapped during a capture |
//! | `beside` | calls that go on beside a capture and do not disturb it |

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

/// What the captured work writes.
const CAPTURED: u64 = 7 << 32;

/// Whether the default stream waits for a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Blocking,
    NonBlocking,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Blocking, Self::NonBlocking];

    /// A stream of this kind on the chosen device.
    fn stream<B: TestKit>(self, subject: &Subject<B>) -> Box<dyn WorkStream> {
        or_skip(match self {
            Self::Blocking => subject.backend.blocking_stream(subject.device),
            Self::NonBlocking => subject.backend.own_stream(subject.device),
        })
    }
}

/// Calls `act` for every mode of a capture on streams of these kinds.
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

/// A capture that the backend has been told of, until this is dropped.
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

/// Begins a capture, which the case ends on this thread. Ends the case if there are no graphs.
#[allow(unsafe_code)]
fn begin<B: TestKit>(subject: &Subject<B>, stream: &dyn WorkStream, mode: CaptureMode) {
    // SAFETY: the promise of whoever calls this is the same.
    or_skip(unsafe { subject.backend.begin_capture(subject.device, stream.stream(), mode) });
}

/// The same with work on the first unit of a region.
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

/// Launches a graph and waits for it; then the unit at an address has what was captured, and had not before.
#[allow(unsafe_code)]
fn launch<B: TestKit>(subject: &Subject<B>, graph: &dyn Graph, stream: &dyn WorkStream, at: Address) {
    // SAFETY: cases launch while the unit is mapped, which is what they look at; it ends its process if it is not.
    let wrong =
        || unsafe { subject.backend.count_wrong(subject.device, at, subject.unit(), CAPTURED).unwrap() };
    assert_ne!(wrong(), 0, "captured work has run");
    // SAFETY: as above, until the stream has been waited for.
    unsafe { graph.launch(stream.stream()) }.unwrap();
    finish(subject, stream);
    assert_eq!(wrong(), 0, "words that the graph should have written");
}

/// A region of one unit with something else in it than what is captured.
fn region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    region.write_pattern(subject.device, Bytes::ZERO, subject.unit(), 1).unwrap();
    region
}

/// The device has as much free memory as it had, but for what graphs take: AMD's runtime has their arguments there.
#[track_caller]
fn assert_free<B: TestKit>(subject: &Subject<B>, had: Bytes, when: &str) {
    let has = subject.free_here();
    assert!(has.0.abs_diff(had.0) < subject.unit().0, "{has} of memory are free, and were {had}: {when}");
}

/// How much the backend keeps.
fn kept<B: Backend>(backend: &B) -> Bytes {
    backend.deferred().kept()
}
