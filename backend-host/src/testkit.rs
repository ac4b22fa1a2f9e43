//! The test kit: patterns that the CPU writes and counts in plain loops, and plain allocations for comparison.
#![allow(unsafe_code)]

use crate::backend::HostBackend;
use crate::capture::Waiting;
use crate::host::Host;
use crate::work::{Pattern, Work};
use crate::{stream, stream_names};
use gpu_vmm_core::testkit::{
    CaptureMode, Count, Graph, PATTERN_WORD, TestKit, Walked, WorkStream, count_wrong_words, round_seeds,
    write_pattern_words,
};
use gpu_vmm_core::{
    Access, Address, AddressRange, Bytes, Detail, DeviceId, Error, Granularity, Operation, Result, Stream,
};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

impl HostBackend {
    /// Returns the number of words in the range, if `device` has `need` access to all of them.
    fn words(
        &self,
        operation: Operation,
        device: DeviceId,
        at: Address,
        length: Bytes,
        need: Access,
    ) -> Result<usize> {
        check_words(operation, at, length)?;
        self.0.after_default_stream(operation, device)?;
        self.0.check_access(operation, device, at, length, need)?;
        Ok((length.0 / PATTERN_WORD.0) as usize)
    }
}

impl TestKit for HostBackend {
    fn pattern_by(&self) -> &'static str {
        "the CPU"
    }

    fn reports_faults(&self) -> bool {
        true
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        let count = self.words(Operation::WritePattern, device, at, length, Access::ReadWrite)?;
        if count > 0 {
            // SAFETY: the memory is aligned, mapped, and may be written, as was checked; no other code uses it meanwhile by the
            // caller's promise, and any bytes are a `u64`.
            write_pattern_words(unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), count) }, seed, 0);
        }
        Ok(())
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        const OPERATION: Operation = Operation::CheckPattern;
        let count = self.words(OPERATION, device, at, length, Access::Read)?;
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: as above, for reading.
        let words = unsafe { std::slice::from_raw_parts(at.as_ptr(), count) };
        let wrong = count_wrong_words(words, seed, 0);
        Count::compare(OPERATION, length.0 / PATTERN_WORD.0, words.len() as u64, wrong)
    }

    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        let mut walked = Walked::default();
        let mut at = head;
        while at.0 != 0 && walked.nodes < most {
            self.words(Operation::WalkList, device, at, Bytes(2 * PATTERN_WORD.0), Access::Read)?;
            // SAFETY: two words that are aligned, mapped, and may be read, as was checked.
            let [next, value] = unsafe { at.as_ptr::<[u64; 2]>().read() };
            walked.nodes += 1;
            walked.sum = walked.sum.wrapping_add(value);
            at = Address(next);
        }
        Ok(walked)
    }

    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        own_stream(&self.0, device, false)
    }

    fn blocking_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        own_stream(&self.0, device, true)
    }

    /// Ignores the mode: in every mode a capture forbids only waiting for captured work.
    unsafe fn begin_capture(&self, device: DeviceId, stream: Stream<'_>, _: CaptureMode) -> Result<()> {
        let operation = Operation::BeginCapture;
        let name = stream::on(&self.0, operation, device, stream)?;
        self.0.queues.begin_capture(operation, device, name)
    }

    fn end_capture(&self, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
        let operation = Operation::EndCapture;
        let name = stream::on(&self.0, operation, device, stream)?;
        let work = self.0.queues.end_capture(operation, name)?;
        Ok(Box::new(HostGraph { host: Arc::clone(&self.0), device, work }))
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
        let operation = Operation::WritePattern;
        let name = stream::on(&self.0, operation, device, stream)?;
        check_words(operation, at, length)?;
        self.0.queues.check_alive(operation, device)?;
        if at.checked_add(length).is_none() {
            return Err(Error::new(operation, Detail::Overflow { base: at.0, length: length.0 }));
        }
        let (range, seeds) = (AddressRange { base: at, size: length }, round_seeds(seed, rounds).collect());
        self.0.queues.push(
            operation,
            device,
            name,
            Work::Pattern(Pattern { device, range, seeds, write: write_pattern_words }),
        )
    }
}

fn own_stream(host: &Arc<Host>, device: DeviceId, is_blocking: bool) -> Result<Box<dyn WorkStream>> {
    host.device_memory(Operation::CreateStream, device)?;
    let name = stream_names::new_name(device);
    if is_blocking {
        host.queues.make_blocking(Operation::CreateStream, device, name)?;
    }
    Ok(Box::new(HostStream { host: Arc::clone(host), name }))
}

#[derive(Debug)]
struct HostStream {
    host: Arc<Host>,
    name: usize,
}

impl WorkStream for HostStream {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: a stream of this backend, alive as long as it is borrowed; its name is never dereferenced.
        unsafe { Stream::from_raw(without_provenance_mut(self.name)) }
    }

    fn is_done(&self) -> Result<bool> {
        let operation = Operation::QueryStream;
        let queues = &self.host.queues;
        queues.check_waiting(operation, Waiting::Stream(self.name))?;
        let is_done = queues.place(operation, self.name)?.is_none();
        queues.check_alive(operation, stream_names::device_of(self.name))?;
        Ok(is_done)
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.host.queues.remove(self.name);
    }
}

/// Captured work.
#[derive(Debug)]
struct HostGraph {
    host: Arc<Host>,
    device: DeviceId,
    work: Vec<Work>,
}

impl Graph for HostGraph {
    unsafe fn launch(&self, stream: Stream<'_>) -> Result<()> {
        let operation = Operation::LaunchGraph;
        let name = stream::on(&self.host, operation, self.device, stream)?;
        self.host.queues.check_alive(operation, self.device)?;
        self.work
            .iter()
            .try_for_each(|work| self.host.queues.push(operation, self.device, name, work.clone()))
    }
}

/// Refuses ranges that are not whole words.
fn check_words(operation: Operation, at: Address, length: Bytes) -> Result<()> {
    for (what, value) in [("address", at.0), ("length", length.0)] {
        if let Some(granularity) = Granularity::new(PATTERN_WORD)
            && !granularity.divides(Bytes(value))
        {
            return Err(Error::new(operation, Detail::Unaligned { what, value, granularity }));
        }
    }
    Ok(())
}
