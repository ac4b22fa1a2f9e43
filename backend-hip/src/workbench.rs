//! A pattern written and checked, and plain allocations to compare with.
//!
//! The pattern goes through the host in copies: a kernel would have to be compiled for each family of GPUs, by a compiler
//! that not every machine with HIP has, or be kept here as a code object for each.
#![allow(unsafe_code)] // calls into HIP

use crate::HipBackend;
use crate::driver::Driver;
use gpu_vmm_core::workbench::{PATTERN_WORD, Workbench, count_wrong_words, write_pattern_words};
use gpu_vmm_core::{Address, Bytes, DeviceId, Result};

/// How much goes in one copy: enough for a copy engine's full speed.
const CHUNK: Bytes = Bytes::mib(16);

/// The memory in chunks: the number of the chunk's first word, its address, its length in words.
fn chunks(at: Address, length: Bytes) -> impl Iterator<Item = (u64, Address, usize)> {
    (0..length.0).step_by(CHUNK.0 as usize).map(move |offset| {
        let size = CHUNK.0.min(length.0 - offset);
        (offset / PATTERN_WORD.0, at + Bytes(offset), (size / PATTERN_WORD.0) as usize)
    })
}

/// Host memory for the longest chunk.
fn buffer(length: Bytes) -> Vec<u64> {
    vec![0; (CHUNK.min(length).0 / PATTERN_WORD.0) as usize]
}

impl Workbench for HipBackend {
    fn pattern_by(&self) -> &'static str {
        "copies"
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        let mut words = buffer(length);
        for (first, to, count) in chunks(at, length) {
            let words = &mut words[..count];
            write_pattern_words(words, seed, first);
            // SAFETY: the chunk is a part of what the caller says is mapped and writable.
            unsafe { self.driver.copy_from_host(device, to, bytemuck::cast_slice(words)) }?;
        }
        Ok(())
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        let mut words = buffer(length);
        let mut wrong = 0;
        for (first, from, count) in chunks(at, length) {
            let words = &mut words[..count];
            // SAFETY: the chunk is a part of what the caller says is mapped and readable.
            unsafe { self.driver.copy_to_host(device, bytemuck::cast_slice_mut(words), from) }?;
            wrong += count_wrong_words(words, seed, first);
        }
        Ok(wrong)
    }

    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address> {
        self.driver.allocate_plain("allocate_plain", device, size)
    }

    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free_plain("free_plain", device, at, size) }
    }
}

impl Driver {
    pub(crate) fn allocate_plain(
        &self,
        operation: &'static str,
        device: DeviceId,
        size: Bytes,
    ) -> Result<Address> {
        let _current = self.on(operation, device)?;
        let mut at = std::ptr::null_mut();
        // SAFETY: HIP writes one address.
        let code = unsafe { (self.hip.hipMalloc)(&raw mut at, size.0 as usize) };
        self.check_memory(operation, "hipMalloc", code, device, size)?;
        Ok(Address(at.expose_provenance() as u64))
    }

    /// # Safety
    ///
    /// As for [`Workbench::free_plain`].
    pub(crate) unsafe fn free_plain(
        &self,
        operation: &'static str,
        device: DeviceId,
        at: Address,
        size: Bytes,
    ) -> Result<()> {
        let _current = self.on(operation, device)?;
        // SAFETY: one of HIP's plain allocations, given back once, as the caller promises.
        let code = unsafe { (self.hip.hipFree)(at.as_ptr()) };
        self.check(operation, "hipFree", code, || format!("{size} at {at}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_once() {
        let length = Bytes(2 * CHUNK.0 + 24);
        let all: Vec<_> = chunks(Address(0x1000), length).collect();
        let words = CHUNK.0 / 8;
        assert_eq!(all[1], (words, Address(0x1000) + CHUNK, words as usize));
        assert_eq!(all[2], (2 * words, Address(0x1000) + Bytes(2 * CHUNK.0), 3));
        assert_eq!(all.len(), 3);
        assert_eq!(chunks(Address(0), Bytes::ZERO).count(), 0);
    }
}
