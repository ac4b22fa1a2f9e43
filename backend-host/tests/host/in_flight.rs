//! Work in flight: calls that wait for it, and calls that take its memory away.

use crate::range::{Range, create};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{
    Access, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, Region, Result, Stream, SyncCalls,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::{CaptureMode, FaultInject, TestKit, pattern_word};
use std::fmt::Debug;
use std::time::Duration;

fn pair() -> HostBackend {
    HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap()
}

/// The offset of the last word of a granule.
const LAST: Bytes = Bytes(GRANULE.0 - 8);

#[test]
fn copies_and_fills_wait_for_default_stream() {
    let host = pair();
    let handles = [(); 2].map(|()| create(&host, ONE, GRANULE).unwrap());
    let mut range = Range::new(&host, Bytes::mib(4));
    range.put(Bytes::ZERO, &handles[0]);
    range.put(GRANULE, &handles[1]);
    let at = range.at(Bytes::ZERO);
    // Each round takes at least 200 microseconds, and only the last one writes the pattern of the seed.
    let start = |seed| {
        // SAFETY: the granule is mapped until all work has been waited for.
        unsafe { host.start_pattern_on(ONE, Stream::DEFAULT, at, GRANULE, seed, 50) }.unwrap();
    };
    let word = |seed| pattern_word(seed, LAST.0 / 8).to_ne_bytes();
    start(1);
    assert_eq!(range.read(ONE, LAST, 8).unwrap(), word(1));
    start(2);
    // SAFETY: both words are mapped.
    unsafe { host.copy(ONE, range.at(GRANULE), range.at(LAST), Bytes(8)) }.unwrap();
    assert_eq!(range.read(ONE, GRANULE, 8).unwrap(), word(2));
    start(3);
    range.write(ONE, LAST, b"is later").unwrap();
    assert_eq!(range.read(ONE, LAST, 8).unwrap(), b"is later");
    start(4);
    range.fill(ONE, LAST, Bytes(8), 9).unwrap();
    assert_eq!(range.read(ONE, LAST, 8).unwrap(), [9; 8]);
    // SAFETY: the granule is mapped.
    let wrong = |seed| unsafe { host.count_wrong(ONE, at, GRANULE, seed) }.unwrap();
    start(5);
    assert_eq!(wrong(5), 0);
    start(6);
    // SAFETY: as above.
    unsafe { host.write_pattern(ONE, at, GRANULE, 7) }.unwrap();
    assert_eq!(wrong(7), 0);
    range.unmap(Bytes::ZERO, Bytes::mib(4)).unwrap();
}

/// The first work is much longer than the second one, and both write to the same memory.
#[test]
fn blocking_streams_and_default_stream_order() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, GRANULE);
    range.put(Bytes::ZERO, &handle);
    let at = range.at(Bytes::ZERO);
    let (blocking, second) = (host.blocking_stream(ONE).unwrap(), host.blocking_stream(ONE).unwrap());
    let start = |stream: Stream<'_>, seed, rounds| {
        // SAFETY: the granule is mapped until all work has been waited for.
        unsafe { host.start_pattern_on(ONE, stream, at, GRANULE, seed, rounds) }.unwrap();
    };
    let word = |seed| pattern_word(seed, LAST.0 / 8).to_ne_bytes();
    let streams = [
        [blocking.stream(), Stream::DEFAULT],
        [Stream::DEFAULT, blocking.stream()],
        // The last stream waits for the default stream, which waits for the first one.
        [blocking.stream(), second.stream()],
    ];
    for (number, [first, last]) in (1..).zip(streams) {
        start(first, 10 * number, 200);
        if number == 3 {
            start(Stream::DEFAULT, 10 * number + 1, 1);
        }
        start(last, 10 * number + 2, 1);
        // Of the streams, only the last one is waited for.
        let mut event = host.event(ONE).unwrap();
        event.record(last).unwrap();
        event.wait().unwrap();
        if !first.is_default() {
            assert!(blocking.is_done().unwrap(), "case {number}");
        }
        host.synchronize(ONE).unwrap();
        assert_eq!(range.read(ONE, LAST, 8).unwrap(), word(10 * number + 2), "case {number}");
    }
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

/// Whichever stream works longer.
#[test]
fn device_wait_covers_each_stream() {
    let host = pair();
    let size = Bytes(GRANULE.0 * 2);
    let handle = create(&host, ONE, size).unwrap();
    let mut range = Range::new(&host, size);
    range.put(Bytes::ZERO, &handle);
    let (at, behind) = (range.at(Bytes::ZERO), range.at(GRANULE));
    let streams = [(); 2].map(|()| host.own_stream(ONE).unwrap());
    for (longer, seed) in [(0, 1), (1, 2), (0, 3)] {
        for (number, stream) in streams.iter().enumerate() {
            let (at, rounds) = if number == longer { (at, 200) } else { (behind, 1) };
            // SAFETY: both granules are mapped until all work has been waited for.
            unsafe { host.start_pattern_on(ONE, stream.stream(), at, GRANULE, seed, rounds) }.unwrap();
        }
        host.synchronize(ONE).unwrap();
        assert!(streams.iter().all(|stream| stream.is_done().unwrap()), "{seed}");
    }
    range.unmap(Bytes::ZERO, size).unwrap();
}

fn is_lost<T: Debug>(result: Result<T>) -> bool {
    matches!(result.as_ref().map_err(Error::detail), Err(Detail::DeviceLost { .. }))
}

/// The work writes nearly all the time, so that the memory is removed while a piece of it is written.
#[test]
fn unmapping_under_work_loses_only_device() {
    for _ in 0..3 {
        let host = pair();
        let size = Bytes::mib(32);
        let (handle, others) = (create(&host, ONE, size).unwrap(), create(&host, TWO, GRANULE).unwrap());
        let (mut range, mut beside) = (Range::new(&host, size), Range::new(&host, GRANULE));
        range.put(Bytes::ZERO, &handle);
        beside.put(Bytes::ZERO, &others);
        let (at, other_at) = (range.at(Bytes::ZERO), beside.at(Bytes::ZERO));
        // SAFETY: the backend checks each piece of the work, and ends it where nothing is mapped.
        let flight = unsafe { host.start_pattern(ONE, at, size, 1, 1000) }.unwrap();
        // SAFETY: as above; this work never begins.
        unsafe { host.start_pattern_on(ONE, flight.stream(), at, size, 4, 1) }.unwrap();
        // SAFETY: the granule is mapped until the work has been waited for; so it is below.
        let goes_on = unsafe { host.start_pattern(TWO, other_at, GRANULE, 2, 50) }.unwrap();
        // SAFETY: as above.
        unsafe { host.start_pattern_on(TWO, goes_on.stream(), other_at, GRANULE, 3, 1) }.unwrap();
        std::thread::sleep(Duration::from_millis(2));
        range.unmap(Bytes::ZERO, size).unwrap();
        assert!(is_lost(host.synchronize(ONE)) && is_lost(flight.is_done()));
        host.synchronize(TWO).unwrap();
        // SAFETY: as above.
        let wrong = unsafe { host.count_wrong(TWO, other_at, GRANULE, 3) }.unwrap();
        assert_eq!(wrong, 0, "work of the other device was given up");
        beside.unmap(Bytes::ZERO, GRANULE).unwrap();
    }
}

#[test]
fn nothing_starts_on_a_lost_device() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, Bytes::mib(4));
    range.put(Bytes::ZERO, &handle);
    let at = range.at(Bytes::ZERO);
    // SAFETY: the backend ends work where nothing is mapped; the other place is mapped.
    let start = |at| unsafe { host.start_pattern_on(ONE, Stream::DEFAULT, at, GRANULE, 1, 1) };
    let stream = host.own_stream(ONE).unwrap();
    // SAFETY: the capture ends at once.
    unsafe { host.begin_capture(ONE, stream.stream(), CaptureMode::Relaxed) }.unwrap();
    let graph = host.end_capture(ONE, stream.stream()).unwrap();
    start(range.at(GRANULE)).unwrap();
    let error = host.synchronize(ONE).unwrap_err();
    let reason = format!("work in flight wrote to {}, where nothing is mapped", range.at(GRANULE));
    assert!(is_lost(Err::<(), _>(error.clone())) && error.to_string().contains(&reason), "{error}");
    assert!(is_lost(start(at)));
    let (mut bytes, behind) = ([0; 8], at + Bytes(8));
    // SAFETY: the granule is mapped for the device.
    let copied = unsafe {
        [
            host.copy_from_host(ONE, at, &bytes),
            host.copy_to_host(ONE, &mut bytes, at),
            host.copy(ONE, behind, at, Bytes(8)),
            host.fill(ONE, at, Bytes(8), 1),
            host.write_pattern(ONE, at, Bytes(8), 1),
            host.count_wrong(ONE, at, Bytes(8), 1).map(drop),
        ]
    };
    assert!(copied.iter().all(|answer| is_lost(answer.clone())), "{copied:?}");
    // SAFETY: the graph has no work.
    assert!(is_lost(unsafe { graph.launch(stream.stream()) }), "not even a graph without work");
    assert!(is_lost(stream.is_done()) && is_lost(host.synchronize_stream(ONE, stream.stream())));
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

/// The reason names the device whose work it was, and its access.
#[test]
fn only_one_device_is_lost_with_reason() {
    let host = pair();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, GRANULE);
    range.put(Bytes::ZERO, &handle);
    range.grant(Bytes::ZERO, GRANULE, TWO, Access::Read).unwrap();
    let at = range.at(Bytes::ZERO);
    let streams = [(); 2].map(|()| host.own_stream(TWO).unwrap());
    // SAFETY: the backend ends work that its device may not do.
    let start = |stream: Stream<'_>, at| unsafe { host.start_pattern_on(TWO, stream, at, GRANULE, 1, 1) };
    start(streams[0].stream(), at).unwrap();
    let first = host.synchronize(TWO).unwrap_err().to_string();
    let reason = format!("work of {TWO} in flight wrote to {at}, where it has {}", Access::Read);
    assert!(first.contains(&reason), "{first}");
    assert!(is_lost(start(streams[1].stream(), range.at(GRANULE))));
    // A stream is of its own device, whichever device is named with it.
    let error = host.synchronize_stream(ONE, streams[1].stream()).unwrap_err();
    assert!(error.to_string().contains(&reason), "{error}");
    host.synchronize(ONE).unwrap();
    host.synchronize_stream(ONE, Stream::DEFAULT).unwrap();
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

/// Drops a region with one granule of each device, whose memory waits for that device.
fn dropped_regions(devices: &[DeviceId]) -> FaultInject<HostBackend> {
    let host = FaultInject::new(pair());
    for device in devices {
        let mut region = Region::builder(&host).on(*device).reserve(GRANULE).build().unwrap();
        region.grow_to(GRANULE).unwrap();
        region.release_later();
    }
    assert_eq!(host.deferred().kept(), Bytes(devices.len() as u64 * GRANULE.0));
    host
}

#[test]
fn failed_wait_keeps_only_that_memory() {
    let host = dropped_regions(&[ONE, TWO]);
    host.fail(0, 1);
    let error = host.deferred().collect(&host).unwrap_err();
    host.stop();
    assert!(error.to_string().contains("failed by plan"), "{error}");
    assert_eq!(host.deferred().kept(), GRANULE);
    assert_eq!([ONE, TWO].map(|device| host.memory_info(device).unwrap().free.0 >> 20), [62, 64]);
    assert_eq!(host.deferred().collect(&host).unwrap(), GRANULE);
    assert_eq!(host.memory_info(ONE).unwrap().free, Bytes::mib(64));
    // The first of several errors is returned.
    let host = dropped_regions(&[ONE, TWO]);
    host.fail(0, 2);
    let error = host.deferred().collect(&host).unwrap_err();
    host.stop();
    assert!(error.to_string().contains("(driver call 0)"), "{error}");
    assert_eq!(host.deferred().kept(), GRANULE + GRANULE);
    assert_eq!(host.deferred().collect(&host).unwrap(), GRANULE + GRANULE);
}

#[test]
fn unreleasable_memory_does_not_keep_next() {
    let host = dropped_regions(&[ONE, ONE]);
    // The wait succeeds, and both attempts to unmap the first region fail.
    host.fail(1, 2);
    let error = host.deferred().collect(&host).unwrap_err();
    assert_eq!(host.stop(), 4, "{error}");
    assert!(matches!(error.detail(), Detail::RollbackFailed { .. }), "{error}");
    assert_eq!(host.deferred().kept(), Bytes::ZERO);
    assert_eq!(host.memory_info(ONE).unwrap().free, Bytes::mib(62));
    // SAFETY: the regions are dropped, and no device uses host memory.
    unsafe { host.reclaim() }.unwrap();
}
