//! gpu-vmm-cuda in several contexts of a device, and during captures.

use crate::rig::{Cuda, DEVICE, OTHER, open};
use gpu_vmm_core::{
    Address, Backend, Bytes, ComputeMode, CopyCalls, Detail, DeviceId, Error, MemoryCalls, Region, Result,
    Stream, SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::{CaptureMode, TestKit, WorkStream};
use std::thread;

cases! {
    an_event_marks_all_default_streams [WORK_DELAY = "100ms"];
    an_event_holds_all_default_streams [WORK_DELAY = "100ms"];
    dropping_a_backend_waits_for_waiters [WORK_DELAY = "100ms"];
    dropped_backends_context_is_left_alone;
    destroyed_current_context_is_harmless;
    stream_is_queried_in_its_context
        [FAIL = "cuStreamIsCapturing:1:201,cuStreamIsCapturing:3:400,cuStreamIsCapturing:5:709"];
    stream_of_unknown_context_captures [FAIL = "cuStreamIsCapturing:1:201,cuStreamGetCtx:1:901"];
    each_device_has_its_own_context;
    kernels_end_with_their_backend;
    current_context_stays_current [WORK_DELAY = "100ms"];
    dma_bufs_use_the_owners_context;
    blocking_capture_is_seen_and_continues;
    blocking_capture_elsewhere_is_seen;
    unannounced_capture_fails_the_wait;
    prohibited_device_names_its_mode [COMPUTE_MODE = "prohibited"] =>
        |_| mode_is_named(ComputeMode::Prohibited, "whose compute mode is prohibited");
    occupied_device_names_its_mode [COMPUTE_MODE = "exclusive"] =>
        |_| mode_is_named(ComputeMode::ExclusiveProcess, "another process uses it");
    unavailable_device_in_default_mode [FAIL = "cuDevicePrimaryCtxRetain:1:46"] =>
        |_| assert_eq!(refused_copy(ComputeMode::Default), "device 0");
}

const SIZE: Bytes = Bytes::mib(2);

/// Maps memory, which needs no context, and returns the context text of the error of a copy, which needs one.
fn refused_copy(mode: ComputeMode) -> String {
    let backend = open();
    assert_eq!(backend.devices()[0].compute_mode, Some(mode));
    let mut region = Region::builder(&backend).build().unwrap();
    region.grow_to(SIZE).unwrap();
    let error = region.write(Bytes::ZERO, b"some").unwrap_err();
    let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
    assert_eq!((source.call, source.code), ("cuDevicePrimaryCtxRetain", 46));
    context.clone()
}

fn mode_is_named(mode: ComputeMode, part: &str) {
    let context = refused_copy(mode);
    assert!(context.contains(part), "{context}");
}

/// Plain memory of a device, freed at the end.
struct Plain<'a>(&'a CudaBackend, DeviceId, Address);

fn plain(backend: &CudaBackend, device: DeviceId) -> Plain<'_> {
    Plain(backend, device, backend.allocate_plain(device, SIZE).unwrap())
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated once, and freed here; freeing waits.
        unsafe { self.0.free_plain(self.1, self.2, SIZE) }.unwrap();
    }
}

/// Starts work that takes a while.
fn start(backend: &CudaBackend, device: DeviceId, stream: Stream<'_>, at: &Plain<'_>) {
    // SAFETY: the memory is mapped, and cases wait before they free it.
    unsafe { backend.start_pattern_on(device, stream, at.2, SIZE, 1, 1) }.unwrap();
}

fn elsewhere(backend: &CudaBackend) -> Box<dyn WorkStream> {
    backend.stream_elsewhere(DEVICE).unwrap()
}

/// Calls `act` while the context of a stream is the thread's current one.
fn inside<T>(backend: &CudaBackend, stream: &dyn WorkStream, act: impl FnOnce() -> T) -> T {
    let (mut act, mut result) = (Some(act), None);
    backend.in_context_of(stream, &mut || result = act.take().map(|act| act())).unwrap();
    result.unwrap()
}

fn attach(backend: &CudaBackend, stream: &dyn WorkStream) -> CudaBackend {
    // SAFETY: cases drop the backend first.
    unsafe { backend.open_in_context_of(DEVICE, stream) }.unwrap()
}

/// Starts work on the default stream of the context that another backend was opened with.
fn default_work<'a>(backend: &'a CudaBackend, attached: &CudaBackend) -> Plain<'a> {
    let memory = plain(backend, DEVICE);
    start(attached, DEVICE, Stream::DEFAULT, &memory);
    memory
}

fn is_done(backend: &CudaBackend, at: &Plain<'_>) -> bool {
    // SAFETY: the memory is mapped; the check queues a kernel on the other context's default stream, which waits for nothing.
    unsafe { backend.count_wrong(DEVICE, at.2, SIZE, 1) }.unwrap() == 0
}

fn an_event_marks_all_default_streams(cuda: &Cuda) {
    let backend = open();
    let other = elsewhere(&backend);
    let attached = attach(&backend, &*other);
    let memory = default_work(&backend, &attached);
    let mut event = backend.event(DEVICE).unwrap();
    event.record(Stream::DEFAULT).unwrap();
    assert!(!event.is_done().unwrap(), "the event does not cover the attached context's work");
    event.wait().unwrap();
    assert!(event.is_done().unwrap() && is_done(&backend, &memory));
    // The event also covers the current context, which may be destroyed during the event's life.
    drop(attached);
    let late = plain(&backend, DEVICE);
    inside(&backend, &*other, || {
        cuda.ok("cuMemsetD8_v2", &[late.2.0 as usize, 1, SIZE.0 as usize]);
        event.record(Stream::DEFAULT).unwrap();
    });
    assert!(!event.is_done().unwrap(), "the event does not cover the current context's work");
    drop(other);
    event.wait().unwrap();
    event.record(Stream::DEFAULT).unwrap();
    event.wait().unwrap();
    drop(event);
    assert_eq!((cuda.violations(), backend.drop_log().count()), (0, 0));
    assert_eq!((cuda.counts().events, cuda.counts().streams), (0, 0));
}

fn an_event_holds_all_default_streams(cuda: &Cuda) {
    let backend = open();
    let (memory, own, other) =
        (plain(&backend, DEVICE), backend.own_stream(DEVICE).unwrap(), elsewhere(&backend));
    let attached = attach(&backend, &*other);
    let mut event = backend.event(DEVICE).unwrap();
    start(&backend, DEVICE, own.stream(), &memory);
    event.record(own.stream()).unwrap();
    event.hold(Stream::DEFAULT).unwrap();
    // Later work on the other context's default stream comes after the pattern.
    inside(&backend, &*other, || {
        let mut byte = 0u8;
        cuda.ok("cuMemcpyDtoH_v2", &[(&raw mut byte).addr(), memory.2.0 as usize, 1]);
    });
    assert!(own.is_done().unwrap());
    drop(attached);
}

fn dropping_a_backend_waits_for_waiters(cuda: &Cuda) {
    let backend = open();
    let (memory, other) = (plain(&backend, DEVICE), elsewhere(&backend));
    let attached = attach(&backend, &*other);
    start(&backend, DEVICE, other.stream(), &memory);
    thread::scope(|scope| {
        let waits = scope.spawn(|| backend.synchronize(DEVICE));
        drop(attached);
        // The other thread's wait is over: the context may be destroyed now.
        drop(other);
        waits.join().unwrap().unwrap();
    });
    assert_eq!(cuda.violations(), 0);
}

fn dropped_backends_context_is_left_alone(cuda: &Cuda) {
    let backend = open();
    let other = elsewhere(&backend);
    drop(attach(&backend, &*other));
    drop(other);
    backend.synchronize(DEVICE).unwrap();
    backend.synchronize_stream(DEVICE, Stream::DEFAULT).unwrap();
    assert!(!backend.is_capturing(Stream::DEFAULT).unwrap());
    assert_eq!(cuda.violations(), 0);
}

fn destroyed_current_context_is_harmless(cuda: &Cuda) {
    let backend = open();
    thread::scope(|scope| {
        let (context, name) = std::sync::mpsc::channel();
        let (destroyed, go_on) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let backend = open();
            context.send(cuda.get("cuCtxCreate_v2", &[0, 0])).unwrap();
            go_on.recv().unwrap();
            backend.synchronize(DEVICE).unwrap();
        });
        cuda.ok("cuCtxDestroy_v2", &[name.recv().unwrap()]);
        destroyed.send(()).unwrap();
    });
    backend.synchronize(DEVICE).unwrap();
}

/// The thread's current context is invalid, is another one, or was destroyed.
fn stream_is_queried_in_its_context(cuda: &Cuda) {
    let backend = open();
    let own = backend.own_stream(DEVICE).unwrap();
    for _ in 0..3 {
        assert!(!backend.is_capturing(own.stream()).unwrap());
    }
    assert_eq!(cuda.violations(), 0);
}

fn stream_of_unknown_context_captures(cuda: &Cuda) {
    let backend = open();
    let own = backend.own_stream(DEVICE).unwrap();
    assert!(backend.is_capturing(own.stream()).unwrap());
    assert!(!backend.is_capturing(own.stream()).unwrap());
    assert_eq!(cuda.violations(), 0);
}

/// The context that a backend was opened with is used for its device alone.
fn each_device_has_its_own_context(cuda: &Cuda) {
    let backend = open();
    let other = elsewhere(&backend);
    let attached = attach(&backend, &*other);
    let free = |backend: &CudaBackend, device| backend.memory_info(device).unwrap().free;
    let held = plain(&backend, DEVICE);
    assert_eq!(free(&attached, OTHER), free(&backend, OTHER));
    assert_eq!(free(&attached, OTHER), free(&attached, DEVICE) + SIZE + Bytes::mib(64), "another context");
    drop((held, attached));
    assert_eq!(cuda.violations(), 0);
}

fn kernels_end_with_their_backend(cuda: &Cuda) {
    let backend = open();
    let (memory, other) = (plain(&backend, DEVICE), elsewhere(&backend));
    let attached = attach(&backend, &*other);
    let before = cuda.counts().modules;
    // SAFETY: the memory is mapped.
    unsafe { attached.write_pattern(DEVICE, memory.2, SIZE, 1) }.unwrap();
    assert_eq!(cuda.counts().modules, before + 1);
    drop(attached);
    assert_eq!(cuda.counts().modules, before);
}

/// The current context is one of the program's own on the device, another device's primary one, or none.
fn current_context_stays_current(cuda: &Cuda) {
    let backend = open();
    let (memory, own) = (plain(&backend, DEVICE), backend.own_stream(DEVICE).unwrap());
    let mut event = backend.event(DEVICE).unwrap();
    let contexts = [cuda.get("cuCtxCreate_v2", &[0, 0]), cuda.enter(OTHER.0 as usize), 0];
    let free = || [DEVICE, OTHER].map(|device| backend.memory_info(device).unwrap().free);
    let before = free();
    assert_ne!(before[0], before[1]);
    for current in contexts {
        cuda.ok("cuCtxSetCurrent", &[current]);
        let waits: [&dyn Fn() -> Result<()>; 3] = [
            &|| backend.synchronize(DEVICE),
            &|| backend.synchronize_stream(DEVICE, own.stream()),
            // SAFETY: the memory is mapped; the default stream waits for no other here.
            &|| unsafe { backend.fill(DEVICE, memory.2, SIZE, 1) }.and_then(|()| backend.synchronize(DEVICE)),
        ];
        for wait in waits {
            start(&backend, DEVICE, own.stream(), &memory);
            assert!(!backend.is_capturing(own.stream()).unwrap() && !own.is_done().unwrap());
            wait().unwrap();
            assert!(own.is_done().unwrap(), "not waited for");
            assert_eq!(cuda.get("cuCtxGetCurrent", &[]), current);
        }
        start(&backend, DEVICE, own.stream(), &memory);
        event.record(own.stream()).unwrap();
        event.hold(Stream::DEFAULT).unwrap();
        event.wait().unwrap();
        assert!(own.is_done().unwrap() && !backend.is_capturing(Stream::DEFAULT).unwrap());
        assert_eq!(free(), before);
        drop((backend.pin(SIZE).unwrap(), backend.copy_stream(DEVICE).unwrap()));
        assert_eq!(cuda.get("cuCtxGetCurrent", &[]), current);
    }
    assert_eq!(cuda.violations(), 0);
}

/// A region of one device holds memory of another. Nothing before the export needs a context.
fn dma_bufs_use_the_owners_context(cuda: &Cuda) {
    let backend = open();
    let mut region = Region::builder(&backend).on(DEVICE).reserve(SIZE).build().unwrap();
    region.grow_to_on(OTHER, SIZE).unwrap();
    assert_eq!(region.dma_bufs(Bytes::ZERO, SIZE).unwrap().len(), 1);
    let has_primary = [DEVICE, OTHER].map(|device| {
        let (mut flags, mut active) = (0u32, -1i32);
        let device = device.0 as usize;
        cuda.ok("cuDevicePrimaryCtxGetState", &[device, (&raw mut flags).addr(), (&raw mut active).addr()]);
        active
    });
    assert_eq!(has_primary, [0, 1]);
}

/// Begins a capture.
fn capture(backend: &CudaBackend, stream: &dyn WorkStream, mode: CaptureMode) {
    // SAFETY: cases end it on this thread.
    unsafe { backend.begin_capture(DEVICE, stream.stream(), mode) }.unwrap();
}

fn blocking_capture_is_seen_and_continues(cuda: &Cuda) {
    let backend = open();
    let (memory, stream) = (plain(&backend, DEVICE), backend.blocking_stream(DEVICE).unwrap());
    let mut event = backend.event(DEVICE).unwrap();
    event.record(Stream::DEFAULT).unwrap();
    for mode in CaptureMode::ALL {
        capture(&backend, &*stream, mode);
        start(&backend, DEVICE, stream.stream(), &memory);
        let mut byte = [0];
        let refused = [
            backend.synchronize(DEVICE),
            backend.synchronize_stream(DEVICE, Stream::DEFAULT),
            backend.synchronize_stream(DEVICE, stream.stream()),
            event.record(Stream::DEFAULT),
            event.hold(Stream::DEFAULT),
            // SAFETY: the memory is mapped and long enough.
            unsafe { backend.copy_to_host(DEVICE, &mut byte, memory.2) },
            // SAFETY: the same.
            unsafe { backend.fill(DEVICE, memory.2, SIZE, 1) },
            // SAFETY: the same.
            unsafe { backend.copy_from_host(DEVICE, memory.2, &byte) },
            // SAFETY: the same.
            unsafe { backend.copy(DEVICE, memory.2 + Bytes(8), memory.2, Bytes(8)) },
        ];
        for answer in refused {
            assert!(
                matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Capturing { .. })),
                "{mode:?} {answer:?}"
            );
        }
        assert!(backend.is_capturing(Stream::DEFAULT).unwrap());
        // Other devices are waited for.
        backend.synchronize(OTHER).unwrap();
        let graph = backend.end_capture(DEVICE, stream.stream()).unwrap();
        assert!(!backend.is_capturing(Stream::DEFAULT).unwrap());
        // SAFETY: the memory is mapped until the work has been waited for.
        unsafe { graph.launch(stream.stream()) }.unwrap();
        backend.synchronize(DEVICE).unwrap();
        assert!(is_done(&backend, &memory), "{mode:?}");
    }
    assert_eq!(cuda.violations(), 0);
}

/// The default stream belongs to each context: a capture in one of them is in the way, and goes on.
fn blocking_capture_elsewhere_is_seen(cuda: &Cuda) {
    let backend = open();
    let (stream, other) = (backend.blocking_stream(DEVICE).unwrap(), elsewhere(&backend));
    let attached = attach(&backend, &*other);
    let mut event = attached.event(DEVICE).unwrap();
    event.record(Stream::DEFAULT).unwrap();
    capture(&backend, &*stream, CaptureMode::Relaxed);
    let refused = [event.record(Stream::DEFAULT), event.hold(Stream::DEFAULT), attached.synchronize(DEVICE)];
    for answer in refused {
        assert!(
            matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Capturing { .. })),
            "{answer:?}"
        );
    }
    assert!(attached.is_capturing(Stream::DEFAULT).unwrap());
    drop(backend.end_capture(DEVICE, stream.stream()).unwrap());
    drop((event, attached));
    assert_eq!(cuda.violations(), 0);
}

/// A wait for the device invalidates a capture that was not announced. It returns the driver's error, and the next wait succeeds.
fn unannounced_capture_fails_the_wait(_: &Cuda) {
    let backend = open();
    let stream = backend.own_stream(DEVICE).unwrap();
    for mode in CaptureMode::ALL {
        capture(&backend, &*stream, mode);
        let waited = backend.synchronize(DEVICE);
        let detail = waited.as_ref().map_err(Error::detail);
        assert!(matches!(detail, Err(Detail::Capturing { source: Some(_), .. })), "{waited:?}");
        let ended = backend.end_capture(DEVICE, stream.stream());
        assert!(matches!(ended.as_ref().map_err(Error::detail), Err(Detail::Capturing { .. })), "{ended:?}");
        backend.synchronize(DEVICE).unwrap();
    }
}
