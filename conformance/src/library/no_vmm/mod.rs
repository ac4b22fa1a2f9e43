//! Devices without virtual memory management: regions and pools are plain allocations, which are copied to grow.
//!
//! The suite runs this group on such devices alone, and no other group there.

mod failing;
mod pools;
mod refused;
mod regions;
mod waits;

use crate::case::Case;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, Growth, GrowthKind, Operation, Region};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [regions::cases(), waits::cases(), refused::cases(), failing::cases(), pools::cases()].concat()
}

/// Returns why a case cannot run on a device: cases of this group run on devices without virtual memory management alone, and all
/// others on devices that have it.
pub(crate) fn unsuited(backend: &impl Backend, device: DeviceId, case: &str) -> Option<String> {
    let described = backend.device(Operation::QueryDevice, device).ok()?;
    match (&described.no_virtual_memory, case.starts_with("no_vmm::")) {
        (None, true) => Some(format!("{device} has virtual memory management")),
        (Some(reason), false) => Some(format!("{device} has no virtual memory management: {reason}")),
        _ => None,
    }
}

/// A region of one unit with the pattern of a seed.
fn filled<B: TestKit>(subject: &Subject<B>, seed: u64) -> Region<B> {
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    subject.write(&mut region, Bytes(0), subject.unit(), seed);
    region
}

/// Grows a region, and checks that it moved to other addresses.
fn grow<B: TestKit>(region: &mut Region<B>, size: Bytes) -> Growth {
    let (before, end) = (region.address(), region.end());
    let growth = region.grow_to(size).unwrap();
    let right = Growth { how: GrowthKind::Copied, address: region.address(), end: size, added: size - end };
    assert_eq!(growth, right);
    // The old memory is there until the new one has its contents.
    assert_ne!(region.address(), before);
    has_one_allocation(region, size);
    growth
}

/// Checks that the region's records describe one allocation.
fn has_one_allocation<B: TestKit>(region: &Region<B>, size: Bytes) {
    assert!(region.is_plain());
    assert_eq!((region.end(), region.mapped(), region.reserved()), (size, size, size));
    let mappings: Vec<_> = region.mappings().map(|one| (one.offset, one.length, one.poisoned)).collect();
    assert_eq!(mappings, [(Bytes(0), size, false)]);
    assert!(region.address() != Address(0) && region.address().is_aligned_to(region.granularity().bytes()));
    assert_eq!(region.reservations().collect::<Vec<_>>(), [region.range()]);
}

/// Shrinks a region, and returns the size of the memory that it released.
fn shrink<B: TestKit>(region: &mut Region<B>, size: Bytes) -> Bytes {
    let shrunk = region.shrink_to(size, idle()).unwrap();
    assert_eq!(shrunk.end, region.end());
    shrunk.removed
}
