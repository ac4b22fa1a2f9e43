//! How an importer releases a region on request, and memory that has left the region.

use super::channels::{SOON, channel_from, channel_to, receive, share, shareable_region};
use crate::case::cases;
use crate::leaks;
use crate::library::failures::injected;
use crate::library::sharing::or_cannot_share;
use crate::library::tools::idle;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::GrowthKind;
use gpu_vmm_share::{Event, ImportOptions, ImportedRegion, ReleaseOutcome};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "share":
    /// Several release requests of an exporter reach the importer as one event, and later events follow.
    asked_more_than_once with is_asked_once,
    /// An importer that fails to close its region reports that it keeps the memory.
    what_is_not_released with cannot_release,
    /// An importer that applies a change no longer holds memory that has left the region.
    what_left_is_released with holds_what_is_left,
    /// An importer that detaches its region tells the exporter that it keeps the memory.
    what_is_detached with detaches,
}

fn asked_more_than_once<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1, 1]);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    for _ in 0..3 {
        exporter.request_release().unwrap();
    }
    let _ = region.shrink_to(subject.unit(), idle()).unwrap();
    exporter.publish(&region).unwrap();
    exporter.wait_applied(SOON).unwrap();
    drop(exporter);
    child.finish();
}

fn is_asked_once<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::ReleaseRequested));
    let event = imported.next(SOON).unwrap();
    assert!(matches!(event, Some(Event::Changed(change)) if change.end == subject.unit()), "{event:?}");
    imported.apply(idle()).unwrap();
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

/// Imports a region of two pieces on a backend with fault injection that counts its handles.
fn receive_two<B: TestKit>(
    subject: &Subject<B>,
    peer: &Peer,
) -> (FaultInject<B>, ImportedRegion<FaultInject<B>>) {
    let backend = FaultInject::new(subject.backend.clone());
    let imported = or_cannot_share(subject, ImportOptions::new().receive(&backend, channel_from(peer)));
    imported.region().mappings().for_each(|_| leaks::counts_import());
    assert_eq!(backend.live().handles, 2);
    (backend, imported)
}

fn what_is_not_released<B: TestKit>(subject: &Subject<B>) {
    let region = shareable_region(subject, &[1, 1]);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    assert_eq!(exporter.wait_released(SOON).unwrap(), ReleaseOutcome::Kept);
    child.finish();
}

fn cannot_release<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (backend, imported) = receive_two(subject, peer);
    backend.fail(0, 1);
    let error = imported.release(idle()).unwrap_err();
    backend.stop();
    assert_eq!(injected(&error), Some(0), "{error}");
    assert_eq!(backend.live().handles, 0, "the destructor has not closed the region");
}

fn what_left_is_released<B: TestKit>(subject: &Subject<B>) {
    let mut region = shareable_region(subject, &[1, 1]);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    let _ = region.shrink_to(subject.unit(), idle()).unwrap();
    exporter.publish(&region).unwrap();
    exporter.wait_applied(SOON).unwrap();
    drop(exporter);
    child.finish();
}

fn holds_what_is_left<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (backend, mut imported) = receive_two(subject, peer);
    let event = imported.next(SOON).unwrap();
    assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
    assert_eq!(imported.apply(idle()).unwrap(), GrowthKind::Within);
    assert_eq!((backend.live().handles, backend.live().mappings), (1, 1));
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn what_is_detached<B: TestKit>(subject: &Subject<B>) {
    let region = shareable_region(subject, &[1, 1]);
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    assert_eq!(exporter.wait_released(SOON).unwrap(), ReleaseOutcome::Kept);
    child.finish();
}

fn detaches<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let imported = receive(subject, ImportOptions::new(), channel_from(peer));
    assert_eq!(imported.detach().end(), subject.units(2));
}
