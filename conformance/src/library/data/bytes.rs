//! Bytes between the host and a region, and the bytes that kernels see.

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Region};
use gpu_vmm_testkit::{TestKit, pattern_word, write_pattern_words};

cases! { "data":
    /// Single bytes are written at their offsets, and no other byte changes.
    bytes_are_where_they_belong,
    /// A write and a read at an odd offset can span ten mappings.
    over_many_mappings,
    /// A fill sets every byte from its first to its last, across mappings, and no other byte.
    a_fill_and_no_further,
    /// Reading and writing zero bytes succeeds at any offset, as for a slice.
    nothing_is_nothing,
    /// A kernel reads what the host has written, and the host reads what a kernel has written.
    host_and_kernel_agree,
    /// A pattern written in parts equals the pattern written at once.
    the_pattern_continues,
    /// A kernel that counts wrong words finds every single one, wherever it is.
    every_wrong_word_is_seen,
}

/// Creates a region with one mapping per granule, filled with a byte.
fn filled<B: TestKit>(subject: &Subject<B>, granules: u64, value: u8) -> Region<B> {
    let mut region = subject.space(granules).build().unwrap();
    for end in 1..=granules {
        region.grow_to(subject.granules(end)).unwrap();
    }
    region.fill(Bytes(0), subject.granules(granules), value).unwrap();
    region
}

fn bytes_are_where_they_belong<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 2, 0xee);
    let granule = subject.granularity();
    let last = region.end() - Bytes(1);
    let places = [(Bytes(0), 1), (Bytes(1), 2), (Bytes(4095), 3), (granule, 4), (last, 5)];
    let mut expected = vec![0xee; region.end().0 as usize];
    for (offset, byte) in places {
        region.write(offset, &[byte]).unwrap();
        expected[offset.0 as usize] = byte;
    }
    let mut all = vec![0; expected.len()];
    region.read(Bytes(0), &mut all).unwrap();
    assert!(all == expected);
}

fn over_many_mappings<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 10, 0);
    let mut words = vec![0; (subject.granules(9).0 / 8) as usize];
    write_pattern_words(&mut words, 1, 0);
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    region.write(Bytes(17), bytes).unwrap();
    let mut back = vec![1; bytes.len() + 2];
    region.read(Bytes(16), &mut back).unwrap();
    assert!(back[1..=bytes.len()] == *bytes);
    assert_eq!((back[0], back[bytes.len() + 1]), (0, 0));
}

fn a_fill_and_no_further<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 3, 1);
    let granule = subject.granularity();
    let (from, length) = (granule - Bytes(5), granule + Bytes(8));
    region.fill(from, length, 2).unwrap();
    let mut expected = vec![1; region.end().0 as usize];
    expected[from.0 as usize..(from + length).0 as usize].fill(2);
    let mut all = vec![0; expected.len()];
    region.read(Bytes(0), &mut all).unwrap();
    assert!(all == expected);
}

fn nothing_is_nothing<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1, 7);
    for offset in [Bytes(0), subject.granularity(), region.reserved(), Bytes(u64::MAX)] {
        region.write(offset, &[]).unwrap();
        region.read(offset, &mut []).unwrap();
        region.fill(offset, Bytes(0), 0).unwrap();
    }
    let mut first = [0];
    region.read(Bytes(0), &mut first).unwrap();
    assert_eq!(first, [7]);
}

fn host_and_kernel_agree<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 3, 0);
    let length = region.end();
    let mut words = vec![0; (length.0 / 8) as usize];
    write_pattern_words(&mut words, 4, 0);
    region.write(Bytes(0), bytemuck::cast_slice(&words)).unwrap();
    subject.check(&region, Bytes(0), length, 4);
    subject.write(&mut region, Bytes(0), length, 5);
    write_pattern_words(&mut words, 5, 0);
    let mut back = vec![0; words.len()];
    region.read(Bytes(0), bytemuck::cast_slice_mut(&mut back)).unwrap();
    assert!(words == back);
}

fn the_pattern_continues<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 4, 0);
    let granule = subject.granularity();
    let part = granule.0 / 8;
    for at in 0..4 {
        subject.write(&mut region, subject.granules(at), granule, 100 + at * part);
    }
    subject.check(&region, Bytes(0), region.end(), 100);
    let wrong = region.count_wrong(subject.device, Bytes(0), region.end(), 101).unwrap();
    assert_eq!(wrong, 4 * part, "no word is the same under another seed");
    let mut bytes = [0; 8];
    region.read(Bytes(40), &mut bytes).unwrap();
    assert_eq!(bytes, pattern_word(100, 5).to_ne_bytes());
}

fn every_wrong_word_is_seen<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 3, 0);
    let (length, granule) = (region.end(), subject.granularity());
    subject.write(&mut region, Bytes(0), length, 1);
    let places = [Bytes(0), Bytes(8), Bytes(4096), granule - Bytes(8), granule, length - Bytes(8)];
    for (offset, count) in places.into_iter().zip(1..) {
        // Flips one bit of the word's last byte.
        let at = offset + Bytes(7);
        let mut byte = [0];
        region.read(at, &mut byte).unwrap();
        region.write(at, &[byte[0] ^ 0x80]).unwrap();
        assert_eq!(region.count_wrong(subject.device, Bytes(0), length, 1).unwrap(), count, "at {offset}");
    }
}
