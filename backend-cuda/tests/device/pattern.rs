//! The pattern's kernels compared with the host's own arithmetic.
#![allow(unsafe_code)]

use crate::support::*;
use gpu_vmm_core::{Bytes, CopyCalls, Detail, Error, Handle, Reservation};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_testkit::{TestKit, count_wrong_words, write_pattern_words};

const SEEDS: [u64; 4] = [0, 1, u64::MAX, 0x0123_4567_89AB_CDEF];

pub(crate) fn kernels_and_host_agree(backend: &CudaBackend) {
    let size = granules(backend, 8);
    let mut reservation = reserve(backend, size, None);
    let handle = create(backend, size);
    map(&mut reservation, Bytes::ZERO, &handle);
    let base = at(&reservation, Bytes::ZERO);
    for seed in SEEDS {
        // One word, less than a block, more than the grid has threads, and all words.
        for words in [1, 255, 1_048_577, size.0 as usize / 8] {
            let length = Bytes(words as u64 * 8);
            // SAFETY: the bytes are mapped.
            unsafe { backend.fill(DEVICE, base, size, 0x5A) }.unwrap();
            write_pattern(backend, DEVICE, base, length, seed);
            let bytes = read(backend, base, size.0 as usize);
            let (written, rest) = bytes.split_at(length.0 as usize);
            let written: Vec<u64> =
                written.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
            assert_eq!(count_wrong_words(&written, seed, 0), 0, "seed {seed:#x}, {words} words");
            assert!(
                rest.iter().all(|byte| *byte == 0x5A),
                "seed {seed:#x}: more than {words} words were written"
            );

            let mut by_host = vec![0; words];
            write_pattern_words(&mut by_host, seed, 0);
            let bytes: Vec<u8> = by_host.iter().flat_map(|word| word.to_ne_bytes()).collect();
            write(backend, base, &bytes);
            assert_eq!(count_wrong(backend, DEVICE, base, length, seed), 0, "seed {seed:#x}, {words} words");
        }
    }
    unmap(&mut reservation, Bytes::ZERO, size);
}

/// Word numbers above 32 bits begin after 32 GiB, so this test is for devices with that much memory.
pub(crate) fn more_words_than_32_bits_count(backend: &CudaBackend) {
    let (step, size) = (Bytes::gib(3), Bytes::gib(33));
    if free(backend) < size + Bytes::gib(1) {
        println!("{DEVICE} has less than {size} free: nothing to see");
        return;
    }
    let mut reservation = reserve(backend, size, None);
    for n in 0..size.0 / step.0 {
        let handle = create(backend, step);
        map(&mut reservation, Bytes(n * step.0), &handle);
    }
    let base = at(&reservation, Bytes::ZERO);
    write_pattern(backend, DEVICE, base, size, 9);
    assert_eq!(count_wrong(backend, DEVICE, base, size, 9), 0);
    // The words with numbers above 32 bits, as the host computes them.
    let first = 1u64 << 32;
    let words: Vec<u64> = read(backend, base + Bytes(first * 8), 1 << 20)
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(count_wrong_words(&words, 9, first), 0);
    write(backend, base + Bytes(size.0 - 1), &[read(backend, base + Bytes(size.0 - 1), 1)[0] ^ 0x80]);
    assert_eq!(count_wrong(backend, DEVICE, base, size, 9), 1);
    unmap(&mut reservation, Bytes::ZERO, size);
}

pub(crate) fn half_words_are_refused(backend: &CudaBackend) {
    let size = granules(backend, 1);
    let mut reservation = reserve(backend, size, None);
    let handle = create(backend, size);
    map(&mut reservation, Bytes::ZERO, &handle);
    let base = at(&reservation, Bytes::ZERO);
    // SAFETY: the bytes are mapped.
    let answers = unsafe {
        [
            backend.write_pattern(DEVICE, base + Bytes(4), Bytes(8), 0).map(|()| 0),
            backend.write_pattern(DEVICE, base, Bytes(12), 0).map(|()| 0),
            backend.count_wrong(DEVICE, base + Bytes(1), Bytes(8), 0),
        ]
    };
    for answer in answers {
        assert!(
            matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Unaligned { .. })),
            "{answer:?}"
        );
    }
    unmap(&mut reservation, Bytes::ZERO, handle.size());
    assert_eq!(reservation.range().size, size);
}
