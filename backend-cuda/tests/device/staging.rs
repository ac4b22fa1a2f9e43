//! Page-locked memory, and copies to and from devices that run concurrently with other work.
#![allow(unsafe_code)]

use crate::contexts::queue_fills;
use crate::support::*;
use cudarc::driver::CudaContext;
use gpu_vmm_core::{
    Address, Backend, Bytes, CopyCalls, CopyStream, Detail, DeviceId, Error, Pinned, Properties, Reservation,
    SyncCalls,
};
use gpu_vmm_cuda::{CudaBackend, CudaReservation, cudarc};
use gpu_vmm_testkit::{PATTERN_WORD, TestKit, count_wrong_words, write_pattern_words};
use std::time::Instant;

/// Writes the pattern into memory that no copy uses.
fn write_words(pinned: &dyn Pinned, seed: u64) {
    // SAFETY: the memory is the test's own and has `count` words.
    let words = unsafe { std::slice::from_raw_parts_mut(pinned.start().as_ptr().cast(), count(pinned)) };
    write_pattern_words(words, seed, 0);
}

/// Counts the words that differ from the pattern, in memory that no copy uses.
fn wrong_words(pinned: &dyn Pinned, seed: u64) -> u64 {
    // SAFETY: as above.
    let words = unsafe { std::slice::from_raw_parts(pinned.start().as_ptr().cast(), count(pinned)) };
    count_wrong_words(words, seed, 0)
}

fn count(pinned: &dyn Pinned) -> usize {
    (pinned.size().0 / PATTERN_WORD.0) as usize
}

/// Maps a device's memory with access for it.
fn mapped(backend: &CudaBackend, device: DeviceId, size: Bytes) -> CudaReservation {
    let mut reservation = reserve(backend, size, None);
    let memory = create_with(backend, size, Properties::on(device));
    // SAFETY: nothing is mapped there.
    unsafe { reservation.map(Bytes::ZERO, &memory) }.unwrap();
    set_access(&mut reservation, Bytes::ZERO, size, &[grant(device, gpu_vmm_core::Access::ReadWrite)]);
    reservation
}

/// Queues copies of the whole range to the host, chunk by chunk.
fn fetch(copy_stream: &mut dyn CopyStream, to: &dyn Pinned, from: Address, chunk: Bytes) {
    for offset in (0..to.size().0).step_by(chunk.0 as usize) {
        let length = Bytes(chunk.0.min(to.size().0 - offset));
        let to = to.start().as_ptr().wrapping_add(offset as usize);
        // SAFETY: both sides have this many bytes, and no code touches them until the copy stream has finished.
        unsafe { copy_stream.copy_to_host(to, from + Bytes(offset), length) }.unwrap();
    }
}

/// Queues copies of the whole range from the host, chunk by chunk.
fn send(copy_stream: &mut dyn CopyStream, to: Address, from: &dyn Pinned, chunk: Bytes) {
    for offset in (0..from.size().0).step_by(chunk.0 as usize) {
        let length = Bytes(chunk.0.min(from.size().0 - offset));
        let from = from.start().as_ptr().wrapping_add(offset as usize);
        // SAFETY: as above.
        unsafe { copy_stream.copy_from_host(to + Bytes(offset), from, length) }.unwrap();
    }
}

pub(crate) fn pinned_memory_is_as_large_as_asked(backend: &CudaBackend) {
    for size in [Bytes(1), Bytes(4097), Bytes::mib(64) + Bytes(8)] {
        let (one, other) = (backend.pin(size).unwrap(), backend.pin(size).unwrap());
        for (pinned, value) in [(&one, 1), (&other, 2)] {
            assert_eq!(pinned.size(), size);
            assert!(pinned.start().cast::<u128>().is_aligned());
            // SAFETY: the memory has `size` bytes and no other code uses it.
            unsafe { pinned.start().as_ptr().write_bytes(value, size.0 as usize) };
        }
        // SAFETY: as above.
        let last = |pinned: &dyn Pinned| unsafe { pinned.start().add(size.0 as usize - 1).read() };
        assert_eq!((last(&*one), last(&*other)), (1, 2));
    }
    assert!(matches!(backend.pin(Bytes::ZERO).as_ref().map_err(Error::detail), Err(Detail::ZeroSize)));
    let error = backend.pin(Bytes(1 << 60)).unwrap_err();
    println!("{error}");
    assert_eq!(error.driver_error().map(|source| source.call), Some("cuMemHostAlloc"), "{error}");
    let none = DeviceId(backend.devices().len() as u32);
    assert!(matches!(
        backend.copy_stream(none).as_ref().map_err(Error::detail),
        Err(Detail::NoSuchDevice { .. })
    ));
}

pub(crate) fn copy_streams_copy_both_ways(backend: &CudaBackend) {
    let size = granules(backend, 8);
    let mut reservation = mapped(backend, DEVICE, size);
    let base = at(&reservation, Bytes::ZERO);
    let pinned = backend.pin(size).unwrap();
    let mut copy_stream = backend.copy_stream(DEVICE).unwrap();
    // In one piece, and in more than a hundred, the last of them shorter.
    for (chunk, seed) in [(size, 1), (Bytes(size.0 / 128 - 8), 2)] {
        write_pattern(backend, DEVICE, base, size, seed);
        fetch(&mut *copy_stream, &*pinned, base, chunk);
        copy_stream.finish().unwrap();
        assert_eq!(wrong_words(&*pinned, seed), 0);
        write_words(&*pinned, seed + 10);
        send(&mut *copy_stream, base, &*pinned, chunk);
        copy_stream.finish().unwrap();
        assert_eq!(count_wrong(backend, DEVICE, base, size, seed + 10), 0);
    }
    // Copies on one copy stream run in order.
    write_pattern(backend, DEVICE, base, size, 5);
    let half = Bytes(size.0 / 2);
    let start = pinned.start().as_ptr();
    // SAFETY: both sides have this many bytes, and no code touches them until the copy stream has finished.
    unsafe {
        copy_stream.copy_to_host(start, base, half).unwrap();
        copy_stream.copy_from_host(base + half, start, half).unwrap();
        copy_stream.copy_to_host(start, base + half, Bytes::ZERO).unwrap();
    }
    // Dropping the copy stream waits.
    drop(copy_stream);
    assert_eq!(count_wrong(backend, DEVICE, base + half, half, 5), 0);
    unmap(&mut reservation, Bytes::ZERO, size);
}

/// A size whose copy takes many times as long as a call.
const LONG: Bytes = Bytes::mib(256);

pub(crate) fn queuing_waits_for_nothing(backend: &CudaBackend) {
    let granule = granules(backend, 1);
    let (mut reservation, mut other) = (mapped(backend, DEVICE, LONG), mapped(backend, DEVICE, granule));
    let base = at(&reservation, Bytes::ZERO);
    let pinned = backend.pin(LONG).unwrap();
    let mut copy_stream = backend.copy_stream(DEVICE).unwrap();
    let began = Instant::now();
    for _ in 0..4 {
        fetch(&mut *copy_stream, &*pinned, base, LONG);
        send(&mut *copy_stream, base, &*pinned, LONG);
    }
    let queued = began.elapsed();
    // The default stream does not wait for the copy stream either.
    // SAFETY: the bytes are mapped.
    unsafe { backend.fill(DEVICE, at(&other, Bytes::ZERO), granule, 0) }.unwrap();
    let beside = began.elapsed();
    copy_stream.finish().unwrap();
    let all = began.elapsed();
    println!("8 copies of {LONG}: queued after {queued:?}, a fill beside them done {beside:?}, all {all:?}");
    assert!(queued < all / 2 && beside < all / 2);
    unmap(&mut reservation, Bytes::ZERO, LONG);
    unmap(&mut other, Bytes::ZERO, granule);
}

pub(crate) fn a_copy_stream_waits_for_no_other_stream(backend: &CudaBackend) {
    let size = granules(backend, 1);
    let (mut busy, mut copied) = (mapped(backend, DEVICE, LONG), mapped(backend, DEVICE, size));
    let pinned = backend.pin(size).unwrap();
    let mut copy_stream = backend.copy_stream(DEVICE).unwrap();
    let mut copy = |seed| {
        write_words(&*pinned, seed);
        send(&mut *copy_stream, at(&copied, Bytes::ZERO), &*pinned, size);
        copy_stream.finish().unwrap();
    };
    copy(0);

    let context = CudaContext::new(0).unwrap();
    let default = context.default_stream();
    for _ in 0..2 {
        queue_fills(&default, at(&busy, Bytes::ZERO), LONG, 1);
    }
    copy(1);
    assert!(!crate::contexts::is_idle(&default), "the default stream was waited for");
    backend.synchronize(DEVICE).unwrap();
    assert_eq!(count_wrong(backend, DEVICE, at(&copied, Bytes::ZERO), size, 1), 0);

    // SAFETY: the memory stays mapped until the work is done.
    let flight = unsafe { backend.start_pattern(DEVICE, at(&busy, Bytes::ZERO), LONG, 3, 8) }.unwrap();
    copy(2);
    assert!(!flight.is_done().unwrap(), "another stream was waited for");
    drop(flight);
    assert_eq!(count_wrong(backend, DEVICE, at(&copied, Bytes::ZERO), size, 2), 0);
    unmap(&mut busy, Bytes::ZERO, LONG);
    unmap(&mut copied, Bytes::ZERO, size);
}

/// Copies host data to the device and back, `rounds` times.
fn to_and_fro(backend: &CudaBackend, device: DeviceId, rounds: u64) {
    let size = granules(backend, 4);
    let mut reservation = mapped(backend, device, size);
    let base = at(&reservation, Bytes::ZERO);
    let (there, back) = (backend.pin(size).unwrap(), backend.pin(size).unwrap());
    let mut copy_stream = backend.copy_stream(device).unwrap();
    for round in 0..rounds {
        let seed = u64::from(device.0) << 32 | round;
        write_words(&*there, seed);
        send(&mut *copy_stream, base, &*there, Bytes::mib(1));
        fetch(&mut *copy_stream, &*back, base, Bytes::mib(1));
        copy_stream.finish().unwrap();
        assert_eq!(wrong_words(&*back, seed), 0, "{device}, round {round}");
    }
    drop(copy_stream);
    unmap(&mut reservation, Bytes::ZERO, size);
}

pub(crate) fn copy_streams_work_at_once(backend: &CudaBackend) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| to_and_fro(backend, DEVICE, 10));
        }
    });
}

pub(crate) fn copy_streams_of_two_devices_work_at_once(backend: &CudaBackend) {
    std::thread::scope(|scope| {
        for device in [DEVICE, DeviceId(1)] {
            scope.spawn(move || to_and_fro(backend, device, 20));
        }
    });
    // Memory pinned once is pinned for every device, and a copy stream can move to another thread.
    let size = granules(backend, 1);
    let (mut here, mut there) = (mapped(backend, DEVICE, size), mapped(backend, DeviceId(1), size));
    write_pattern(backend, DEVICE, at(&here, Bytes::ZERO), size, 8);
    let pinned = backend.pin(size).unwrap();
    let mut copy_streams = [DEVICE, DeviceId(1)].map(|device| backend.copy_stream(device).unwrap());
    let (from, to) = (at(&here, Bytes::ZERO), at(&there, Bytes::ZERO));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fetch(&mut *copy_streams[0], &*pinned, from, size);
            copy_streams[0].finish().unwrap();
            send(&mut *copy_streams[1], to, &*pinned, size);
            copy_streams[1].finish().unwrap();
        });
    });
    assert_eq!(count_wrong(backend, DeviceId(1), to, size, 8), 0);
    unmap(&mut here, Bytes::ZERO, size);
    unmap(&mut there, Bytes::ZERO, size);
}
