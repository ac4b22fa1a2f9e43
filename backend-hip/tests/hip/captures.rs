//! Streams whose work goes into a graph, and calls that must not spoil that; and streams by names that are not pointers.

use crate::rig::{ONE, Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{Backend, Bytes, CopyCalls, Detail, DeviceId, Error, Reservation, Stream, SyncCalls};
use gpu_vmm_testkit::{CaptureMode, TestKit, WorkStream, pattern_word};
use std::ptr::without_provenance_mut;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "captures::questions_and_waits_spoil_none", needs: Needs::Device, run: spoil_none },
    Test { name: "captures::a_device_is_waited_for_during_one", needs: Needs::Device, run: device_during },
    Test { name: "captures::waiting_for_a_device_waits", needs: Needs::Device, run: device_waits },
    Test { name: "captures::of_blocking_streams_are_told", needs: Needs::Device, run: blocking },
    Test { name: "captures::a_graph_works_when_it_is_launched", needs: Needs::Device, run: graphs },
    Test { name: "captures::copies_spoil_none", needs: Needs::Device, run: copies },
    Test { name: "captures::a_spoilt_one_ends", needs: Needs::Device, run: spoilt },
    Test { name: "captures::streams_by_name", needs: Needs::Device, run: names },
    Test { name: "captures::default_streams_are_their_devices", needs: Needs::TwoDevices, run: defaults },
];

/// `hipStreamLegacy`.
fn legacy() -> Stream<'static> {
    // SAFETY: a name of the default stream.
    unsafe { Stream::from_raw(without_provenance_mut(1)) }
}

/// The mode in which the calling thread's captures forbid calls, and those of others for it.
fn thread_mode(rig: &Rig, mode: u32) -> u32 {
    let mut mode = mode;
    assert_eq!(rig.hip("hipThreadExchangeStreamCaptureMode", (&raw mut mode).addr()), 0);
    mode
}

/// Captures a stream in each of the modes while something is done, by this thread and by another one, and says whether
/// the captures were whole.
fn each_capture(rig: &Rig, own: &dyn WorkStream, act: impl Fn() + Sync) {
    for mode in CaptureMode::ALL {
        for elsewhere in [false, true] {
            // SAFETY: it ends below, in the same thread.
            unsafe { rig.backend.begin_capture(ZERO, own.stream(), mode) }.unwrap();
            if elsewhere {
                thread::scope(|scope| scope.spawn(&act).join().unwrap());
            } else {
                act();
            }
            assert!(rig.backend.is_capturing(own.stream()).unwrap());
            let ended = rig.backend.end_capture(ZERO, own.stream());
            assert!(ended.is_ok(), "{mode:?}, by another thread: {elsewhere}: {ended:?}");
        }
    }
    let global = CaptureMode::Global.number();
    assert_eq!(thread_mode(rig, global), global, "the thread's own mode was put back");
}

fn spoil_none(rig: &Rig) {
    let backend = &rig.backend;
    assert!(!backend.queries_spoil_captures());
    let (own, other) = (backend.own_stream(ZERO).unwrap(), backend.own_stream(ZERO).unwrap());
    let blocking = backend.blocking_stream(ZERO).unwrap();
    each_capture(rig, &*own, || {
        let mut event = backend.event(ZERO).unwrap();
        for stream in [other.stream(), blocking.stream(), Stream::DEFAULT, legacy(), Stream::PER_THREAD] {
            event.record(stream).unwrap();
            event.hold(other.stream()).unwrap();
            while !event.is_done().unwrap() {}
            event.wait().unwrap();
            backend.synchronize_stream(ZERO, stream).unwrap();
            assert!(!backend.is_capturing(stream).unwrap());
        }
        backend.synchronize_stream(ZERO, other.stream()).unwrap();
        assert!(other.is_done().unwrap());
        drop(backend.pin(Bytes::kib(4)).unwrap());
        drop(backend.own_stream(ZERO).unwrap());
        drop(backend.copy_stream(ZERO).unwrap());
        let plain = backend.allocate_plain(ZERO, Bytes::kib(4)).unwrap();
        // SAFETY: allocated above, and not used.
        unsafe { backend.free_plain(ZERO, plain, Bytes::kib(4)) }.unwrap();
        rig.unmapped(rig.mapped(ZERO, rig.unit()));
    });
}

fn device_during(rig: &Rig) {
    let own = rig.backend.own_stream(ZERO).unwrap();
    each_capture(rig, &*own, || {
        for device in rig.backend.devices() {
            rig.backend.synchronize(device.id).unwrap();
        }
    });
}

/// Starts work on memory, on a stream, that is not done when this returns.
fn start(rig: &Rig, device: DeviceId, stream: Stream<'_>, reservation: &impl Reservation, seed: u64) -> bool {
    let mut event = rig.backend.event(device).unwrap();
    (0..8).any(|tried| {
        let at = reservation.range().base;
        // SAFETY: mapped for the device, and waited for by the tests.
        let started =
            unsafe { rig.backend.start_pattern_on(device, stream, at, rig.unit(), seed, 32 << tried) };
        match started.map_err(Error::into_detail) {
            Ok(()) => {}
            Err(Detail::Unsupported { reason, .. }) => {
                eprintln!("skipped: {reason}");
                return true;
            }
            Err(error) => panic!("{error}"),
        }
        event.record(stream).unwrap();
        !event.is_done().unwrap()
    })
}

/// All streams are waited for, with a capture of another one and without.
fn device_waits(rig: &Rig) {
    let backend = &rig.backend;
    let reservation = rig.mapped(ZERO, rig.unit());
    let captured = backend.own_stream(ZERO).unwrap();
    for capture in [false, true] {
        for stream in [backend.own_stream(ZERO).unwrap(), backend.blocking_stream(ZERO).unwrap()] {
            let mut event = backend.event(ZERO).unwrap();
            if capture {
                // SAFETY: it ends below.
                unsafe { backend.begin_capture(ZERO, captured.stream(), CaptureMode::Global) }.unwrap();
            }
            assert!(start(rig, ZERO, stream.stream(), &reservation, 5), "the work is done at once");
            event.record(stream.stream()).unwrap();
            backend.synchronize(ZERO).unwrap();
            assert!(event.is_done().unwrap(), "the device was not waited for");
            if capture {
                assert!(backend.end_capture(ZERO, captured.stream()).is_ok());
            }
        }
    }
    rig.unmapped(reservation);
}

fn blocking(rig: &Rig) {
    let backend = &rig.backend;
    let [apart, blocking] =
        [backend.own_stream(ZERO), backend.blocking_stream(ZERO)].map(|stream| stream.unwrap());
    for mode in CaptureMode::ALL {
        for (own, told) in [(&apart, false), (&blocking, true)] {
            // SAFETY: it ends below.
            unsafe { backend.begin_capture(ZERO, own.stream(), mode) }.unwrap();
            for default in [Stream::DEFAULT, legacy()] {
                assert_eq!(backend.is_capturing(default).unwrap(), told, "{mode:?}");
            }
            assert!(!backend.is_capturing(Stream::PER_THREAD).unwrap());
            assert!(backend.end_capture(ZERO, own.stream()).is_ok(), "the question did not spoil it");
            assert!(!backend.is_capturing(Stream::DEFAULT).unwrap());
        }
    }
    assert_eq!(rig.hip("hipGetLastError", 0), 0);
}

fn graphs(rig: &Rig) {
    let backend = &rig.backend;
    if let Some(reason) = backend.no_kernels_because(ZERO).unwrap() {
        eprintln!("skipped: {reason}");
        return;
    }
    let (unit, reservation) = (rig.unit(), rig.mapped(ZERO, rig.unit()));
    let at = reservation.range().base;
    // SAFETY: all of it is mapped.
    let wrong = |seed| unsafe { backend.count_wrong(ZERO, at, unit, seed) }.unwrap();
    // SAFETY: as above.
    unsafe { backend.write_pattern(ZERO, at, unit, 1) }.unwrap();
    let (own, other) = (backend.own_stream(ZERO).unwrap(), backend.own_stream(ZERO).unwrap());
    // SAFETY: it ends below.
    unsafe { backend.begin_capture(ZERO, own.stream(), CaptureMode::Global) }.unwrap();
    // SAFETY: as above, for each launch of the graph.
    unsafe { backend.start_pattern_on(ZERO, own.stream(), at, unit, 2, 1) }.unwrap();
    let graph = backend.end_capture(ZERO, own.stream()).unwrap();
    backend.synchronize(ZERO).unwrap();
    assert_eq!(wrong(1), 0, "it was not launched");
    for stream in [other.stream(), Stream::DEFAULT] {
        // SAFETY: as above.
        unsafe { backend.write_pattern(ZERO, at, unit, 1) }.unwrap();
        // SAFETY: the memory is mapped until the device has been waited for, and the graph is dropped after that.
        unsafe { graph.launch(stream) }.unwrap();
        backend.synchronize_stream(ZERO, stream).unwrap();
        assert_eq!(wrong(2), 0, "it was launched");
    }
    drop(graph);
    rig.unmapped(reservation);
}

/// Copies and fills come after what is on the null stream, and spoil nothing.
fn copies(rig: &Rig) {
    let backend = &rig.backend;
    let (own, reservation) = (backend.own_stream(ZERO).unwrap(), rig.mapped(ZERO, rig.units(2)));
    let (at, other) = (reservation.range().base, reservation.range().base + rig.unit());
    each_capture(rig, &*own, || {
        let mut bytes = [0; 16];
        // SAFETY: all of it is mapped, and is this test's.
        unsafe {
            backend.copy_from_host(ZERO, at, &[7; 16]).unwrap();
            backend.fill(ZERO, at, Bytes(8), 9).unwrap();
            backend.copy(ZERO, other, at, Bytes(16)).unwrap();
            backend.copy_to_host(ZERO, &mut bytes, other).unwrap();
        }
        assert_eq!(bytes, [9, 9, 9, 9, 9, 9, 9, 9, 7, 7, 7, 7, 7, 7, 7, 7]);
    });
    let seed = 11;
    assert!(start(rig, ZERO, Stream::DEFAULT, &reservation, seed), "the work is done at once");
    let mut first = [0; 8];
    // SAFETY: as above.
    unsafe { backend.copy_to_host(ZERO, &mut first, at) }.unwrap();
    if backend.no_kernels_because(ZERO).unwrap().is_none() {
        assert_eq!(u64::from_ne_bytes(first), pattern_word(seed, 0), "read before the work had ended");
    }
    rig.unmapped(reservation);
}

/// A capture that was spoilt is told as that, and leaves a stream that works.
fn spoilt(rig: &Rig) {
    let backend = &rig.backend;
    let own = backend.own_stream(ZERO).unwrap();
    for mode in CaptureMode::ALL {
        // SAFETY: it ends below.
        unsafe { backend.begin_capture(ZERO, own.stream(), mode) }.unwrap();
        assert_ne!(rig.hip("hipDeviceSynchronize", 0), 0, "HIP refuses to wait");
        rig.hip("hipGetLastError", 0);
        let ended = backend.end_capture(ZERO, own.stream()).unwrap_err();
        assert!(matches!(ended.detail(), Detail::Capturing { .. }), "{ended}");
        assert!(!backend.is_capturing(own.stream()).unwrap(), "it has ended");
        backend.synchronize_stream(ZERO, own.stream()).unwrap();
    }
}

/// The names 1 and 2 are no pointers, and are taken for what they mean.
fn names(rig: &Rig) {
    let backend = &rig.backend;
    let own = backend.own_stream(ZERO).unwrap();
    let reservation = rig.mapped(ZERO, rig.unit());
    for name in [Stream::DEFAULT, legacy(), Stream::PER_THREAD] {
        let mut event = backend.event(ZERO).unwrap();
        assert!(start(rig, ZERO, name, &reservation, 3), "the work is done at once");
        event.record(name).unwrap();
        event.hold(own.stream()).unwrap();
        backend.synchronize_stream(ZERO, name).unwrap();
        assert!(event.is_done().unwrap(), "{name:?} was not waited for");
        assert!(!backend.is_capturing(name).unwrap());
        event.hold(name).unwrap();
        backend.synchronize(ZERO).unwrap();
    }
    // Another thread's is another stream, without work.
    assert!(start(rig, ZERO, Stream::PER_THREAD, &reservation, 4));
    thread::scope(|scope| {
        let wait = || backend.synchronize_stream(ZERO, Stream::PER_THREAD);
        scope.spawn(wait).join().unwrap().unwrap();
    });
    backend.synchronize_stream(ZERO, Stream::PER_THREAD).unwrap();
    rig.unmapped(reservation);
}

/// Each device has a null stream, and the one that is named is waited for while another is current.
fn defaults(rig: &Rig) {
    let backend = &rig.backend;
    let reservation = rig.mapped(ONE, rig.unit());
    for name in [Stream::DEFAULT, legacy(), Stream::PER_THREAD] {
        let mut event = backend.event(ONE).unwrap();
        assert!(start(rig, ONE, name, &reservation, 6), "the work is done at once");
        event.record(name).unwrap();
        assert_eq!(rig.current_device(), 0);
        backend.synchronize_stream(ONE, name).unwrap();
        assert!(event.is_done().unwrap(), "{name:?} of another device was waited for");
        assert_eq!(rig.current_device(), 0);
    }
    rig.unmapped(reservation);
}
