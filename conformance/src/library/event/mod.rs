//! Events, which mark positions in the work of streams, and the test kit's own streams.

mod holds;
mod marks;
mod refused;
mod streams;

use crate::case::Case;
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Bytes, DeviceId, Event, Region, Stream};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [marks::cases(), holds::cases(), streams::cases(), refused::cases()].concat()
}

/// Creates an event on the chosen device.
fn event<B: TestKit>(subject: &Subject<B>) -> Box<dyn Event> {
    event_on(subject, subject.device)
}

/// Creates an event on any device.
fn event_on<B: TestKit>(subject: &Subject<B>, device: DeviceId) -> Box<dyn Event> {
    or_skip(subject.backend.event(device))
}

/// The default stream.
#[allow(unsafe_code)]
fn default() -> Stream<'static> {
    // SAFETY: null is the default stream of all vendors.
    unsafe { Stream::from_raw(std::ptr::null_mut()) }
}

/// Creates a region with `units` units of the chosen device's memory, which contain no pattern.
fn region<B: TestKit>(subject: &Subject<B>, units: u64) -> Region<B> {
    let mut region = subject.region(units).build().unwrap();
    region.grow_to(subject.units(units)).unwrap();
    region.fill(Bytes::ZERO, region.end(), 0).unwrap();
    region
}
