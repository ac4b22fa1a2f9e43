//! Moving a region to another device's memory while its addresses stay.

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

/// The chosen device and another one, which may lack access to each other's memory. Skips the case if there is no other.
pub(crate) fn two<B: TestKit>(subject: &Subject<B>) -> (DeviceId, DeviceId) {
    let usable = subject.backend.devices().iter().filter(|device| device.unusable.is_none());
    match usable.map(|device| device.id).find(|id| *id != subject.device) {
        Some(other) => (subject.device, other),
        None => skip(format!("the {} backend has one usable device", subject.backend.vendor())),
    }
}

/// A region with one mapping of the chosen device's memory for each number of granules, filled with the pattern.
fn filled<B: TestKit>(subject: &Subject<B>, pieces: &[u64]) -> Region<B> {
    let mut region = subject.space(16).build().unwrap();
    for granules in pieces {
        region.grow_to(region.end() + subject.granules(*granules)).unwrap();
    }
    let end = region.end();
    subject.write(&mut region, Bytes(0), end, SEED);
    region
}

/// The device of each mapping's memory.
fn owners<B: TestKit>(region: &Region<B>) -> Vec<DeviceId> {
    region.mappings().map(|mapping| mapping.memory.device()).collect()
}

/// Checks that the device reads the pattern in the whole region.
#[track_caller]
fn check<B: TestKit>(region: &Region<B>, device: DeviceId) {
    assert_eq!(
        region.count_wrong(device, Bytes(0), region.end(), SEED).unwrap(),
        0,
        "words that differ as {device} reads them"
    );
}

/// Each path by which bytes can move.
fn ways<B: TestKit>(ring: &StagingRing<B>) -> [MovePath<'_, B>; 3] {
    [MovePath::Fastest(None), MovePath::Fastest(Some(ring)), MovePath::Ring(ring)]
}
