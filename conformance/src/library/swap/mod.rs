//! Two regions that exchange the memory behind their addresses.

mod contents;
mod order;
mod refused;

use crate::case::Case;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Bytes, PhysicalMemory, Region};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [contents::cases(), order::cases(), refused::cases()].concat()
}

/// The seeds of two regions, so far apart that no word of one pattern is in the other.
const SEEDS: [u64; 2] = [1, 1 << 40];

/// A region with one mapping for each number of granules, one behind the other, which the chosen device may read and write,
/// filled with the pattern of a seed.
fn filled<B: TestKit>(subject: &Subject<B>, pieces: &[u64], seed: u64) -> Region<B> {
    let pieces: Vec<PhysicalMemory<B>> = pieces.iter().map(|granules| subject.piece(*granules)).collect();
    let size: Bytes = pieces.iter().map(PhysicalMemory::size).sum();
    let mut region =
        Region::builder(&subject.backend).on(subject.device).reserve(size + size).build().unwrap();
    for piece in &pieces {
        let offset = region.end();
        region.map(offset, piece).unwrap();
    }
    region.set_access(Bytes(0), size, subject.device, RW).unwrap();
    subject.write(&mut region, Bytes(0), size, seed);
    region
}

/// The offsets and lengths of a region's mappings, in granules.
fn cuts<B: TestKit>(subject: &Subject<B>, region: &Region<B>) -> Vec<(u64, u64)> {
    let granule = subject.granularity().0;
    region.mappings().map(|mapping| (mapping.offset.0 / granule, mapping.length.0 / granule)).collect()
}
