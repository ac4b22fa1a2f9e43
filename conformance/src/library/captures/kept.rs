//! Dropping, closing and unmapping during a capture.

use super::{Announced, Kind, assert_free, begin_with_work, end, in_all_modes, kept, launch, region};
use crate::case::cases;
use crate::library::flights::own;
use crate::library::tools::idle;
use crate::subject::{Subject, skip};
use gpu_vmm_core::{Bytes, Detail, Error, Region, Result, Stream, Vendor};
use gpu_vmm_testkit::TestKit;

cases! { "captures":
    /// A region dropped during an announced capture stays mapped, so that the graph can be launched; the capture ends well, and
    /// collecting releases the memory.
    dropped_when_announced,
    /// Closing a region during an announced capture returns an error, and the region is kept as if it were dropped.
    closed_when_announced,
    /// Releasing a region without waiting keeps its memory until it is collected.
    released_later,
    /// Unmapping and shrinking during an announced capture return an error, change nothing, and do not invalidate the capture.
    unmapped_when_announced,
    /// A capture on a blocking stream need not be announced: waiting is refused, dropped memory is kept, and the capture ends
    /// well.
    a_blocking_capture_is_seen,
    /// Making the default stream wait for an event while a blocking stream captures returns an error, and the capture continues.
    a_default_stream_is_not_held,
    /// An unannounced capture on a non-blocking stream is invalidated by the first wait at most; dropped memory is not lost.
    unannounced,
}

fn is_capturing<T>(result: Result<T>) -> bool {
    matches!(result.map(drop).as_ref().map_err(Error::detail), Err(Detail::Capturing { .. }))
}

/// Ends regions of one unit in some way during announced captures, and launches the graph that uses the memory.
fn end_during_captures<B: TestKit>(subject: &Subject<B>, finish: impl Fn(Region<B>)) {
    let backend = &subject.backend;
    in_all_modes(subject, &Kind::ALL, |stream, kind, mode| {
        let (before, free) = (kept(backend), subject.free_here());
        let region = region(subject);
        let (at, full) = (region.address(), subject.free_here());
        let announced = Announced::new(backend);
        begin_with_work(subject, stream, mode, &region);
        finish(region);
        assert_eq!(kept(backend), before + subject.unit(), "{kind:?} {mode:?}");
        let graph = end(subject, stream).unwrap_or_else(|error| panic!("{kind:?} {mode:?}: {error}"));
        assert_free(subject, full, "memory was released before the wait");
        launch(subject, &*graph, stream, at);
        drop((graph, announced));
        assert_eq!(backend.deferred().collect(backend).unwrap(), subject.unit());
        assert_eq!(kept(backend), before, "{kind:?} {mode:?}");
        assert_free(subject, free, "everything was collected");
    });
}

fn dropped_when_announced<B: TestKit>(subject: &Subject<B>) {
    end_during_captures(subject, drop);
}

fn closed_when_announced<B: TestKit>(subject: &Subject<B>) {
    end_during_captures(subject, |region| assert!(is_capturing(region.close(idle()))));
}

fn released_later<B: TestKit>(subject: &Subject<B>) {
    end_during_captures(subject, Region::release_later);
}

fn unmapped_when_announced<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    in_all_modes(subject, &Kind::ALL, |stream, kind, mode| {
        let (before, mut region) = (kept(backend), region(subject));
        let at = region.address();
        let announced = Announced::new(backend);
        begin_with_work(subject, stream, mode, &region);
        assert!(is_capturing(region.unmap(Bytes::ZERO, subject.unit(), idle())), "{kind:?} {mode:?}");
        assert!(is_capturing(region.shrink_to(Bytes::ZERO, idle())), "{kind:?} {mode:?}");
        assert_eq!((region.mapped(), kept(backend)), (subject.unit(), before));
        let graph = end(subject, stream).unwrap_or_else(|error| panic!("{kind:?} {mode:?}: {error}"));
        launch(subject, &*graph, stream, at);
        drop(announced);
        region.unmap(Bytes::ZERO, subject.unit(), idle()).unwrap();
    });
}

fn a_blocking_capture_is_seen<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    if backend.vendor() != Vendor::Cuda {
        skip("only NVIDIA's driver reports a capture that was not announced");
    }
    in_all_modes(subject, &[Kind::Blocking], |stream, _, mode| {
        let (before, free) = (kept(backend), subject.free_here());
        let (mut stays, goes) = (region(subject), region(subject));
        let at = goes.address();
        begin_with_work(subject, stream, mode, &goes);
        assert!(is_capturing(stays.unmap(Bytes::ZERO, subject.unit(), idle())), "{mode:?}");
        assert_eq!(stays.mapped(), subject.unit());
        drop(goes);
        assert_eq!(kept(backend), before + subject.unit(), "{mode:?}");
        assert!(is_capturing(backend.deferred().collect(backend)), "{mode:?}");
        let graph = end(subject, stream).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        launch(subject, &*graph, stream, at);
        drop(stays);
        drop(graph);
        backend.deferred().collect(backend).unwrap();
        assert_eq!((kept(backend), subject.free_here()), (before, free), "{mode:?}");
    });
}

fn a_default_stream_is_not_held<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    if backend.vendor() != Vendor::Cuda {
        skip("only NVIDIA's driver reports a capture that was not announced");
    }
    let mut event = backend.event(subject.device).unwrap();
    event.record(own(subject).stream()).unwrap();
    in_all_modes(subject, &[Kind::Blocking], |stream, _, mode| {
        let region = region(subject);
        begin_with_work(subject, stream, mode, &region);
        assert!(is_capturing(event.hold(Stream::DEFAULT)), "{mode:?}");
        let graph = end(subject, stream).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        launch(subject, &*graph, stream, region.address());
    });
}

fn unannounced<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    in_all_modes(subject, &[Kind::NonBlocking], |stream, _, mode| {
        let (before, free) = (kept(backend), subject.free_here());
        let region = region(subject);
        begin_with_work(subject, stream, mode, &region);
        drop(region);
        let was_kept = kept(backend) > before;
        let ended = end(subject, stream);
        assert!(ended.is_ok() || is_capturing(ended), "{mode:?}: the error is not about a capture");
        backend.deferred().collect(backend).unwrap();
        assert_eq!(kept(backend), before, "{mode:?}, kept: {was_kept}");
        assert_free(subject, free, "everything was collected");
    });
}
