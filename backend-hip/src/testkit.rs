//! The test kit: writes and checks of a pattern, walks along a list, and plain allocations for comparison.
//!
//! Kernels do the work if they can be compiled, which not every machine with HIP can; otherwise copies through the host
//! do it.
#![allow(unsafe_code)] // calls into HIP

mod graph;

use crate::backend::HipBackend;
use crate::driver::Driver;
use crate::ffi::{hipError_t, hipStreamDefault, hipStreamNonBlocking};
use crate::kernels::Grid;
use crate::stream::{OwnStream, needed, raw};
use gpu_vmm_core::testkit::{
    CaptureMode, Count, Graph, PATTERN_WORD, TestKit, Walked, WorkStream, count_wrong_words, round_seeds,
    write_pattern_words,
};
use gpu_vmm_core::{Address, Bytes, Detail, DeviceId, Error, Operation, Result, Stream};

/// The size of one copy: enough for a copy engine's full speed.
const CHUNK: Bytes = Bytes::mib(16);

/// Splits the memory into chunks: the number of a chunk's first word, its address, its length in words.
fn chunks(at: Address, length: Bytes) -> impl Iterator<Item = (u64, Address, usize)> {
    (0..length.0).step_by(CHUNK.0 as usize).map(move |offset| {
        let size = CHUNK.0.min(length.0 - offset);
        (offset / PATTERN_WORD.0, at + Bytes(offset), (size / PATTERN_WORD.0) as usize)
    })
}

/// Allocates host memory for the longest chunk.
fn buffer(length: Bytes) -> Vec<u64> {
    vec![0; (CHUNK.min(length).0 / PATTERN_WORD.0) as usize]
}

impl HipBackend {
    /// Returns why a device writes and checks the pattern by copies; `None` if kernels do it.
    ///
    /// The first call compiles the kernels, which takes most of a second.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], [`Detail::Forked`], or HIP's error.
    pub fn no_kernels_because(&self, device: DeviceId) -> Result<Option<&str>> {
        let kernels = self.driver.kernels(Operation::CompileKernels, device)?;
        Ok(kernels.as_ref().err().map(String::as_str))
    }

    /// # Safety
    ///
    /// As for [`TestKit::write_pattern`].
    unsafe fn write_by_copies(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        let mut words = buffer(length);
        for (first, to, count) in chunks(at, length) {
            let words = &mut words[..count];
            write_pattern_words(words, seed, first);
            // SAFETY: a part of the memory that is mapped and writable, as the caller promises.
            unsafe { self.driver.copy_from_host(device, to, bytemuck::cast_slice(words)) }?;
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`TestKit::count_wrong`].
    unsafe fn count_by_copies(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        let mut words = buffer(length);
        let (mut looked_at, mut wrong) = (0, 0);
        for (first, from, count) in chunks(at, length) {
            let words = &mut words[..count];
            // SAFETY: a part of the memory that is mapped and readable, as the caller promises.
            unsafe { self.driver.copy_to_host(device, bytemuck::cast_slice_mut(words), from) }?;
            looked_at += words.len() as u64;
            wrong += count_wrong_words(words, seed, first);
        }
        Count::compare(Operation::CheckPattern, length.0 / PATTERN_WORD.0, looked_at, wrong)
    }

    /// Follows the list from node to node, with one copy per node.
    ///
    /// # Safety
    ///
    /// As for [`TestKit::walk_list`].
    unsafe fn walk_by_copies(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        let mut walked = Walked::default();
        let mut at = head;
        while at.0 != 0 && walked.nodes < most {
            let mut node = [0u64; 2];
            // SAFETY: a node, which is mapped and readable, as the caller promises.
            unsafe { self.driver.copy_to_host(device, bytemuck::cast_slice_mut(&mut node), at) }?;
            let [next, value] = node;
            walked = Walked { nodes: walked.nodes + 1, sum: walked.sum.wrapping_add(value) };
            at = Address(next);
        }
        Ok(walked)
    }
}

impl TestKit for HipBackend {
    /// The answer for device 0; devices of other architectures may differ.
    fn pattern_by(&self) -> &'static str {
        match self.driver.kernels(Operation::CompileKernels, DeviceId(0)) {
            Ok(Ok(_)) => "a kernel",
            Ok(Err(_)) | Err(_) => "copies",
        }
    }

    fn reports_faults(&self) -> bool {
        true
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        const OPERATION: Operation = Operation::WritePattern;
        let Ok(kernels) = self.driver.kernels(OPERATION, device)? else {
            // SAFETY: the caller's promise.
            return unsafe { self.write_by_copies(device, at, length, seed) };
        };
        let words = length.0 / PATTERN_WORD.0;
        let _current = self.driver.on(OPERATION, device)?;
        // SAFETY: the kernel takes address, count and seed, and writes only the words that the caller promises.
        unsafe { self.driver.run(OPERATION, kernels, kernels.write_pattern, words, &mut [at.0, words, seed]) }
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        const OPERATION: Operation = Operation::CheckPattern;
        let Ok(kernels) = self.driver.kernels(OPERATION, device)? else {
            // SAFETY: the caller's promise.
            return unsafe { self.count_by_copies(device, at, length, seed) };
        };
        let words = length.0 / PATTERN_WORD.0;
        let work = |counted: Address| {
            let parameters = &mut [at.0, words, seed, counted.0];
            // SAFETY: the kernel takes address, count, seed and two words for its counts, and reads only the words that
            // the caller promises.
            unsafe { self.driver.run(OPERATION, kernels, kernels.count_wrong, words, parameters) }
        };
        let count = Count::begin();
        let ended = self.driver.answer_of(OPERATION, device, count.start(), work)?;
        count.end(OPERATION, words, ended)
    }

    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        const OPERATION: Operation = Operation::WalkList;
        let Ok(kernels) = self.driver.kernels(OPERATION, device)? else {
            // SAFETY: the caller's promise.
            return unsafe { self.walk_by_copies(device, head, most) };
        };
        let walk = |walked: Address| {
            let parameters = &mut [head.0, most, walked.0];
            // SAFETY: the kernel takes the first node, the maximum number of nodes and the address of the result; the
            // caller promises that it can follow the list.
            unsafe { self.driver.run(OPERATION, kernels, kernels.walk_list, 1, parameters) }
        };
        let written = self.driver.answer_of(OPERATION, device, Walked::UNWRITTEN, walk)?;
        Walked::written(OPERATION, written)
    }

    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        const OPERATION: Operation = Operation::CreateStream;
        self.exists(OPERATION, device)?;
        Ok(Box::new(OwnStream::new(OPERATION, &self.driver, device, hipStreamNonBlocking)?))
    }

    fn blocking_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        const OPERATION: Operation = Operation::CreateStream;
        self.exists(OPERATION, device)?;
        Ok(Box::new(OwnStream::new(OPERATION, &self.driver, device, hipStreamDefault)?))
    }

    unsafe fn begin_capture(&self, device: DeviceId, stream: Stream<'_>, mode: CaptureMode) -> Result<()> {
        self.exists(Operation::BeginCapture, device)?;
        // SAFETY: the promise is the same.
        unsafe { graph::begin(&self.driver, device, stream, mode) }
    }

    fn end_capture(&self, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
        self.exists(Operation::EndCapture, device)?;
        graph::end(&self.driver, device, stream)
    }

    unsafe fn start_pattern_on(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::WritePattern;
        let kernels = self.driver.kernels(OPERATION, device)?.as_ref();
        let kernels = kernels
            .map_err(|reason| Error::new(OPERATION, Detail::Unsupported { reason: reason.clone() }))?;
        let words = length.0 / PATTERN_WORD.0;
        let _current = self.driver.on(OPERATION, device)?;
        let grid = Grid::slow(raw(stream));
        for seed in round_seeds(seed, rounds) {
            let parameters = &mut [at.0, words, seed];
            // SAFETY: as in `write_pattern`; the stream belongs to the device, as the caller promises.
            unsafe { self.driver.launch(OPERATION, kernels, kernels.write_pattern, grid, parameters) }?;
        }
        Ok(())
    }
}

impl Driver {
    /// Runs work that writes a few words of device memory, and returns the words. They are set to `before` first, by a
    /// copy from the host, so that work that did not run can be recognized.
    fn answer_of<const N: usize>(
        &self,
        operation: Operation,
        device: DeviceId,
        before: [u64; N],
        work: impl FnOnce(Address) -> Result<()>,
    ) -> Result<[u64; N]> {
        let mut words = before;
        let size = Bytes(size_of_val(&words) as u64);
        let _current = self.on(operation, device)?;
        let at = self.allocate_plain(operation, device, size)?;
        // SAFETY: the words are device memory, allocated above.
        let answered = unsafe { self.copy_from_host(device, at, bytemuck::cast_slice(&before)) }
            .and_then(|()| work(at))
            // SAFETY: as above.
            .and_then(|()| unsafe { self.copy_to_host(device, bytemuck::cast_slice_mut(&mut words), at) });
        // SAFETY: allocated above, and the work has finished.
        let freed = unsafe { self.free_plain(operation, device, at, size) };
        answered.and(freed).map(|()| words)
    }
}

impl WorkStream for OwnStream {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: the stream lives as long as the borrow.
        unsafe { Stream::from_raw(self.raw().cast()) }
    }

    fn is_done(&self) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryStream;
        let query = needed(OPERATION, "hipStreamQuery", self.driver.hip.hipStreamQuery)?;
        let _current = self.enter(OPERATION)?;
        let _relaxed = self.driver.relax(OPERATION)?;
        // SAFETY: the stream is alive.
        let code = unsafe { query(self.raw()) };
        match self.driver.check(OPERATION, "hipStreamQuery", code, || format!("stream {:p}", self.raw())) {
            Err(_) if code == hipError_t::hipErrorNotReady => Ok(false),
            answer => answer.map(|()| true),
        }
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
