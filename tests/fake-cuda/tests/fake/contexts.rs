//! gpu-vmm-cuda in several contexts of a device, and during captures.

use crate::child::{Case, case, with};
use crate::rig::Cuda;
use gpu_vmm_core::{
    Address, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, MemoryCalls, Region, Result, Stream,
    SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_testkit::{CaptureMode, TestKit, WorkStream};
use std::thread;

const DELAY: &[(&str, &str)] = &[("WORK_DELAY", "100ms")];

pub(crate) const CASES: &[Case] = &[
    with(DELAY, "the_primary_context_is_waited_for", the_primary_context_is_waited_for),
    with(DELAY, "an_attached_context_is_waited_for", an_attached_context_is_waited_for),
    with(DELAY, "the_current_context_is_waited_for", the_current_context_is_waited_for),
    with(DELAY, "default_streams_are_those_of_all_contexts", default_streams_are_those_of_all_contexts),
    with(DELAY, "an_event_marks_all_default_streams", an_event_marks_all_default_streams),
    with(DELAY, "an_event_holds_all_default_streams", an_event_holds_all_default_streams),
    with(DELAY, "dropping_a_backend_waits_for_who_waits", dropping_a_backend_waits_for_who_waits),
    case("a_context_is_left_alone_once_its_backend_is_gone", a_context_is_left_alone),
    case("another_contexts_death_is_not_the_devices", another_contexts_death_is_not_the_devices),
    case("a_destroyed_context_that_is_current_is_no_trouble", a_destroyed_context_that_is_current),
    with(
        &[("FAIL", "cuStreamIsCapturing:1:201,cuStreamIsCapturing:3:400,cuStreamIsCapturing:5:709")],
        "a_stream_is_asked_in_its_own_context_if_the_current_one_is_in_the_way",
        a_stream_is_asked_in_its_own_context,
    ),
    with(
        &[("FAIL", "cuStreamIsCapturing:1:201,cuStreamGetCtx:1:901")],
        "a_stream_whose_context_is_not_told_for_its_capture_captures",
        a_stream_whose_context_is_not_told,
    ),
    case("each_device_has_its_own_context", each_device_has_its_own_context),
    case("kernels_leave_a_context_with_their_backend", kernels_leave_a_context),
    with(DELAY, "whichever_context_is_current_stays_so", whichever_context_is_current_stays_so),
    case("dma_bufs_are_made_in_the_owners_context", dma_bufs_are_made_in_the_owners_context),
    case("a_blocking_capture_is_seen_and_goes_on", a_blocking_capture_is_seen_and_goes_on),
    case("a_blocking_capture_in_another_context_is_seen", a_blocking_capture_elsewhere_is_seen),
    case("no_question_spoils_a_capture", no_question_spoils_a_capture),
    case("an_unannounced_capture_is_spoilt_and_told", an_unannounced_capture_is_spoilt_and_told),
];

const DEVICE: DeviceId = DeviceId(0);
const OTHER: DeviceId = DeviceId(1);
const SIZE: Bytes = Bytes::mib(2);

fn open() -> CudaBackend {
    CudaBackend::open().unwrap()
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

fn the_primary_context_is_waited_for(_: &Cuda) {
    let backend = open();
    let (memory, own, other) =
        (plain(&backend, DEVICE), backend.own_stream(DEVICE).unwrap(), elsewhere(&backend));
    let attached = attach(&backend, &*other);
    start(&backend, DEVICE, own.stream(), &memory);
    assert!(!own.is_done().unwrap());
    attached.synchronize(DEVICE).unwrap();
    assert!(own.is_done().unwrap());
}

fn an_attached_context_is_waited_for(_: &Cuda) {
    let backend = open();
    let (memory, other) = (plain(&backend, DEVICE), elsewhere(&backend));
    let attached = attach(&backend, &*other);
    start(&backend, DEVICE, other.stream(), &memory);
    // Other devices' contexts are not concerned.
    backend.synchronize(OTHER).unwrap();
    assert!(!other.is_done().unwrap());
    backend.synchronize(DEVICE).unwrap();
    assert!(other.is_done().unwrap());
    // Two backends share a context: it is waited for until the last of them is dropped.
    drop(attach(&backend, &*other));
    start(&backend, DEVICE, other.stream(), &memory);
    backend.synchronize(DEVICE).unwrap();
    assert!(other.is_done().unwrap());
    drop(attached);
    // Contexts unknown to the backend are not waited for, as documented.
    start(&backend, DEVICE, other.stream(), &memory);
    backend.synchronize(DEVICE).unwrap();
    assert!(!other.is_done().unwrap());
    drop(other);
}

fn the_current_context_is_waited_for(_: &Cuda) {
    let backend = open();
    let (memory, other) = (plain(&backend, DEVICE), elsewhere(&backend));
    start(&backend, DEVICE, other.stream(), &memory);
    inside(&backend, &*other, || backend.synchronize(OTHER)).unwrap();
    assert!(!other.is_done().unwrap());
    inside(&backend, &*other, || backend.synchronize(DEVICE)).unwrap();
    assert!(other.is_done().unwrap());
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

fn default_streams_are_those_of_all_contexts(_: &Cuda) {
    let backend = open();
    let other = elsewhere(&backend);
    let attached = attach(&backend, &*other);
    let memory = default_work(&backend, &attached);
    backend.synchronize_stream(OTHER, Stream::DEFAULT).unwrap();
    let mut event = attached.event(DEVICE).unwrap();
    event.record(Stream::DEFAULT).unwrap();
    assert!(!event.is_done().unwrap(), "another device's default stream was waited for");
    backend.synchronize_stream(DEVICE, Stream::DEFAULT).unwrap();
    assert!(is_done(&backend, &memory));
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

fn dropping_a_backend_waits_for_who_waits(cuda: &Cuda) {
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

fn a_context_is_left_alone(cuda: &Cuda) {
    let backend = open();
    let other = elsewhere(&backend);
    drop(attach(&backend, &*other));
    drop(other);
    backend.synchronize(DEVICE).unwrap();
    backend.synchronize_stream(DEVICE, Stream::DEFAULT).unwrap();
    assert!(!backend.is_capturing(Stream::DEFAULT).unwrap());
    assert_eq!(cuda.violations(), 0);
}

fn another_contexts_death_is_not_the_devices(cuda: &Cuda) {
    let backend = open();
    let (own, other) = (backend.own_stream(DEVICE).unwrap(), elsewhere(&backend));
    let attached = attach(&backend, &*other);
    // A kernel in the other context that faults.
    // SAFETY: nothing is mapped there: the fault is intended, and ends the other context alone.
    unsafe { backend.start_pattern_on(DEVICE, other.stream(), Address(1 << 21), SIZE, 1, 1) }.unwrap();
    let lost =
        |answer: Result<()>| matches!(answer.as_ref().map_err(Error::detail), Err(Detail::DeviceLost { .. }));
    assert!(lost(attached.synchronize(DEVICE)));
    let memory = plain(&backend, DEVICE);
    start(&backend, DEVICE, own.stream(), &memory);
    backend.synchronize(DEVICE).unwrap();
    assert!(own.is_done().unwrap());
    // Its owner's wait still covers the living context.
    start(&backend, DEVICE, own.stream(), &memory);
    assert!(lost(attached.synchronize(DEVICE)) && own.is_done().unwrap());
    let mut event = backend.event(DEVICE).unwrap();
    event.record(Stream::DEFAULT).unwrap();
    event.wait().unwrap();
    drop((attached, other));
    assert_eq!(cuda.violations(), 0);
}

fn a_destroyed_context_that_is_current(cuda: &Cuda) {
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
fn a_stream_is_asked_in_its_own_context(cuda: &Cuda) {
    let backend = open();
    let own = backend.own_stream(DEVICE).unwrap();
    for _ in 0..3 {
        assert!(!backend.is_capturing(own.stream()).unwrap());
    }
    assert_eq!(cuda.violations(), 0);
}

fn a_stream_whose_context_is_not_told(cuda: &Cuda) {
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

fn kernels_leave_a_context(cuda: &Cuda) {
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
fn whichever_context_is_current_stays_so(cuda: &Cuda) {
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
fn dma_bufs_are_made_in_the_owners_context(cuda: &Cuda) {
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

fn a_blocking_capture_is_seen_and_goes_on(cuda: &Cuda) {
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
fn a_blocking_capture_elsewhere_is_seen(cuda: &Cuda) {
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

fn no_question_spoils_a_capture(cuda: &Cuda) {
    let backend = open();
    let [captured, own] = [(); 2].map(|()| backend.own_stream(DEVICE).unwrap());
    let mut event = backend.event(DEVICE).unwrap();
    let asks = || {
        event.record(own.stream()).unwrap();
        event.record(Stream::DEFAULT).unwrap();
        event.wait().unwrap();
        backend.synchronize_stream(DEVICE, own.stream()).unwrap();
        assert!(event.is_done().unwrap() && own.is_done().unwrap());
        backend.synchronize_stream(DEVICE, Stream::DEFAULT).unwrap();
        drop(backend.pin(SIZE).unwrap());
        drop(backend.copy_stream(DEVICE).unwrap());
        let memory = plain(&backend, DEVICE);
        // SAFETY: the memory is mapped.
        unsafe { backend.fill(DEVICE, memory.2, SIZE, 1) }.unwrap();
    };
    let mut asks = asks;
    for mode in CaptureMode::ALL {
        capture(&backend, &*captured, mode);
        asks();
        thread::scope(|scope| scope.spawn(&mut asks).join().unwrap());
        drop(backend.end_capture(DEVICE, captured.stream()).unwrap());
    }
    // The thread's mode is unchanged.
    let mut mode = 1u32;
    cuda.ok("cuThreadExchangeStreamCaptureMode", &[(&raw mut mode).addr()]);
    assert_eq!(mode, 0);
    asks();
    cuda.ok("cuThreadExchangeStreamCaptureMode", &[(&raw mut mode).addr()]);
    assert_eq!((mode, cuda.violations()), (1, 0));
}

fn an_unannounced_capture_is_spoilt_and_told(_: &Cuda) {
    let backend = open();
    let stream = backend.own_stream(DEVICE).unwrap();
    for mode in CaptureMode::ALL {
        capture(&backend, &*stream, mode);
        let told = backend.synchronize(DEVICE);
        assert!(
            matches!(told.as_ref().map_err(Error::detail), Err(Detail::Capturing { source: Some(_), .. })),
            "{told:?}"
        );
        let ended = backend.end_capture(DEVICE, stream.stream());
        assert!(matches!(ended.as_ref().map_err(Error::detail), Err(Detail::Capturing { .. })), "{ended:?}");
        backend.synchronize(DEVICE).unwrap();
    }
}
