//! What shows that a mapping works and what it costs, beside virtual memory itself: a pattern written and checked by
//! a device, and plain allocations to compare with. For the command, benchmarks and tests.
#![allow(unsafe_code)]

mod graph;

pub use graph::{CaptureMode, Graph};

use crate::driver::{Backend, Stream};
use crate::memory::PhysicalMemory;
use crate::types::{Address, Bytes, Detail, DeviceId, Error, Operation, Result};
use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

/// The pattern's word number `index` under a seed: neighbours, and the same word under another seed, differ in
/// about half of their bits, so that a part that is mapped elsewhere than it should be is seen.
///
/// Kernels compute the same.
#[must_use]
pub const fn pattern_word(seed: u64, index: u64) -> u64 {
    let mixed = seed.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 32)
}

/// The bytes of one word of the pattern.
pub const PATTERN_WORD: Bytes = Bytes(size_of::<u64>() as u64);

/// Writes the pattern's words from number `first` on.
pub fn write_pattern_words(words: &mut [u64], seed: u64, first: u64) {
    for (word, index) in words.iter_mut().zip(first..) {
        *word = pattern_word(seed, index);
    }
}

/// How many words are not what the pattern has from number `first` on.
#[must_use]
pub fn count_wrong_words(words: &[u64], seed: u64, first: u64) -> u64 {
    words.iter().zip(first..).filter(|(word, index)| **word != pattern_word(seed, *index)).count() as u64
}

/// What a check of the pattern has counted. Its words are [`WORDS`](Count::WORDS) in a device's memory, to which a
/// kernel adds: the number of words that it looked at, and the number of those that are wrong.
///
/// A kernel that never ran, or ran over less than it was given, must not pass for a memory without wrong words. So both
/// words begin with a number that no other count of the process begins with, and the end is compared with it.
#[derive(Debug)]
pub struct Count {
    start: u64,
}

impl Count {
    /// How many words a count takes.
    pub const WORDS: usize = 2;

    /// Begins a count.
    #[must_use]
    pub fn begin() -> Self {
        static COUNTS: AtomicU64 = AtomicU64::new(1);
        // Far apart, and never 0: what an earlier count, a fill or an empty page leaves is no end of this one.
        Self { start: pattern_word(COUNTS.fetch_add(1, Ordering::Relaxed), 0) }
    }

    /// What is in the two words before the kernel adds to them.
    #[must_use]
    pub const fn start(&self) -> [u64; Self::WORDS] {
        [self.start; Self::WORDS]
    }

    /// The number of wrong words, from what is in the two words after a kernel was given `words` words to look at.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if it looked at another number of words.
    pub fn end(self, operation: Operation, words: u64, ended: [u64; Self::WORDS]) -> Result<u64> {
        let [looked_at, wrong] = ended.map(|word| word.wrapping_sub(self.start));
        Self::compare(operation, words, looked_at, wrong)
    }

    /// The same for a check that is no kernel's: `wrong`, if it looked at all `words` words.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if it looked at another number of words.
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

/// The seeds of so many rounds of [`TestKit::start_pattern`]: each another one, and the last one `seed` itself.
pub fn round_seeds(seed: u64, rounds: u32) -> impl Iterator<Item = u64> {
    (0..u64::from(rounds)).rev().map(move |left| seed.wrapping_add(left))
}

/// The backend's handle of memory, for what goes past the library. What is exported by it is not known to be
/// ([`PhysicalMemory::is_exported`]): it would be suspended, and poisoned when it is freed, though another process has it.
#[must_use]
pub fn handle_of<B: Backend>(memory: &PhysicalMemory<B>) -> &B::Handle {
    memory.handle()
}

/// What was met on a walk along a list in a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walked {
    /// How many nodes.
    pub nodes: u64,
    /// The sum of their values, without the carry.
    pub sum: u64,
}

impl Walked {
    /// What is in the two words for a kernel's answer before it writes there: no walk has met so many nodes.
    pub const UNWRITTEN: [u64; 2] = [u64::MAX; 2];

    /// What a kernel has written, nodes and sum.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if that is [`UNWRITTEN`](Self::UNWRITTEN).
    pub fn written(operation: Operation, [nodes, sum]: [u64; 2]) -> Result<Self> {
        if nodes == u64::MAX {
            let what = "the walk has written no answer: its kernel did not run".to_owned();
            return Err(Error::new(operation, Detail::DriverContractViolated { what }));
        }
        Ok(Self { nodes, sum })
    }
}

/// A stream of one's own, with the work that is on it: it waits for no other stream, nor any other for it, unless an
/// [`Event`](crate::Event) says so. Dropping it waits until its work is done.
pub trait WorkStream: Debug + Send + Sync {
    /// The stream.
    fn stream(&self) -> Stream<'_>;

    /// Whether the device has finished all that is on it. CUDA: `cuStreamQuery`, HIP: `hipStreamQuery`.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn is_done(&self) -> Result<bool>;

    /// The context that was made for the stream and ends with it, if it is one of
    /// [`stream_elsewhere`](TestKit::stream_elsewhere). CUDA: `CUcontext`.
    fn context(&self) -> Option<*mut c_void> {
        None
    }
}

/// A backend's means to show and compare; every backend of this project has them.
pub trait TestKit: Backend {
    /// How [`write_pattern`](TestKit::write_pattern) and [`count_wrong`](TestKit::count_wrong) reach the memory,
    /// in a few words: `a kernel`, `copies`.
    fn pattern_by(&self) -> &'static str;

    /// Writes the pattern from word 0 on, by the device itself, and waits. `length` is a multiple of
    /// [`PATTERN_WORD`].
    ///
    /// # Safety
    ///
    /// The memory is mapped and `device` may write all of it.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()>;

    /// How many words of the memory are not what the pattern says, counted by the device itself.
    ///
    /// # Safety
    ///
    /// The memory is mapped and `device` may read all of it.
    ///
    /// # Errors
    ///
    /// [`Detail::DriverContractViolated`] if not all words were looked at ([`Count`]), or what the driver
    /// answers.
    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64>;

    /// Walks along a linked list by the device itself, one thread that follows the addresses in it. A node is two words: the
    /// address of the next node, 0 in the last one, and a value. It stops after `most` nodes.
    ///
    /// # Safety
    ///
    /// `head` is 0 or the address of a node, and so is the first word of every node: all of them aligned to words,
    /// mapped, and `device` may read them.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked>;

    /// A stream of a device, without work. CUDA: `cuStreamCreate` with `CU_STREAM_NON_BLOCKING`, HIP:
    /// `hipStreamCreateWithFlags` with `hipStreamNonBlocking`; on host memory a queue that a thread works off.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchDevice`], or what the driver answers.
    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>>;

    /// Makes a stream that waits for the default stream of its context, and the default stream for it. CUDA:
    /// `cuStreamCreate`, HIP: `hipStreamCreate`.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the backend has no such streams,
    /// [`Detail::NoSuchDevice`], or what the driver returns.
    fn blocking_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.device(Operation::CreateStream, device)?;
        graph::absent(Operation::CreateStream, "blocking streams")
    }

    /// Makes a stream like that of [`own_stream`](TestKit::own_stream) in another context of the device, which is made for
    /// it (`cuCtxCreate`) and destroyed with it.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if a device has one context,
    /// [`Detail::NoSuchDevice`], or what the driver returns.
    fn stream_elsewhere(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.device(Operation::CreateContext, device)?;
        graph::absent(Operation::CreateContext, "contexts of its own")
    }

    /// Calls `act` while the [context](WorkStream::context) of a stream is the calling thread's current one.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for a stream without such a context, or what the driver returns.
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
    /// [`Detail::Unsupported`] for a stream without such a context, or what the driver returns.
    unsafe fn open_in_context_of(&self, device: DeviceId, stream: &dyn WorkStream) -> Result<Self> {
        let _ = stream;
        self.device(Operation::Open, device)?;
        graph::absent(Operation::Open, "contexts of its own")
    }

    /// The handle that means another stream in each thread, if the vendor has one.
    fn per_thread_stream(&self) -> Option<Stream<'static>> {
        graph::per_thread_stream(self.vendor())
    }

    /// Begins to capture a stream: work that is queued on it goes into a graph. CUDA: `cuStreamBeginCapture`, HIP:
    /// `hipStreamBeginCapture`. The stream is `device`'s.
    ///
    /// # Safety
    ///
    /// The capture is ended with [`end_capture`](TestKit::end_capture) before the stream is dropped, by the same thread unless the
    /// mode is [`Relaxed`](CaptureMode::Relaxed).
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the backend has no graphs, or what the driver returns.
    unsafe fn begin_capture(&self, device: DeviceId, stream: Stream<'_>, mode: CaptureMode) -> Result<()> {
        let _ = (stream, mode);
        self.device(Operation::BeginCapture, device)?;
        graph::absent(Operation::BeginCapture, "graphs")
    }

    /// Ends a capture, and makes the graph ready to be launched. CUDA: `cuStreamEndCapture` and `cuGraphInstantiate`, HIP:
    /// `hipStreamEndCapture` and `hipGraphInstantiate`.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] if a forbidden call has spoilt the capture; it has ended then as well. Else
    /// what the driver returns.
    fn end_capture(&self, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
        let _ = stream;
        self.device(Operation::EndCapture, device)?;
        graph::absent(Operation::EndCapture, "graphs")
    }

    /// Queues on a stream that the pattern be written so many times, one [seed](round_seeds) after the other, and returns
    /// at once. It is done by few threads, so that it takes long and leaves the device free for other work. Until the last
    /// round has ended, some of the memory has not the pattern of `seed`.
    ///
    /// Some hundred rounds can wait on a stream; CUDA makes the caller wait with more.
    ///
    /// # Safety
    ///
    /// As for [`write_pattern`](TestKit::write_pattern), until the work is done. The stream is one of
    /// [`own_stream`](TestKit::own_stream) for this device, or else a stream of the device, on CUDA of any context. If the
    /// stream captures, this promise is about each launch of the graph.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignStream`] for another device's stream where that is seen, or what the driver
    /// answers.
    unsafe fn start_pattern_on(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<()>;

    /// The same on a stream of its own, which is dropped, and with that waited for, where an error comes of it.
    ///
    /// # Safety
    ///
    /// As for [`write_pattern`](TestKit::write_pattern), until the work is done.
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
        // SAFETY: the caller's promise, and the stream is the device's own.
        unsafe { self.start_pattern_on(device, own.stream(), at, length, seed, rounds) }?;
        Ok(own)
    }

    /// Allocates without virtual memory management: `cuMemAlloc`, `hipMalloc`, `mmap`.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfMemory`], or what the driver answers.
    fn allocate_plain(&self, device: DeviceId, size: Bytes) -> Result<Address>;

    /// Gives a plain allocation back: `cuMemFree`, `hipFree`, `munmap`.
    ///
    /// # Safety
    ///
    /// The address and size are those of one [`allocate_plain`](TestKit::allocate_plain) on this device, not given
    /// back yet and not used any more.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    unsafe fn free_plain(&self, device: DeviceId, at: Address, size: Bytes) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_round_has_the_seed_and_each_other_writes_other_words() {
        let seeds: Vec<u64> = round_seeds(u64::MAX, 3).collect();
        assert_eq!(seeds, [1, 0, u64::MAX]);
        assert_eq!(round_seeds(7, 1).collect::<Vec<_>>(), [7]);
        let mut words = [0; 64];
        write_pattern_words(&mut words, 0, 0);
        assert_eq!(count_wrong_words(&words, u64::MAX, 0), 64, "no word is the same one round later");
    }

    #[test]
    fn only_a_count_of_all_words_has_an_end() {
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
    fn what_an_earlier_count_left_is_no_end() {
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
        // Nothing to look at is looked at by a kernel that has not run.
        let none = Count::begin();
        let start = none.start();
        assert_eq!(none.end(Operation::CheckPattern, 0, start).unwrap(), 0);
    }
}
