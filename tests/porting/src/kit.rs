//! The test kit: the CPU is the device, so plain loops are its kernels.

use crate::Tiny;
use gpu_vmm::testkit::{PATTERN_WORD, TestKit, Walked, count_wrong_words, write_pattern_words};
use gpu_vmm::{Address, Bytes, DeviceId, Result};

/// Returns the memory as words.
///
/// # Safety
///
/// The memory is mapped, and the device may read and write all of it.
unsafe fn words<'a>(at: Address, length: Bytes) -> &'a mut [u64] {
    // SAFETY: the caller guarantees it, and any bytes are a `u64`.
    unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), (length.0 / PATTERN_WORD.0) as usize) }
}

impl TestKit for Tiny {
    fn pattern_by(&self) -> &'static str {
        "the CPU"
    }

    unsafe fn write_pattern(&self, _: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        write_pattern_words(unsafe { words(at, length) }, seed, 0);
        Ok(())
    }

    unsafe fn count_wrong(&self, _: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        Ok(count_wrong_words(unsafe { words(at, length) }, seed, 0))
    }

    unsafe fn walk_list(&self, _: DeviceId, mut head: Address, most: u64) -> Result<Walked> {
        let mut walked = Walked::default();
        while head.0 != 0 && walked.nodes < most {
            let [next, value] = unsafe { head.as_ptr::<[u64; 2]>().read() };
            walked = Walked { nodes: walked.nodes + 1, sum: walked.sum.wrapping_add(value) };
            head = Address(next);
        }
        Ok(walked)
    }
}
