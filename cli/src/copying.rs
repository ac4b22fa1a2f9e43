//! The same growth without virtual memory management: allocate, copy, free the old memory.
//!
//! The calls are unsafe, because no record protects plain allocations.
#![allow(unsafe_code)]

use crate::machine;
use crate::pattern::each_piece;
use crate::progress::Progress;
use crate::steps::Steps;
use gpu_vmm::{Address, AnyBackend, Backend as _, Bytes, CopyCalls, DeviceId, MemoryCalls, Result, Vendor};
use gpu_vmm_testkit::TestKit;
use std::time::{Duration, Instant};

/// The result of growing by copying.
#[derive(Debug)]
pub(crate) enum Copying {
    /// All steps were made.
    Done {
        /// The time of allocating, copying and freeing alone.
        time: Duration,
        /// The number of 8-byte words that differ from the pattern.
        wrong_words: u64,
    },
    /// There is not enough memory for the old and the new copy.
    NoRoom(String),
}

/// Makes the steps with plain allocations.
pub(crate) fn measure(
    backend: &AnyBackend,
    device: DeviceId,
    steps: Steps,
    progress: &mut Progress,
) -> Result<Copying> {
    let (need, free) = (steps.most_with_a_copy(), machine::free(backend, device)?);
    if need > free {
        return Ok(Copying::NoRoom(format!(
            "the old and the new copy need {}, but only {} are free",
            crate::output::about(need),
            crate::output::about(free)
        )));
    }
    progress.begin("copying, for comparison", steps.to);
    match grow(backend, device, steps, progress) {
        Err(error) if error.is_out_of_memory() => Ok(Copying::NoRoom(error.to_string())),
        answer => answer,
    }
}

fn grow(backend: &AnyBackend, device: DeviceId, steps: Steps, progress: &mut Progress) -> Result<Copying> {
    let mut time = Duration::ZERO;
    let mut memory: Option<Plain<'_>> = None;
    for size in steps.sizes() {
        let (larger, taken) = match memory.take() {
            None => Plain::new(backend, device, size)?,
            Some(old) => old.copied_to(size)?,
        };
        time += taken;
        let from = larger.filled;
        memory = Some(larger.fill(from, progress)?);
    }
    let wrong_words = match memory {
        Some(memory) => memory.count_wrong(progress)?,
        None => 0,
    };
    Ok(Copying::Done { time, wrong_words })
}

/// A plain allocation; dropping it frees it.
struct Plain<'a> {
    backend: &'a AnyBackend,
    device: DeviceId,
    at: Address,
    size: Bytes,
    /// The size of the part that holds the pattern.
    filled: Bytes,
}

impl<'a> Plain<'a> {
    /// Allocates memory. Returns the time as well.
    fn new(backend: &'a AnyBackend, device: DeviceId, size: Bytes) -> Result<(Self, Duration)> {
        let start = Instant::now();
        let at = backend.allocate_plain(device, size)?;
        Ok((Self { backend, device, at, size, filled: Bytes::ZERO }, start.elapsed()))
    }

    /// Returns a larger allocation with the same bytes, and frees the old one. Returns the time as well.
    fn copied_to(self, size: Bytes) -> Result<(Self, Duration)> {
        let (mut larger, time) = Plain::new(self.backend, self.device, size)?;
        if self.backend.vendor() == Vendor::Host {
            // The kernel's time for the pages counts on neither side.
            // SAFETY: the allocation has at least `filled` bytes, and no other code uses it.
            unsafe { self.backend.fill(self.device, larger.at, self.filled, 0) }?;
        }
        let start = Instant::now();
        // SAFETY: both are allocations of this device, of at least `filled` bytes, and no other code uses them.
        unsafe { self.backend.copy(self.device, larger.at, self.at, self.filled) }?;
        larger.filled = self.filled;
        drop(self);
        Ok((larger, time + start.elapsed()))
    }

    /// Writes the pattern from `from` to the end.
    fn fill(mut self, from: Bytes, progress: &Progress) -> Result<Self> {
        each_piece(from, self.size, progress, |offset, length, seed| {
            // SAFETY: the piece lies in the allocation.
            unsafe { self.backend.write_pattern(self.device, self.at + offset, length, seed) }?;
            Ok(0)
        })?;
        self.filled = self.size;
        Ok(self)
    }

    fn count_wrong(&self, progress: &mut Progress) -> Result<u64> {
        progress.begin("checking the copy", self.size);
        each_piece(Bytes::ZERO, self.size, progress, |offset, length, seed| {
            // SAFETY: the piece lies in the allocation.
            unsafe { self.backend.count_wrong(self.device, self.at + offset, length, seed) }
        })
    }
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        // SAFETY: this allocation has this address and size, and is freed once, here. If the driver refuses,
        // the memory is freed with the process, which is about to end.
        let _ = unsafe { self.backend.free_plain(self.device, self.at, self.size) };
    }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;
    use crate::steps::Increment;
    use gpu_vmm::Granularity;
    use gpu_vmm::host::HostConfig;

    #[test]
    fn copying_needs_room_for_two() {
        let backend: AnyBackend = HostConfig::new().memory(Bytes::mib(16)).open().unwrap().into();
        let device = DeviceId(0);
        let measure = |to| {
            let granularity = Granularity::new(Bytes::mib(2)).unwrap();
            let steps = Steps::new(Bytes::mib(2), to, Increment::Double, granularity);
            measure(&backend, device, steps, &mut Progress::new(false)).unwrap()
        };
        let answer = measure(Bytes::mib(10));
        let Copying::NoRoom(reason) = answer else { panic!("{answer:?}") };
        assert_eq!(reason, "the old and the new copy need 18 MiB, but only 16 MiB are free");

        let answer = measure(Bytes::mib(8));
        let Copying::Done { time, wrong_words: 0 } = answer else { panic!("{answer:?}") };
        assert!(time > Duration::ZERO);
        assert_eq!(backend.memory_info(device).unwrap().free, Bytes::mib(16), "all of it has been freed");
    }
}
