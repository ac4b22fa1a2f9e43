//! Stream captures, calls that must not invalidate them, and streams whose handles are not pointers.

use crate::rig::{ONE, Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Backend, Bytes, CopyCalls, Detail, DeviceId, Error, MemoryCalls, Reservation, Stream, SyncCalls,
};
use gpu_vmm_testkit::{CaptureMode, TestKit, WorkStream, pattern_word};
use std::ptr::without_provenance_mut;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "captures::questions_and_waits_spoil_none", needs: Needs::Device, run: spoil_none },
    Test { name: "captures::a_device_is_waited_for_during_one", needs: Needs::Device, run: device_during },
    Test { name: "captures::waiting_for_a_device_waits", needs: Needs::Device, run: device_waits },
    Test { name: "captures::of_blocking_streams_are_told", needs: Needs::Device, run: blocking },
    Test { name: "captures::copies_spoil_none", needs: Needs::Device, run: copies },
    Test { name: "captures::a_spoilt_one_ends", needs: Needs::Device, run: spoilt },
    Test { name: "captures::streams_by_name", needs: Needs::Device, run: names },
    Test { name: "captures::default_streams_are_their_devices", needs: Needs::TwoDevices, run: defaults },
];

/// Returns `hipStreamLegacy`.
fn legacy() -> Stream<'static> {
    // SAFETY: a handle of the default stream.
    unsafe { Stream::from_raw(without_provenance_mut(1)) }
}

/// Exchanges the calling thread's capture mode.
fn thread_mode(rig: &Rig, mode: u32) -> u32 {
    let mut mode = mode;
    assert_eq!(rig.hip("hipThreadExchangeStreamCaptureMode", (&raw mut mode).addr()), 0);
    mode
}

/// Captures a stream in each mode while `act` runs, in this thread and in another one, and checks that the captures
/// stay valid.
fn each_capture(rig: &Rig, own: &dyn WorkStream, act: impl Fn() + Sync) {
    for mode in CaptureMode::ALL {
        for elsewhere in [false, true] {
            // SAFETY: the capture ends below, in the same thread.
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
    assert_eq!(thread_mode(rig, global), global, "the thread's own mode was restored");
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

/// Starts work on memory on a stream that is still running when this returns. Returns true if it is, or if the test is
/// skipped.
fn start(rig: &Rig, device: DeviceId, stream: Stream<'_>, reservation: &impl Reservation, seed: u64) -> bool {
    let mut event = rig.backend.event(device).unwrap();
    (0..8).any(|tried| {
        let at = reservation.range().base;
        // SAFETY: the memory is mapped for the device, and the tests wait for the work.
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

/// Waiting for the device waits for all its streams, with and without a capture of another stream.
fn device_waits(rig: &Rig) {
    let backend = &rig.backend;
    let reservation = rig.mapped(ZERO, rig.unit());
    let captured = backend.own_stream(ZERO).unwrap();
    for capture in [false, true] {
        for stream in [backend.own_stream(ZERO).unwrap(), backend.blocking_stream(ZERO).unwrap()] {
            let mut event = backend.event(ZERO).unwrap();
            if capture {
                // SAFETY: the capture ends below.
                unsafe { backend.begin_capture(ZERO, captured.stream(), CaptureMode::Global) }.unwrap();
            }
            assert!(start(rig, ZERO, stream.stream(), &reservation, 5), "the work finished at once");
            event.record(stream.stream()).unwrap();
            backend.synchronize(ZERO).unwrap();
            assert!(event.is_done().unwrap(), "synchronize did not wait for the device");
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
            // SAFETY: the capture ends below.
            unsafe { backend.begin_capture(ZERO, own.stream(), mode) }.unwrap();
            for default in [Stream::DEFAULT, legacy()] {
                assert_eq!(backend.is_capturing(default).unwrap(), told, "{mode:?}");
            }
            assert!(!backend.is_capturing(Stream::PER_THREAD).unwrap());
            assert!(backend.end_capture(ZERO, own.stream()).is_ok(), "the query did not invalidate it");
            assert!(!backend.is_capturing(Stream::DEFAULT).unwrap());
        }
    }
    assert_eq!(rig.hip("hipGetLastError", 0), 0);
}

/// Copies and fills come after the work on the null stream, and invalidate no capture.
fn copies(rig: &Rig) {
    let backend = &rig.backend;
    let (own, reservation) = (backend.own_stream(ZERO).unwrap(), rig.mapped(ZERO, rig.units(2)));
    let (at, other) = (reservation.range().base, reservation.range().base + rig.unit());
    each_capture(rig, &*own, || {
        let mut bytes = [0; 16];
        // SAFETY: all of it is mapped, and only this test uses it.
        unsafe {
            backend.copy_from_host(ZERO, at, &[7; 16]).unwrap();
            backend.fill(ZERO, at, Bytes(8), 9).unwrap();
            backend.copy(ZERO, other, at, Bytes(16)).unwrap();
            backend.copy_to_host(ZERO, &mut bytes, other).unwrap();
        }
        assert_eq!(bytes, [9, 9, 9, 9, 9, 9, 9, 9, 7, 7, 7, 7, 7, 7, 7, 7]);
    });
    let seed = 11;
    assert!(start(rig, ZERO, Stream::DEFAULT, &reservation, seed), "the work finished at once");
    let mut first = [0; 8];
    // SAFETY: as above.
    unsafe { backend.copy_to_host(ZERO, &mut first, at) }.unwrap();
    if backend.no_kernels_because(ZERO).unwrap().is_none() {
        assert_eq!(u64::from_ne_bytes(first), pattern_word(seed, 0), "read before the work had finished");
    }
    rig.unmapped(reservation);
}

/// An invalidated capture is reported as such, and its stream works afterwards.
fn spoilt(rig: &Rig) {
    let backend = &rig.backend;
    let own = backend.own_stream(ZERO).unwrap();
    for mode in CaptureMode::ALL {
        // SAFETY: the capture ends below.
        unsafe { backend.begin_capture(ZERO, own.stream(), mode) }.unwrap();
        assert_ne!(rig.hip("hipDeviceSynchronize", 0), 0, "HIP refuses to wait");
        rig.hip("hipGetLastError", 0);
        let ended = backend.end_capture(ZERO, own.stream()).unwrap_err();
        assert!(matches!(ended.detail(), Detail::Capturing { .. }), "{ended}");
        assert!(!backend.is_capturing(own.stream()).unwrap(), "the capture has ended");
        backend.synchronize_stream(ZERO, own.stream()).unwrap();
    }
}

/// The stream handles 1 and 2 are not pointers, and are treated as the streams that they stand for.
fn names(rig: &Rig) {
    let backend = &rig.backend;
    let own = backend.own_stream(ZERO).unwrap();
    let reservation = rig.mapped(ZERO, rig.unit());
    for name in [Stream::DEFAULT, legacy(), Stream::PER_THREAD] {
        let mut event = backend.event(ZERO).unwrap();
        assert!(start(rig, ZERO, name, &reservation, 3), "the work finished at once");
        event.record(name).unwrap();
        event.hold(own.stream()).unwrap();
        backend.synchronize_stream(ZERO, name).unwrap();
        assert!(event.is_done().unwrap(), "synchronize_stream did not wait for {name:?}");
        assert!(!backend.is_capturing(name).unwrap());
        event.hold(name).unwrap();
        backend.synchronize(ZERO).unwrap();
    }
    // Another thread's per-thread stream is another stream, without work.
    assert!(start(rig, ZERO, Stream::PER_THREAD, &reservation, 4));
    thread::scope(|scope| {
        let wait = || backend.synchronize_stream(ZERO, Stream::PER_THREAD);
        scope.spawn(wait).join().unwrap().unwrap();
    });
    backend.synchronize_stream(ZERO, Stream::PER_THREAD).unwrap();
    rig.unmapped(reservation);
}

/// Each device has a null stream. The named device's is waited for while another device is current.
fn defaults(rig: &Rig) {
    let backend = &rig.backend;
    let reservation = rig.mapped(ONE, rig.unit());
    for name in [Stream::DEFAULT, legacy(), Stream::PER_THREAD] {
        let mut event = backend.event(ONE).unwrap();
        assert!(start(rig, ONE, name, &reservation, 6), "the work finished at once");
        event.record(name).unwrap();
        assert_eq!(rig.current_device(), 0);
        backend.synchronize_stream(ONE, name).unwrap();
        assert!(event.is_done().unwrap(), "synchronize_stream did not wait for {name:?} of another device");
        assert_eq!(rig.current_device(), 0);
    }
    rig.unmapped(reservation);
}
