//! Another device's memory behind the same addresses.
//!
//! | file | subject |
//! |---|---|
//! | `bytes` | what is where afterwards, whichever way it went |
//! | `access` | who may use it, and what growth brings |
//! | `refused` | what cannot be moved, and what a failure leaves |

mod access;
mod bytes;
mod refused;

use crate::case::Case;
use crate::subject::{Subject, skip};
use gpu_vmm_core::{Bytes, DeviceId, MovePath, Region, StagingRing};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [bytes::cases(), access::cases(), refused::cases()].concat()
}

const SEED: u64 = 4000;

/// The chosen device and another one, which need not reach each other's memory, or the end of the case.
fn two<B: TestKit>(subject: &Subject<B>) -> (DeviceId, DeviceId) {
    let usable = subject.backend.devices().iter().filter(|device| device.unusable.is_none());
    match usable.map(|device| device.id).find(|id| *id != subject.device) {
        Some(other) => (subject.device, other),
        None => skip(format!("the {} backend has one usable device", subject.backend.vendor())),
    }
}

/// A region with mappings of so many granules of the chosen device's memory, and the pattern.
fn filled<B: TestKit>(subject: &Subject<B>, pieces: &[u64]) -> Region<B> {
    let mut region = subject.space(16).build().unwrap();
    for granules in pieces {
        region.grow_to(region.end() + subject.granules(*granules)).unwrap();
    }
    let end = region.end();
    subject.write(&mut region, Bytes(0), end, SEED);
    region
}

/// Whose memory is where.
fn owners<B: TestKit>(region: &Region<B>) -> Vec<DeviceId> {
    region.mappings().map(|mapping| mapping.memory.device()).collect()
}

/// The device finds the pattern in all of the region.
#[track_caller]
fn check<B: TestKit>(region: &Region<B>, device: DeviceId) {
    assert_eq!(region.count_wrong(device, Bytes(0), region.end(), SEED).unwrap(), 0, "as {device} sees it");
}

/// Each way in which bytes can go.
fn ways<B: TestKit>(ring: &StagingRing<B>) -> [MovePath<'_, B>; 3] {
    [MovePath::Fastest(None), MovePath::Fastest(Some(ring)), MovePath::Ring(ring)]
}
