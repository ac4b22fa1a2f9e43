//! Page-locked memory as the host's side of a region's own copies. Drivers copy from and to such memory in another way than
//! from and to ordinary memory.
#![allow(unsafe_code)] // names the segments that a ring copies

use super::another_device;
use super::copy_streams::words;
use crate::case::cases;
use crate::library::tools::write;
use crate::subject::Subject;
use gpu_vmm_core::extend::{ChunkContents, Segment};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, Operation, Region, StagingRing};
use gpu_vmm_testkit::{PATTERN_WORD, TestKit, count_wrong_words, write_pattern_words};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

cases! { "staging":
    /// A region is written from and read into one piece of page-locked memory, larger than a backend copies at once, with
    /// every byte at its place.
    much_locked_memory,
    /// Another device's region is written from and read into one large piece of page-locked memory, with every byte at its
    /// place.
    much_locked_memory_of_another,
    /// A ring reports the size of its page-locked memory: two buffers for each of its threads.
    what_a_ring_has,
    /// The first error of a ring's caller ends the copy on all threads, and is returned.
    an_error_ends_a_copy,
    /// Each byte of several segments passes once through a ring, at its offset, whatever the number of threads and the size of
    /// the buffers.
    segments_pass_through_a_ring,
}

/// Several times the size that a backend copies at once.
const MUCH: Bytes = Bytes::mib(40);

fn copies<B: TestKit>(subject: &Subject<B>, device: DeviceId) {
    let size = Bytes(MUCH.0.next_multiple_of(subject.granularity().0));
    let builder = Region::builder(&subject.backend).on(device).reserve(size);
    let mut region = builder.build().unwrap();
    region.grow_to(size).unwrap();
    let mut pinned = subject.backend.pin(size).unwrap();
    let words = words(&mut *pinned);
    write_pattern_words(words, 1, 0);
    region.write(Bytes::ZERO, bytemuck::cast_slice(words)).unwrap();
    assert_eq!(region.count_wrong(device, Bytes::ZERO, size, 1).unwrap(), 0, "words that were written");
    region.write_pattern(device, Bytes::ZERO, size, 2).unwrap();
    region.read(Bytes::ZERO, bytemuck::cast_slice_mut(words)).unwrap();
    assert_eq!(count_wrong_words(words, 2, 0), 0, "words that were read");
}

fn much_locked_memory<B: TestKit>(subject: &Subject<B>) {
    copies(subject, subject.device);
}

fn much_locked_memory_of_another<B: TestKit>(subject: &Subject<B>) {
    copies(subject, another_device(subject));
}

fn what_a_ring_has<B: TestKit>(subject: &Subject<B>) {
    for (threads, chunk, size) in [(1, 64, 128), (3, 64, 384)] {
        let ring = StagingRing::new(&subject.backend, threads, Bytes::kib(chunk)).unwrap();
        assert_eq!(ring.size(), Bytes::kib(size));
    }
}

/// The segments of a region with this number of granules in each mapping.
fn segments<B: TestKit>(subject: &Subject<B>, granules: &[u64]) -> (Region<B>, Vec<Segment>) {
    let mut region = subject.space(granules.iter().sum()).build().unwrap();
    for count in granules {
        region.grow_to(region.end() + subject.granules(*count)).unwrap();
    }
    write(subject, &mut region, 3);
    let segment =
        |offset, length| Segment { address: region.address() + offset, length, device: subject.device };
    let segments = region.mappings().map(|one| segment(one.offset, one.length)).collect();
    (region, segments)
}

fn an_error_ends_a_copy<B: TestKit>(subject: &Subject<B>) {
    const CHUNKS: u64 = 64;
    let (region, segments) = segments(subject, &[1]);
    let ring = StagingRing::new(&subject.backend, 2, Bytes(region.end().0 / CHUNKS)).unwrap();
    let calls = AtomicU64::new(0);
    let take = |_: Bytes, _: &[u8]| {
        if calls.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(Error::new(Operation::KeepContents, Detail::ZeroSize));
        }
        // Meanwhile the other thread ends.
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    };
    // SAFETY: each segment is a mapping with access for its device, and no work uses it.
    let fetched = unsafe { ring.fetch(&segments, &take) };
    assert!(matches!(fetched.unwrap_err().detail(), Detail::ZeroSize));
    let calls = calls.into_inner();
    assert!(calls < CHUNKS / 2, "{calls} of {CHUNKS} chunks were copied, and the first was an error");
}

fn segments_pass_through_a_ring<B: TestKit>(subject: &Subject<B>) {
    let (mut region, segments) = segments(subject, &[1, 3, 2]);
    let length = region.end();
    for (threads, chunk) in [(1, length.0 / 7 / 8 * 8), (3, length.0 / 50 / 8 * 8), (4, 2 * length.0)] {
        let ring = StagingRing::new(&subject.backend, threads, Bytes(chunk)).unwrap();
        write(subject, &mut region, 3);
        let (passed, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
        let take = |offset: Bytes, bytes: &[u8]| {
            passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let differ = count_wrong_words(bytemuck::cast_slice(bytes), 3, offset / PATTERN_WORD);
            wrong.fetch_add(differ, Ordering::Relaxed);
            Ok(())
        };
        // SAFETY: each segment is a mapping with access for its device, and no work uses it.
        unsafe { ring.fetch(&segments, &take) }.unwrap();
        assert_eq!((passed.into_inner(), wrong.into_inner()), (length.0, 0), "{threads} threads");
        let give = |offset: Bytes, bytes: &mut [u8]| {
            write_pattern_words(bytemuck::cast_slice_mut(bytes), 9, offset / PATTERN_WORD);
            Ok(if offset.is_zero() { ChunkContents::Zeros } else { ChunkContents::Bytes })
        };
        // SAFETY: as above.
        unsafe { ring.send(&segments, &give) }.unwrap();
        let zeros = Bytes(chunk).min(segments[0].length);
        let mut found = vec![1; zeros.to_usize().unwrap()];
        region.read(Bytes::ZERO, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0), "{threads} threads");
        subject.check(&region, zeros, length - zeros, 9 + zeros / PATTERN_WORD);
    }
}
