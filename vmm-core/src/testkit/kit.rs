//! The test kit of a backend: a pattern that a device writes and checks to prove that a mapping works, and plain allocations for
//! comparison. For the command, benchmarks and tests.
#![allow(unsafe_code)]

mod graph;

pub use graph::{CaptureMode, Graph};

use crate::driver::{Backend, Stream};
use crate::memory::PhysicalMemory;
use crate::types::{Address, Bytes, Detail, DeviceId, Error, Operation, Result};
use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns word `index` of the pattern of a seed.
///
/// Neighbouring words, and the same word under another seed, differ in about half of their bits, so that a check detects a part
/// that is mapped at a wrong address.
///
/// Kernels compute the same.
#[must_use]
pub const fn pattern_word(seed: u64, index: u64) -> u64 {
    let mixed = seed.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 32)
}

/// The size of one word of the pattern.
pub const PATTERN_WORD: Bytes = Bytes(size_of::<u64>() as u64);

/// Writes the words of the pattern from word `first` on.
pub fn write_pattern_words(words: &mut [u64], seed: u64, first: u64) {
    for (word, index) in words.iter_mut().zip(first..) {
        *word = pattern_word(seed, index);
    }
}

/// Returns the number of words that differ from the pattern from word `first` on.
#[must_use]
pub fn count_wrong_words(words: &[u64], seed: u64, first: u64) -> u64 {
    words.iter().zip(first..).filter(|(word, index)| **word != pattern_word(seed, *index)).count() as u64
}

/// The counters of a pattern check: [`WORDS`](Count::WORDS) words in a device's memory, to which a kernel adds the number of
/// words that it checked and the number of those that are wrong.
///
/// A kernel that never ran, or that checked too few words, must not pass for memory without wrong words. So both counters begin
/// with a number with which no other count of the process begins, and the result is compared with it.
#[derive(Debug)]
pub struct Count {
    start: u64,
}

impl Count {
    /// The number of words of a count.
    pub const WORDS: usize = 2;

    /// Begins a count.
    #[must_use]
    pub fn begin() -> Self {
        static COUNTS: AtomicU64 = AtomicU64::new(1);
        // Far apart and never 0, so that the words of an earlier count, of a fill or of an empty page are not a valid result.
        Self { start: pattern_word(COUNTS.fetch_add(1, Ordering::Relaxed), 0) }
    }

    /// Returns the initial value of the two words.
    #[must_use]
    pub const fn start(&self) -> [u64; Self::WORDS] {
        [self.start; Self::WORDS]
    }

    /// Returns the number of wrong words, computed from the two words after a kernel had to check `words` words.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if the kernel checked another number of words.
    pub fn end(self, operation: Operation, words: u64, ended: [u64; Self::WORDS]) -> Result<u64> {
        let [looked_at, wrong] = ended.map(|word| word.wrapping_sub(self.start));
        Self::compare(operation, words, looked_at, wrong)
    }

    /// Returns `wrong` for a check without a kernel, if it checked all `words` words.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if it checked another number of words.
    pub fn compare(operation: Operation, words: u64, looked_at: u64, wrong: u64) -> Result<u64> {
        if looked_at == words && wrong <= words {
            return Ok(wrong);
        }
        let counted = if looked_at <= words { looked_at.to_string() } else { "an unknown number".to_owned() };
        let what = format!(
            "the check of {words} words looked at {counted} of them: its kernel did not run, or not to its end"
        );
        Err(Error::new(operation, Detail::DriverContractViolated { what }))
    }
}

/// Returns the seeds for the rounds of [`TestKit::start_pattern`]: all different, the last one `seed` itself.
pub fn round_seeds(seed: u64, rounds: u32) -> impl Iterator<Item = u64> {
    (0..u64::from(rounds)).rev().map(move |left| seed.wrapping_add(left))
}

/// Returns the backend's handle of memory, for driver calls outside of the library.
///
/// The library does not record an export by such a call ([`PhysicalMemory::is_exported`]): it would suspend the memory, and
/// poison it when it is freed, although another process holds it.
///
/// # Panics
///
/// Panics for a plain allocation, which has no handle.
#[must_use]
#[allow(clippy::expect_used)]
pub fn handle_of<B: Backend>(memory: &PhysicalMemory<B>) -> &B::Handle {
    memory.handle(Operation::ExportMemory).expect("memory with a handle")
}

/// The result of walking a linked list in a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walked {
    /// The number of nodes.
    pub nodes: u64,
    /// The wrapping sum of their values.
    pub sum: u64,
}

impl Walked {
    /// The initial value of the two words for a kernel's result: no list has that number of nodes.
    pub const UNWRITTEN: [u64; 2] = [u64::MAX; 2];

    /// Returns the result that a kernel has written: nodes and sum.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if the kernel has not overwritten [`UNWRITTEN`](Self::UNWRITTEN).
    pub fn written(operation: Operation, [nodes, sum]: [u64; 2]) -> Result<Self> {
        if nodes == u64::MAX {
            let what = "the walk wrote no result: its kernel did not run".to_owned();
            return Err(Error::new(operation, Detail::DriverContractViolated { what }));
        }
        Ok(Self { nodes, sum })
    }
}

/// A stream for tests, with the work that is queued on it.
///
/// It waits for no other stream, and no other stream waits for it, unless an [`Event`](crate::Event) connects them. Dropping it
/// waits until its work is done.
pub trait WorkStream: Debug + Send + Sync {
    /// Returns the stream.
    fn stream(&self) -> Stream<'_>;

    /// Reports whether the device has finished all work on the stream. CUDA: `cuStreamQuery`; HIP: `hipStreamQuery`.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn is_done(&self) -> Result<bool>;

    /// Returns the context that was created for the stream and ends with it, for a stream of
    /// [`stream_elsewhere`](TestKit::stream_elsewhere). CUDA: `CUcontext`.
    fn context(&self) -> Option<*mut c_void> {
        None
    }
}

/// Patterns, streams, captures and plain allocations of a backend. Every backend of this project implements it.
pub trait TestKit: Backend {
    /// Returns how [`write_pattern`](TestKit::write_pattern) and [`count_wrong`](TestKit::count_wrong) access the memory, in a
    /// few words: `a kernel`, `copies`.
    fn pattern_by(&self) -> &'static str;

    /// Returns true if a copy or a kernel that accesses memory without the right to do so returns an error, loses its device, or is
    /// ended by the driver's own handler.
    ///
    /// By default false: the process may end in any way, as it does where the CPU is the device. Tests then make no such access.
    fn reports_faults(&self) -> bool {
        false
    }

    /// Writes the pattern from word 0 on by the device itself, and waits. `length` is a multiple of [`PATTERN_WORD`].
    ///
    /// # Safety
    ///
    /// The memory is mapped and `device` may write all of it.
    ///
    /// # Errors
    ///
    /// The driver's error.
    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()>;

    /// Returns the number of words of the memory that differ from the pattern, counted by the device itself.
    ///
    /// # Safety
    ///
    /// The memory is mapped and `device` may read all of it.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if not all words were checked ([`Count`]), or the driver's error.
    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64>;

    /// Walks a linked list by the device itself: one thread follows the addresses in it and stops after `most` nodes.
    ///
    /// A node is two words: the address of the next node, 0 in the last one, and a value.
    ///
    /// # Safety
    ///
    /// `head` and the first word of every node are 0 or the address of a node. All nodes are aligned to words and mapped, and
    /// `device` may read them.
    ///
    /// # Errors
    ///
    /// The driver's error.
    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked>;

    /// Creates a stream of a device, without work.
    ///
    /// CUDA: `cuStreamCreate` with `CU_STREAM_NON_BLOCKING`; HIP: `hipStreamCreateWithFlags` with `hipStreamNonBlocking`; host
    /// memory: a queue with a thread.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the backend has no such streams: by default, always. [`Detail::NoSuchDevice`], or the driver's
    /// error.
    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.device(Operation::CreateStream, device)?;
        graph::absent(Operation::CreateStream, "streams of its own")
    }

    /// Creates a stream that waits for the default stream of its context, and for which that stream waits. CUDA:
    /// `cuStreamCreate`; HIP: `hipStreamCreate`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the backend has no such streams, [`Detail::NoSuchDevice`], or the driver's error.
    fn blocking_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.device(Operation::CreateStream, device)?;
        graph::absent(Operation::CreateStream, "blocking streams")
    }

    /// Creates a stream as [`own_stream`](TestKit::own_stream) does, in another context of the device, which is created for it
    /// (`cuCtxCreate`) and destroyed with it.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if devices have only one context, [`Detail::NoSuchDevice`], or the driver's error.
    fn stream_elsewhere(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.device(Operation::CreateContext, device)?;
        graph::absent(Operation::CreateContext, "contexts of its own")
    }

    /// Calls `act` while the [context](WorkStream::context) of a stream is the current context of the calling thread.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for a stream without such a context, or the driver's error.
    fn in_context_of(&self, stream: &dyn WorkStream, act: &mut dyn FnMut()) -> Result<()> {
        let _ = (stream, act);
        graph::absent(Operation::EnterContext, "contexts of its own")
    }

    /// Opens the driver with the [context](WorkStream::context) of a stream for the device.
    ///
    /// # Safety
    ///
    /// The stream outlives the new backend and all that is made with it.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for a stream without such a context, or the driver's error.
    unsafe fn open_in_context_of(&self, device: DeviceId, stream: &dyn WorkStream) -> Result<Self> {
        let _ = stream;
        self.device(Operation::Open, device)?;
        graph::absent(Operation::Open, "contexts of its own")
    }

    /// Returns the handle that means another stream in each thread, if the vendor has one.
    fn per_thread_stream(&self) -> Option<Stream<'static>> {
        graph::per_thread_stream(self.vendor())
    }

    /// Begins to capture a stream of `device`: work that is queued on it goes into a graph. CUDA: `cuStreamBeginCapture`; HIP:
    /// `hipStreamBeginCapture`.
    ///
    /// # Safety
    ///
    /// The capture is ended with [`end_capture`](TestKit::end_capture) before the stream is dropped, by the same thread unless
    /// the mode is [`Relaxed`](CaptureMode::Relaxed).
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the backend has no graphs, or the driver's error.
    unsafe fn begin_capture(&self, device: DeviceId, stream: Stream<'_>, mode: CaptureMode) -> Result<()> {
        let _ = (stream, mode);
        self.device(Operation::BeginCapture, device)?;
        graph::absent(Operation::BeginCapture, "graphs")
    }

    /// Ends a capture and makes the graph ready to launch. CUDA: `cuStreamEndCapture` and `cuGraphInstantiate`; HIP:
    /// `hipStreamEndCapture` and `hipGraphInstantiate`.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] if a forbidden call has invalidated the capture, which has then ended as well; else the driver's
    /// error.
    fn end_capture(&self, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
        let _ = stream;
        self.device(Operation::EndCapture, device)?;
        graph::absent(Operation::EndCapture, "graphs")
    }

    /// Queues `rounds` writes of the pattern on a stream, one [seed](round_seeds) after the other, and returns at once.
    ///
    /// Few threads do the work, so that it takes long and leaves the device free for other work. Until the last round has ended,
    /// some of the memory does not contain the pattern of `seed`.
    ///
    /// Some hundred rounds can wait on a stream; with more, CUDA makes the caller wait.
    ///
    /// # Safety
    ///
    /// That of [`write_pattern`](TestKit::write_pattern), until the work is done. The stream is one of
    /// [`own_stream`](TestKit::own_stream) for this device, or another stream of the device, on CUDA of any context. If the
    /// stream is being captured, the promise holds for each launch of the graph.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the backend queues no work: by default, always. [`Detail::ForeignStream`] for another device's
    /// stream if the backend detects it, or the driver's error.
    unsafe fn start_pattern_on(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<()> {
        let _ = (stream, at, length, seed, rounds);
        self.device(Operation::WritePattern, device)?;
        graph::absent(Operation::WritePattern, "work on streams")
    }

    /// Queues the writes of [`start_pattern_on`](TestKit::start_pattern_on) on a new stream. After an error that stream is
    /// dropped, which waits for its work.
    ///
    /// # Safety
    ///
    /// That of [`write_pattern`](TestKit::write_pattern), until the work is done.
    ///
    /// # Errors
    ///
    /// Those of [`own_stream`](TestKit::own_stream) and [`start_pattern_on`](TestKit::start_pattern_on).
    unsafe fn start_pattern(
        &self,
        device: DeviceId,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<Box<dyn WorkStream>> {
        let own = self.own_stream(device)?;
        // SAFETY: the caller promises it, and the stream is one of the device.
        unsafe { self.start_pattern_on(device, own.stream(), at, length, seed, rounds) }?;
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_last_round_has_the_seed() {
        let seeds: Vec<u64> = round_seeds(u64::MAX, 3).collect();
        assert_eq!(seeds, [1, 0, u64::MAX]);
        assert_eq!(round_seeds(7, 1).collect::<Vec<_>>(), [7]);
        let mut words = [0; 64];
        write_pattern_words(&mut words, 0, 0);
        assert_eq!(count_wrong_words(&words, u64::MAX, 0), 64, "no word is the same one round later");
    }

    #[test]
    fn only_complete_counts_have_an_end() {
        let after = |looked_at: u64, wrong: u64| {
            let count = Count::begin();
            let [a, b] = count.start();
            count.end(Operation::CheckPattern, 8, [a.wrapping_add(looked_at), b.wrapping_add(wrong)])
        };
        assert_eq!(after(8, 0).unwrap(), 0);
        assert_eq!(after(8, 3).unwrap(), 3);
        for (looked_at, wrong) in [(0, 0), (7, 0), (9, 0), (7, 7), (8, 9), (u64::MAX, 0)] {
            let error = after(looked_at, wrong).unwrap_err();
            assert!(
                matches!(error.detail(), Detail::DriverContractViolated { .. })
                    && error.operation() == Operation::CheckPattern,
                "{looked_at} {wrong}: {error}"
            );
        }
        assert!(after(7, 0).unwrap_err().to_string().contains("looked at 7 of them"));
    }

    #[test]
    fn earlier_count_leaves_no_end() {
        let first = Count::begin();
        let [looked_at, wrong] = first.start();
        let left = [looked_at.wrapping_add(8), wrong];
        assert_eq!(first.end(Operation::CheckPattern, 8, left).unwrap(), 0);
        for left in [left, [0; 2], [8, 0], Count::begin().start()] {
            assert!(Count::begin().end(Operation::CheckPattern, 8, left).is_err(), "{left:?}");
        }
        let walked = Walked::written(Operation::WalkList, [0, 5]).unwrap();
        assert_eq!(walked, Walked { nodes: 0, sum: 5 });
        assert!(Walked::written(Operation::WalkList, Walked::UNWRITTEN).is_err());
        // A kernel that has not run has checked all of zero words.
        let none = Count::begin();
        let start = none.start();
        assert_eq!(none.end(Operation::CheckPattern, 0, start).unwrap(), 0);
    }
}
