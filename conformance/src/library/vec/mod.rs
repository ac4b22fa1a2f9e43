//! A typed vector that grows in place.

mod elements;
mod memory;

use crate::case::Case;
use crate::subject::Subject;
use gpu_vmm_core::DeviceVec;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [elements::cases(), memory::cases()].concat()
}

/// An empty vector with addresses for `granules` granules.
fn empty<T: bytemuck::Pod, B: TestKit>(subject: &Subject<B>, granules: u64) -> DeviceVec<T, B> {
    DeviceVec::build(subject.space(granules)).unwrap()
}

/// The number of elements that fill `granules` granules.
fn count<T, B: TestKit>(subject: &Subject<B>, granules: u64) -> usize {
    subject.granules(granules).0 as usize / size_of::<T>()
}
