//! Page-locked memory as the host's side of a region's own copies. Drivers copy from and to such memory in another way than
//! from and to ordinary memory.

use super::another_device;
use super::copy_streams::words;
use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, DeviceId, Region, StagingRing};
use gpu_vmm_testkit::{TestKit, count_wrong_words, write_pattern_words};

cases! { "staging":
    /// A region is written from and read into one piece of page-locked memory, larger than a backend copies at once, with
    /// every byte at its place.
    much_locked_memory,
    /// Another device's region is written from and read into one large piece of page-locked memory, with every byte at its
    /// place.
    much_locked_memory_of_another,
    /// A ring reports the size of its page-locked memory: two buffers for each of its threads.
    what_a_ring_has,
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
