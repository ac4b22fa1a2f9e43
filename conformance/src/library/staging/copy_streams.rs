//! Page-locked memory, and streams of copies between it and devices.
#![allow(unsafe_code)] // memory that a device writes

use super::another_device;
use crate::case::cases;
use crate::library::flights::{finish, goes_on, start_longer};
use crate::library::tools::refused;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, CopyStream, Detail, DeviceId, Pinned, Region, StagingRing, Stream};
use gpu_vmm_testkit::{PATTERN_WORD, TestKit, count_wrong_words, write_pattern_words};

cases! { "staging":
    /// Page-locked memory has the requested size, is aligned for any variable, and overlaps no other piece.
    pinned_memory,
    /// Page-locking zero bytes and a copy stream for a device that does not exist are refused without a driver call.
    nothing_to_pin,
    /// A ring without threads or with empty buffers is refused.
    an_empty_ring,
    /// Page-locking more memory than the host has is an error, and smaller requests still succeed.
    too_much_to_pin,
    /// A copy stream copies a device's writes to the host, and the host's bytes to the device.
    both_ways,
    /// Many queued copies of odd sizes at odd offsets, also over the borders of mappings, each arrive at their place, and
    /// nothing else is written.
    many_chunks,
    /// The copies of a copy stream are done in the order in which they were queued, whatever their length and place; a copy
    /// of zero bytes changes nothing.
    in_order,
    /// A copy stream can be waited for without queued copies, and works afterwards.
    finished_again_and_again,
    /// Dropping a copy stream waits for its copies.
    dropping_waits,
    /// Copy streams of one device work at the same time, each on its own thread.
    on_threads,
    /// Copy streams of two devices work at the same time with one piece of page-locked memory, and pass bytes from one device
    /// to the other.
    two_devices,
    /// A copy stream does not wait for work on another stream.
    beside_work,
    /// Copies wait for the work that an event has recorded, and an event records copies.
    ordered_by_events,
    /// So they do on another device than the first.
    ordered_on_another_device,
    /// An event that has recorded work, and then copies, is done when the copies are, while the work goes on.
    recorded_again,
}

fn pin<B: TestKit>(subject: &Subject<B>, size: Bytes) -> Box<dyn Pinned> {
    subject.backend.pin(size).unwrap()
}

fn copy_stream<B: TestKit>(subject: &Subject<B>, device: DeviceId) -> Box<dyn CopyStream> {
    subject.backend.copy_stream(device).unwrap()
}

fn words_of(pinned: &dyn Pinned) -> usize {
    (pinned.size().0 / PATTERN_WORD.0) as usize
}

/// The words of page-locked memory that no copy uses.
pub(super) fn words(pinned: &mut dyn Pinned) -> &mut [u64] {
    // SAFETY: the buffer has this many words, is aligned to a page, and nothing else uses it.
    unsafe { std::slice::from_raw_parts_mut(pinned.start().as_ptr().cast(), words_of(pinned)) }
}

/// Writes the pattern from word `first` on, to memory that no copy uses.
fn write(pinned: &mut dyn Pinned, seed: u64, first: u64) {
    write_pattern_words(words(pinned), seed, first);
}

/// The number of words that differ from the pattern from word `first` on, in memory that no copy uses.
fn wrong(pinned: &dyn Pinned, seed: u64, first: u64) -> u64 {
    // SAFETY: the buffer has this many words, is aligned to a page, and nothing writes it.
    let words = unsafe { std::slice::from_raw_parts(pinned.start().as_ptr().cast(), words_of(pinned)) };
    count_wrong_words(words, seed, first)
}

/// Queues a copy from a part of a region to a part of page-locked memory.
fn fetch<B: TestKit>(
    copy_stream: &mut dyn CopyStream,
    (to, place): (&dyn Pinned, Bytes),
    (from, offset): (&Region<B>, Bytes),
    length: Bytes,
) {
    assert!(place + length <= to.size() && offset + length <= from.end());
    let to = to.start().as_ptr().wrapping_add(place.0 as usize);
    // SAFETY: the assertion checks that both sides have `length` bytes; cases do not touch them until the copy stream has
    // finished.
    unsafe { copy_stream.copy_to_host(to, from.address() + offset, length) }.unwrap();
}

/// Queues a copy from a part of page-locked memory to a part of a region.
fn send<B: TestKit>(
    copy_stream: &mut dyn CopyStream,
    (to, offset): (&Region<B>, Bytes),
    (from, place): (&dyn Pinned, Bytes),
    length: Bytes,
) {
    assert!(place + length <= from.size() && offset + length <= to.end());
    let from = from.start().as_ptr().wrapping_add(place.0 as usize);
    // SAFETY: as above.
    unsafe { copy_stream.copy_from_host(to.address() + offset, from, length) }.unwrap();
}

/// A region of a device's memory in two mappings.
fn region<B: TestKit>(subject: &Subject<B>, device: DeviceId) -> Region<B> {
    let mut region = subject.space(4).on(device).build().unwrap();
    region.grow_to(subject.granules(1)).unwrap();
    region.grow_to(subject.granules(4)).unwrap();
    region
}

fn pinned_memory<B: TestKit>(subject: &Subject<B>) {
    for size in [Bytes(1), Bytes(4097), subject.granules(1) + Bytes(24)] {
        let mut pieces = [(); 3].map(|()| pin(subject, size));
        for (piece, value) in pieces.iter_mut().zip(1..) {
            assert_eq!(piece.size(), size);
            assert!(piece.start().cast::<u128>().is_aligned(), "{:?}", piece.start());
            // SAFETY: the piece has this many bytes, and nothing else uses them.
            unsafe { piece.start().as_ptr().write_bytes(value, size.0 as usize) };
        }
        for (piece, value) in pieces.iter().zip(1..) {
            // SAFETY: as above, and the bytes have been written.
            let bytes = unsafe { std::slice::from_raw_parts(piece.start().as_ptr(), size.0 as usize) };
            assert!(bytes.iter().all(|byte| *byte == value), "two pieces of {size} share bytes");
        }
    }
}

fn nothing_to_pin<B: TestKit>(subject: &Subject<B>) {
    refused!(@PinMemory subject.backend.pin(Bytes::ZERO), Detail::ZeroSize);
    for missing in [DeviceId(subject.backend.devices().len() as u32), DeviceId::HOST] {
        // For the host, `Backend::device` says instead why it is no device.
        refused!(
            @CreateStream subject.backend.copy_stream(missing),
            Detail::NoSuchDevice { .. } | Detail::Unsupported { .. },
        );
    }
}

fn an_empty_ring<B: TestKit>(subject: &Subject<B>) {
    for (threads, chunk) in [(0, Bytes::kib(64)), (1, Bytes::ZERO), (0, Bytes::ZERO)] {
        refused!(@PinMemory StagingRing::new(&subject.backend, threads, chunk), Detail::ZeroSize);
    }
}

fn too_much_to_pin<B: TestKit>(subject: &Subject<B>) {
    // More than an address space has.
    let error = subject.backend.pin(Bytes(1 << 60)).unwrap_err();
    assert!(error.driver_error().is_some(), "{error}");
    pin(subject, subject.granules(1));
}

fn both_ways<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject, subject.device);
    let size = region.end();
    let (mut pinned, mut copy_stream) = (pin(subject, size), copy_stream(subject, subject.device));
    for seed in [1, 2] {
        subject.write(&mut region, Bytes::ZERO, size, seed);
        write(&mut *pinned, seed + 100, 0);
        fetch(&mut *copy_stream, (&*pinned, Bytes::ZERO), (&region, Bytes::ZERO), size);
        copy_stream.finish().unwrap();
        assert_eq!(wrong(&*pinned, seed, 0), 0);
        write(&mut *pinned, seed + 10, 0);
        send(&mut *copy_stream, (&region, Bytes::ZERO), (&*pinned, Bytes::ZERO), size);
        copy_stream.finish().unwrap();
        subject.check(&region, Bytes::ZERO, size, seed + 10);
    }
}

fn many_chunks<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject, subject.device);
    let size = region.end();
    let (mut pinned, mut copy_stream) = (pin(subject, size), copy_stream(subject, subject.device));
    // About a hundred chunks that do not end at page borders; every third one is left out.
    let chunk = Bytes(size.0 / 100 / 8 * 8 + 8);
    let parts = || (0..size.0).step_by(chunk.0 as usize).map(|at| (Bytes(at), chunk.min(size - Bytes(at))));
    let copied = || parts().enumerate().filter(|(number, _)| number % 3 != 1);
    subject.write(&mut region, Bytes::ZERO, size, 1);
    write(&mut *pinned, 2, 0);
    for (_, (at, length)) in copied() {
        fetch(&mut *copy_stream, (&*pinned, at), (&region, at), length);
    }
    copy_stream.finish().unwrap();
    for (number, (at, length)) in parts().enumerate() {
        let seed = if number % 3 == 1 { 2 } else { 1 };
        let (first, count) = (at.0 / 8, (length.0 / 8) as usize);
        // SAFETY: the part is inside of the memory, and nothing writes it.
        let words = unsafe {
            std::slice::from_raw_parts(pinned.start().as_ptr().cast::<u64>().add(first as usize), count)
        };
        assert_eq!(count_wrong_words(words, seed, first), 0, "part {number} of the host's memory");
    }
    write(&mut *pinned, 3, 0);
    for (_, (at, length)) in copied() {
        send(&mut *copy_stream, (&region, at), (&*pinned, at), length);
    }
    copy_stream.finish().unwrap();
    for (number, (at, length)) in parts().enumerate() {
        let seed = if number % 3 == 1 { 1 } else { 3 };
        subject.check(&region, at, length, seed + at.0 / 8);
    }
}

fn in_order<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject, subject.device);
    region.fill(Bytes::ZERO, region.end(), 1).unwrap();
    let (pinned, mut copy_stream) = (pin(subject, Bytes(4096)), copy_stream(subject, subject.device));
    // SAFETY: the memory has this many bytes, and no copy uses them yet.
    unsafe { pinned.start().as_ptr().write_bytes(2, 4096) };
    send(&mut *copy_stream, (&region, Bytes(3)), (&*pinned, Bytes(5)), Bytes(1001));
    send(&mut *copy_stream, (&region, Bytes(1500)), (&*pinned, Bytes::ZERO), Bytes::ZERO);
    fetch(&mut *copy_stream, (&*pinned, Bytes::ZERO), (&region, Bytes::ZERO), Bytes(2048));
    copy_stream.finish().unwrap();
    // SAFETY: the memory has this many bytes, and the copy stream has finished.
    let bytes = unsafe { std::slice::from_raw_parts(pinned.start().as_ptr(), 4096) };
    for (part, value) in [(0..3, 1), (3..1004, 2), (1004..2048, 1), (2048..4096, 2)] {
        assert!(bytes[part.clone()].iter().all(|byte| *byte == value), "{part:?} is not all {value}");
    }
}

fn finished_again_and_again<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject, subject.device);
    let size = region.end();
    let (pinned, mut copy_stream) = (pin(subject, size), copy_stream(subject, subject.device));
    copy_stream.finish().unwrap();
    for seed in 0..4 {
        copy_stream.finish().unwrap();
        copy_stream.finish().unwrap();
        subject.write(&mut region, Bytes::ZERO, size, seed);
        fetch(&mut *copy_stream, (&*pinned, Bytes::ZERO), (&region, Bytes::ZERO), size);
        copy_stream.finish().unwrap();
        assert_eq!(wrong(&*pinned, seed, 0), 0);
    }
}

fn dropping_waits<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject, subject.device);
    let size = region.end();
    let pinned = pin(subject, size);
    for seed in 0..4 {
        subject.write(&mut region, Bytes::ZERO, size, seed);
        let mut copy_stream = copy_stream(subject, subject.device);
        fetch(&mut *copy_stream, (&*pinned, Bytes::ZERO), (&region, Bytes::ZERO), size);
        drop(copy_stream);
        assert_eq!(wrong(&*pinned, seed, 0), 0);
    }
}

/// Copies bytes to a device and back, many times.
fn to_and_fro<B: TestKit>(subject: &Subject<B>, device: DeviceId, seed: u64) {
    let region = region(subject, device);
    let size = region.end();
    let (mut there, back) = (pin(subject, size), pin(subject, size));
    let mut copy_stream = copy_stream(subject, device);
    for seed in seed..seed + 8 {
        write(&mut *there, seed, 0);
        send(&mut *copy_stream, (&region, Bytes::ZERO), (&*there, Bytes::ZERO), size);
        copy_stream.finish().unwrap();
        fetch(&mut *copy_stream, (&*back, Bytes::ZERO), (&region, Bytes::ZERO), size);
        copy_stream.finish().unwrap();
        assert_eq!(wrong(&*back, seed, 0), 0, "{device}");
    }
}

fn on_threads<B: TestKit>(subject: &Subject<B>) {
    // If the backend has no copy streams, the case ends here, with the reason, and not in a thread.
    drop(copy_stream(subject, subject.device));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || to_and_fro(subject, subject.device, thread * 1000));
        }
    });
}

fn two_devices<B: TestKit>(subject: &Subject<B>) {
    let other = another_device(subject);
    let devices = [subject.device, other];
    std::thread::scope(|scope| {
        for device in devices {
            scope.spawn(move || to_and_fro(subject, device, u64::from(device.0) * 1000));
        }
    });
    // Each device copies its own half at the same time.
    let regions = devices.map(|device| region(subject, device));
    let size = regions[0].end();
    let mut pinned = pin(subject, size);
    let half = Bytes(size.0 / 2);
    let mut copy_streams = devices.map(|device| copy_stream(subject, device));
    write(&mut *pinned, 7, 0);
    let places = [Bytes::ZERO, half];
    for ((copy_stream, region), place) in copy_streams.iter_mut().zip(&regions).zip(places) {
        send(&mut **copy_stream, (region, Bytes::ZERO), (&*pinned, place), half);
    }
    copy_streams.iter_mut().for_each(|copy_stream| copy_stream.finish().unwrap());
    for ((device, region), place) in devices.iter().zip(&regions).zip(places) {
        let seed = 7 + place.0 / 8;
        assert_eq!(region.count_wrong(*device, Bytes::ZERO, half, seed).unwrap(), 0, "{device}");
    }
    // From one device to the other, on another thread.
    let [one, two] = &mut copy_streams;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fetch(&mut **one, (&*pinned, half), (&regions[0], Bytes::ZERO), half);
            one.finish().unwrap();
            send(&mut **two, (&regions[1], Bytes::ZERO), (&*pinned, half), half);
            two.finish().unwrap();
        });
    });
    assert_eq!(regions[1].count_wrong(other, Bytes::ZERO, half, 7).unwrap(), 0);
}

/// Copies while a stream works, and lets `wait` wait for the copies: the work must still go on then.
fn copies_beside<B: TestKit>(subject: &Subject<B>, wait: impl Fn(Box<dyn CopyStream>, Stream<'_>)) {
    let mut busy = subject.region(1).build().unwrap();
    busy.grow_to(subject.unit()).unwrap();
    let region = region(subject, subject.device);
    let size = region.end();
    let mut pinned = pin(subject, size);
    goes_on(subject, |times| {
        let flight = start_longer(subject, &busy, Bytes::ZERO, 1, times);
        let mut copy_stream = copy_stream(subject, subject.device);
        write(&mut *pinned, u64::from(times), 0);
        send(&mut *copy_stream, (&region, Bytes::ZERO), (&*pinned, Bytes::ZERO), size);
        wait(copy_stream, flight.stream());
        let went_on = !flight.is_done().unwrap();
        finish(subject, &*flight);
        subject.check(&region, Bytes::ZERO, size, u64::from(times));
        went_on
    });
}

fn beside_work<B: TestKit>(subject: &Subject<B>) {
    copies_beside(subject, |mut copy_stream, _| copy_stream.finish().unwrap());
}

fn recorded_again<B: TestKit>(subject: &Subject<B>) {
    copies_beside(subject, |mut copy_stream, busy| {
        let mut event = subject.backend.event(subject.device).unwrap();
        event.record(busy).unwrap();
        // SAFETY: the event comes from the backend of the stream.
        unsafe { copy_stream.record(&mut *event) }.unwrap();
        event.wait().unwrap();
        copy_stream.finish().unwrap();
    });
}

fn ordered_by_events<B: TestKit>(subject: &Subject<B>) {
    let mut busy = subject.region(1).build().unwrap();
    busy.grow_to(subject.unit()).unwrap();
    let size = subject.unit();
    let (mut pinned, mut copy_stream) = (pin(subject, size), copy_stream(subject, subject.device));
    let event = || subject.backend.event(subject.device).unwrap();
    let (mut written, mut copied) = (event(), event());
    for seed in [5, 6] {
        write(&mut *pinned, seed + 100, 0);
        let flight = start_longer(subject, &busy, Bytes::ZERO, seed, 2);
        written.record(flight.stream()).unwrap();
        // SAFETY: the events come from the backend of the stream.
        unsafe { copy_stream.hold(&*written) }.unwrap();
        fetch(&mut *copy_stream, (&*pinned, Bytes::ZERO), (&busy, Bytes::ZERO), size);
        // SAFETY: as above.
        unsafe { copy_stream.record(&mut *copied) }.unwrap();
        copied.wait().unwrap();
        assert_eq!(
            wrong(&*pinned, seed, 0),
            0,
            "the copy came before the work, or the event before the copy"
        );
        finish(subject, &*flight);
        // In the other direction the copy remains.
        write(&mut *pinned, seed + 100, 0);
        let flight = start_longer(subject, &busy, Bytes::ZERO, seed, 2);
        written.record(flight.stream()).unwrap();
        // SAFETY: as above.
        unsafe { copy_stream.hold(&*written) }.unwrap();
        send(&mut *copy_stream, (&busy, Bytes::ZERO), (&*pinned, Bytes::ZERO), size);
        copy_stream.finish().unwrap();
        finish(subject, &*flight);
        let wrong = busy.count_wrong(subject.device, Bytes::ZERO, size, seed + 100).unwrap();
        assert_eq!(wrong, 0, "the work came after the copy");
    }
}

fn ordered_on_another_device<B: TestKit>(subject: &Subject<B>) {
    ordered_by_events(&subject.of(subject.backend.clone(), another_device(subject)));
}
