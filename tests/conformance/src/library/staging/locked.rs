//! Page-locked memory as the host's side of a region's own copies. Drivers copy from and to such memory in another way than
//! from and to ordinary memory.
#![allow(unsafe_code)] // looks at page-locked memory

use crate::case::cases;
use crate::subject::{Subject, skip};
use gpu_vmm_core::workbench::{PATTERN_WORD, count_wrong_words, write_pattern_words};
use gpu_vmm_core::{Bytes, DeviceId, Region, Workbench};

cases! { "staging":
    /// Every byte comes to its place when a region is written from page-locked memory and read into it, in one piece that is
    /// larger than what a backend copies at once.
    much_locked_memory,
    /// The same with memory of another device.
    much_locked_memory_of_another,
}

/// Some times what a backend would copy at once.
const MUCH: Bytes = Bytes::mib(40);

fn copies<B: Workbench>(subject: &Subject<B>, device: DeviceId) {
    let size = Bytes(MUCH.0.next_multiple_of(subject.granularity().0));
    let builder = Region::builder(&subject.backend).on(device).reserve(size);
    let mut region = builder.build().unwrap();
    region.grow_to(size).unwrap();
    let pinned = subject.backend.pin(size).unwrap();
    let count = (size.0 / PATTERN_WORD.0) as usize;
    // SAFETY: so many words are there, aligned to pages, and the region's copies are done when the calls return.
    let words = unsafe { std::slice::from_raw_parts_mut(pinned.start().as_ptr().cast::<u64>(), count) };
    write_pattern_words(words, 1, 0);
    // SAFETY: these are the same, and each of the two is used in turn.
    let bytes = unsafe { std::slice::from_raw_parts_mut(pinned.start().as_ptr(), size.0 as usize) };
    region.write(Bytes::ZERO, bytes).unwrap();
    assert_eq!(region.count_wrong(device, Bytes::ZERO, size, 1).unwrap(), 0, "words that were written");
    region.write_pattern(device, Bytes::ZERO, size, 2).unwrap();
    region.read(Bytes::ZERO, bytes).unwrap();
    // SAFETY: as above.
    let words = unsafe { std::slice::from_raw_parts(pinned.start().as_ptr().cast::<u64>(), count) };
    assert_eq!(count_wrong_words(words, 2, 0), 0, "words that were read");
}

fn much_locked_memory<B: Workbench>(subject: &Subject<B>) {
    copies(subject, subject.device);
}

fn much_locked_memory_of_another<B: Workbench>(subject: &Subject<B>) {
    let usable = subject.backend.devices().iter().filter(|device| device.unusable.is_none());
    let other = usable.map(|device| device.id).find(|device| *device != subject.device);
    let Some(other) = other else { skip(format!("{} is the only one", subject.device)) };
    copies(subject, other);
}
