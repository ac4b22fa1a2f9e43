//! A request that finds too little memory waits for all memory that was freed on streams, also for memory that no event covers.
#![allow(unsafe_code)]

use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Backend, BackingChange, BackingObserver, BackingOutcome, BackingStore, Bytes, CopyCalls, Detail, Device,
    DeviceId, Error, MemoryCalls, Operation, Region, Result, Stream, SyncCalls, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::{FaultInject, LateWork, TestKit};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

type Faulty = FaultInject<HostBackend>;

const DEVICE: DeviceId = DeviceId(0);
const QUARTER: Bytes = Bytes::mib(16);
const PAGE: Bytes = Bytes::mib(2);

/// Makes an attempt with more and more rounds of work, until it tells that its stream was busy for long enough.
#[track_caller]
fn with_longer_work(rounds: u32, attempt: fn(u32) -> bool) {
    assert!((0..8).any(|doubled| attempt(rounds << doubled)), "the stream was never busy");
}

/// Frees two blocks on a busy stream: the first is covered by an event, and for the second none can be recorded. Returns false
/// if the stream's work ended too early to tell anything.
fn all_is_waited_for(rounds: u32) -> bool {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let own = backend.own_stream(DEVICE).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = Pool::builder(&backend).build().unwrap();
    let [covered, last] = [(); 2].map(|()| pool.request(QUARTER).stream(stream).alloc().unwrap());
    // SAFETY: the memory is mapped for the device, and the pool unmaps none before the stream has ended its work.
    unsafe { backend.start_pattern_on(DEVICE, stream, last.address(), QUARTER, 1, rounds) }.unwrap();
    drop(covered);
    // For another stream's request the pool records an event behind the first free.
    let other = pool.alloc(QUARTER).unwrap();
    drop(last);
    let is_busy = !own.is_done().unwrap();
    backend.fail_calls(&[Operation::CreateEvent, Operation::RecordEvent]);
    let all = pool.alloc(Bytes::mib(48));
    backend.stop();
    assert!(all.is_ok(), "memory that was freed behind the last event was not waited for: {all:?}");
    drop((all, other));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
    backend.synchronize_stream(DEVICE, own.stream()).unwrap();
    is_busy
}

#[test]
fn older_event_does_not_cover_free() {
    with_longer_work(64, all_is_waited_for);
}

/// Frees a block on a busy stream again and again, and asks for memory on another one, for which the pool looks at the first. Returns
/// false if the stream's work ended too early to tell anything.
fn few_events_are_recorded(rounds: u32) -> bool {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::gib(1)).open().unwrap());
    let own = backend.own_stream(DEVICE).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = Pool::builder(&backend).build().unwrap();
    let block = || pool.request(Bytes::mib(2)).stream(stream).alloc().unwrap();
    let worked_on = block();
    // SAFETY: the memory is mapped for the device, and the pool unmaps none before the stream has ended its work.
    unsafe { backend.start_pattern_on(DEVICE, stream, worked_on.address(), Bytes::mib(2), 1, rounds) }
        .unwrap();
    let mut others = Vec::new();
    for _ in 0..200 {
        drop(block());
        others.push(pool.alloc(Bytes::mib(2)).unwrap());
    }
    let (recorded, is_busy) = (backend.made(Operation::RecordEvent), !own.is_done().unwrap());
    assert!(!is_busy || (1..=64).contains(&recorded), "{recorded} events wait for one stream");
    drop((others, worked_on));
    backend.synchronize_stream(DEVICE, own.stream()).unwrap();
    is_busy
}

#[test]
fn a_busy_stream_has_few_events() {
    with_longer_work(256, few_events_are_recorded);
}

/// Frees a block on each of two busy streams, of which the first cannot be waited for, and asks for the memory of the second.
/// Returns false if the second stream's work ended too early to tell anything.
fn the_other_stream_is_waited_for(rounds: u32) -> bool {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let own = [(); 2].map(|()| backend.own_stream(DEVICE).unwrap());
    let pool = Pool::builder(&backend).build().unwrap();
    for (own, size) in own.iter().zip([QUARTER, Bytes::mib(48)]) {
        // SAFETY: the stream lives as long as the pool.
        let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
        let block = pool.request(size).stream(stream).alloc().unwrap();
        // SAFETY: the memory is mapped for the device, and the pool unmaps none before the stream has ended its work.
        unsafe { backend.start_pattern_on(DEVICE, stream, block.address(), QUARTER, 1, rounds) }.unwrap();
    }
    let is_busy = !own[1].is_done().unwrap();
    backend.fail_calls(&[Operation::WaitForEvent]);
    let plan = backend.clone();
    backend.during(Operation::WaitForEvent, move || _ = plan.stop());
    let block = pool.alloc(Bytes::mib(48));
    backend.stop();
    assert!(block.is_ok(), "the stream behind the one that failed was not waited for: {block:?}");
    own.iter().for_each(|own| backend.synchronize_stream(DEVICE, own.stream()).unwrap());
    is_busy
}

#[test]
fn unwaitable_stream_does_not_delay_others() {
    with_longer_work(64, the_other_stream_is_waited_for);
}

/// With two streams, the pool looks for memory that the other stream freed before it maps memory elsewhere.
#[test]
fn freed_memory_serves_other_stream_in_place() {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let own = backend.own_stream(DEVICE).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = Pool::builder(&backend).build().unwrap();
    // The second block keeps the first from the end of the addresses, where any stream may allocate.
    let [first, _behind] = [(); 2].map(|()| pool.request(QUARTER).stream(stream).alloc().unwrap());
    let (address, maps) = (first.address(), pool.stats().driver_calls.map);
    drop(first);
    let second = pool.alloc(QUARTER).unwrap();
    assert_eq!((second.address(), pool.stats().driver_calls.map), (address, maps));
}

/// While a forgotten stream is busy, a new stream gets a number of its own, and not the number of a stream that is merely idle.
#[test]
fn an_idle_stream_keeps_its_number() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let own = [(); 3].map(|()| backend.own_stream(DEVICE).unwrap());
    // SAFETY: the streams live as long as the pool.
    let [idle, busy, new] =
        [0, 1, 2].map(|index: usize| unsafe { Stream::<'static>::from_raw(own[index].stream().as_raw()) });
    let pool = Pool::builder(&backend).build().unwrap();
    let lasting = pool.request(QUARTER).stream(idle).alloc().unwrap();
    drop(pool.request(QUARTER).stream(idle).alloc().unwrap());
    // All work on the idle stream is done, as the pool learns when another stream needs its memory.
    drop(pool.alloc(QUARTER).unwrap());
    pool.trim(Bytes::ZERO).unwrap();
    let used = pool.request(QUARTER).stream(busy).alloc().unwrap();
    // SAFETY: the memory is mapped for the device, and the pool unmaps none before the stream has ended its work.
    unsafe { backend.start_pattern_on(DEVICE, busy, used.address(), QUARTER, 1, 64) }.unwrap();
    drop(used);
    pool.forget_stream(busy).unwrap();
    let block = pool.request(QUARTER).stream(new).alloc().unwrap();
    let stream_of = |address| pool.find(address).unwrap().stream;
    assert_eq!(
        (stream_of(lasting.address()), stream_of(block.address())),
        (idle, new),
        "the number of a stream that is still served was reused"
    );
    backend.synchronize_stream(DEVICE, own[1].stream()).unwrap();
}

/// A stream that captures, or may do so, is served as before. A stream that the pool does not know is no error.
#[test]
fn capturing_stream_is_not_forgotten() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let own = backend.own_stream(DEVICE).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = Pool::builder(&backend).build().unwrap();
    backend.fail_calls(&[Operation::QueryCapture]);
    pool.forget_stream(stream).unwrap();
    backend.stop();
    let address = pool.request(QUARTER).stream(stream).alloc().unwrap().address();
    backend.fail_calls(&[Operation::QueryCapture]);
    let error = pool.forget_stream(stream).unwrap_err();
    backend.stop();
    assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}");
    assert_eq!(error.operation(), Operation::UnregisterStream);
    assert_eq!(pool.request(QUARTER).stream(stream).alloc().unwrap().address(), address);
    pool.forget_stream(stream).unwrap();
}

/// Frees a block on a stream on which no event can be recorded, and returns what a request for all memory and a suspension report.
/// The pool can only wait for the devices.
fn waits_for_devices<B: Backend>(backend: &B, stream: Stream<'static>) -> [Result<()>; 2] {
    let pool = Pool::builder(backend).build().unwrap().tagged("one").unwrap();
    let store = BackingStore::nothing();
    drop(pool.request(QUARTER).stream(stream).alloc().unwrap());
    let all = pool.alloc(Bytes::mib(64)).map(drop);
    // SAFETY: no work is queued.
    [all, pool.suspend("one", &store, unsafe { WaitFor::nothing() }).map(drop)]
}

/// If a device cannot be waited for, memory that its work may use serves no request, and a suspension reports the driver's error.
#[test]
fn failed_device_wait_is_reported() {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let own = backend.own_stream(DEVICE).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    backend.fail_calls(&[Operation::CreateEvent, Operation::WaitForDevice]);
    let [all, suspended] = waits_for_devices(&backend, stream);
    assert!(all.unwrap_err().is_out_of_memory());
    let error = suspended.unwrap_err();
    assert_eq!(error.operation(), Operation::WaitForDevice, "{error}");
}

#[test]
fn suspension_waits_only_for_its_device() {
    let backend = FaultInject::new(HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap());
    let pool = Pool::builder(&backend).device(DeviceId(1)).build().unwrap();
    let _block = pool.alloc(QUARTER).unwrap();
    for (device, is_refused) in [(DeviceId(1), true), (DEVICE, false)] {
        backend.capture_on(device, true);
        let suspended = pool.suspend("", &BackingStore::nothing(), WaitFor::all_devices());
        backend.capture_on(device, false);
        let is_capturing = |error: Error| matches!(error.detail(), Detail::Capturing { .. });
        assert_eq!(suspended.is_err_and(is_capturing), is_refused, "while {device} captures");
    }
}

/// A backend whose second device cannot be used, not even waited for.
#[derive(Clone, Debug)]
struct HalfUsable {
    inner: FaultInject<HostBackend>,
    devices: Arc<[Device]>,
}

// SAFETY: every call is forwarded to the inner backend, which meets the requirements.
unsafe impl Backend for HalfUsable {
    forward!(inner: vendor, instance, driver, memory_info, can_access, capabilities, quirks, unmaps_runs);
    forward!(inner: granularity, granularity_of, recommended_granularity, check_host_access);
    forward!(inner: reservation_unit, drop_log, deferred);

    fn devices(&self) -> &[Device] {
        &self.devices
    }
}

// SAFETY: as above.
unsafe impl MemoryCalls for HalfUsable {
    type Handle = <FaultInject<HostBackend> as MemoryCalls>::Handle;
    type Reservation = <FaultInject<HostBackend> as MemoryCalls>::Reservation;
    forward!(inner: MemoryCalls);
}

// SAFETY: as above.
unsafe impl CopyCalls for HalfUsable {
    forward!(inner: CopyCalls);
}

// SAFETY: as above; nothing runs on the second device.
unsafe impl SyncCalls for HalfUsable {
    forward!(inner: synchronize_stream, event, is_capturing, queries_spoil_captures, waits_spoil_captures);

    fn synchronize(&self, device: DeviceId) -> Result<()> {
        match &self.devices[device.0 as usize].unusable {
            None => self.inner.synchronize(device),
            Some(reason) => {
                Err(Error::new(Operation::WaitForDevice, Detail::Unsupported { reason: reason.clone() }))
            }
        }
    }
}

#[test]
fn unusable_device_is_not_waited_for() {
    let inner = FaultInject::new(HostConfig::new().devices(2).memory(Bytes::mib(64)).open().unwrap());
    let own = inner.own_stream(DEVICE).unwrap();
    let mut devices = inner.devices().to_vec();
    devices[1].unusable = Some("it is broken".into());
    inner.fail_calls(&[Operation::CreateEvent]);
    let backend = HalfUsable { inner, devices: devices.into() };
    backend.synchronize(DeviceId(1)).unwrap_err();
    // SAFETY: the stream lives as long as the pool.
    let stream = unsafe { Stream::from_raw(own.stream().as_raw()) };
    waits_for_devices(&backend, stream).into_iter().for_each(Result::unwrap);
}

/// An observer that asks a pool.
struct Asks(Pool<Faulty>);

impl BackingObserver for Asks {
    fn before(
        &self,
        _: &BackingChange<'_>,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {
        drop(self.0.stats());
    }
}

/// Has the backend keep most of its memory until a capture has ended, in a region with an observer that asks the pool.
fn keep_most_memory(backend: &Faulty, pool: &Pool<Faulty>) {
    let mut region = Region::builder(backend).reserve(Bytes::mib(48)).build().unwrap();
    region.grow_to(Bytes::mib(48)).unwrap();
    region.on_backing_change(Asks(pool.clone()));
    backend.deferred().capture_begins();
    drop(region);
    backend.deferred().capture_ends();
    assert_eq!(backend.deferred().kept(), Bytes::mib(48));
}

/// Makes a call that frees the kept memory in another thread, since an observer may wait for ever.
#[track_caller]
fn frees_kept_memory(backend: &Faulty, call: impl FnOnce() -> Result<()> + Send + 'static) {
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || ends.send(call()));
    let answer = ended.recv_timeout(Duration::from_secs(20));
    assert!(matches!(answer, Ok(Ok(()))), "the observer waits for a lock that its caller holds: {answer:?}");
    assert_eq!(backend.deferred().kept(), Bytes::ZERO);
}

#[test]
fn observers_may_ask_the_pool() {
    let config = || HostConfig::new().devices(1).memory(Bytes::mib(64));
    for config in [config(), config().without_virtual_memory()] {
        let backend = FaultInject::new(config.open().unwrap());
        let pool = Pool::builder(&backend).build().unwrap();
        keep_most_memory(&backend, &pool);
        frees_kept_memory(&backend, move || pool.alloc(Bytes::mib(32)).map(drop));
    }
}

#[test]
fn observers_may_query_during_resume() {
    let backend = FaultInject::new(HostConfig::new().devices(1).memory(Bytes::mib(64)).open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap().tagged("kv").unwrap();
    let block = pool.alloc(Bytes::mib(32)).unwrap();
    pool.suspend("kv", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    keep_most_memory(&backend, &pool);
    frees_kept_memory(&backend, move || pool.resume("kv").map(drop));
    drop(block);
}

/// A request waits for a device to free memory that was kept, while another thread asks for the statistics. Returns false if the
/// stream's work ended too early to tell anything.
fn nothing_waits_for_a_request(rounds: u32) -> bool {
    let backend = FaultInject::new(HostConfig::new().devices(1).memory(Bytes::mib(64)).open().unwrap());
    let own = backend.own_stream(DEVICE).unwrap();
    let mut scratch = Region::builder(&backend).reserve(PAGE).build().unwrap();
    scratch.grow_to(PAGE).unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    keep_most_memory(&backend, &pool);
    let begin = Instant::now();
    // SAFETY: the region lives until the request has waited for the device.
    unsafe { backend.start_pattern_on(DEVICE, own.stream(), scratch.address(), PAGE, 1, rounds) }.unwrap();
    let (asked, whole) = thread::scope(|scope| {
        let request = scope.spawn(|| {
            pool.alloc(Bytes::mib(32)).unwrap();
            assert!(own.is_done().unwrap(), "the request has not waited");
            begin.elapsed()
        });
        thread::sleep(Duration::from_millis(30));
        let asks = Instant::now();
        drop(pool.stats());
        (asks.elapsed(), request.join().unwrap())
    });
    let is_long = whole > Duration::from_millis(500);
    assert!(!is_long || asked < whole / 2, "the statistics took {asked:?}, and the request {whole:?}");
    is_long
}

#[test]
fn calls_pass_a_request_that_waits() {
    with_longer_work(256, nothing_waits_for_a_request);
}

/// Memory that another thread is freeing counts: the request waits until that thread has freed it.
#[test]
fn requests_wait_for_memory_being_freed() {
    for _ in 0..20 {
        let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
        let pool = Pool::builder(&backend).build().unwrap();
        let new = || {
            let mut region = Region::builder(&backend).reserve(PAGE).build().unwrap();
            region.grow_to(PAGE).unwrap();
            region.write(Bytes::ZERO, &[1; 1 << 20]).unwrap();
            region
        };
        let regions: Vec<_> = (0..30).map(|_| new()).collect();
        backend.deferred().capture_begins();
        drop(regions);
        backend.deferred().capture_ends();
        let gate = Barrier::new(4);
        thread::scope(|scope| {
            let ask = || {
                gate.wait();
                pool.alloc(Bytes::mib(12))
            };
            let asked: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().for_each(|thread| drop(thread.join().unwrap().unwrap()));
        });
    }
}

/// As above, for memory that the pool itself returns to the driver. The request has tried twice when the memory goes.
#[test]
fn requests_wait_for_chunks_being_freed() {
    let host = HostConfig::new().devices(1).memory(Bytes::mib(64)).without_virtual_memory();
    let backend = FaultInject::new(host.open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap();
    drop(pool.alloc(Bytes::mib(48)).unwrap());
    let (sends, request) = mpsc::channel();
    let (calls, asks) = (backend.clone(), pool.clone());
    backend.during(Operation::Free, move || {
        let before = calls.made(Operation::Allocate);
        sends.send(thread::spawn(move || asks.alloc(Bytes::mib(48)).map(drop))).unwrap();
        while calls.made(Operation::Allocate) < before + 2 {
            thread::yield_now();
        }
    });
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::mib(48));
    request.recv().unwrap().join().unwrap().unwrap();
}

#[test]
fn debug_text_grows_with_the_blocks() {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap();
    let text = |count: usize| {
        drop((0..count).map(|_| pool.alloc(Bytes(4096)).unwrap()).collect::<Vec<_>>());
        format!("{pool:?}").len()
    };
    let (few, many) = (text(8), text(256));
    assert!(many < few + 256 * 400, "{few} and {many} bytes");
}

/// A stream captures again and again, and needs less memory in between than it has freed, so that it waits for nothing.
#[test]
fn later_captures_use_earlier_memory() {
    for between in [1, 3] {
        let backend = LateWork::new(HostConfig::new().memory(Bytes::gib(1)).open().unwrap(), 2);
        let pool = Pool::builder(&backend).build().unwrap();
        let alloc = || pool.request(Bytes::mib(4)).stream(backend.stream(1)).alloc().unwrap();
        for _ in 0..1000 {
            backend.set_capturing(1, true);
            drop((0..4).map(|_| alloc()).collect::<Vec<_>>());
            backend.set_capturing(1, false);
            for _ in 0..between {
                drop(alloc());
                backend.queue(1);
                backend.finish(1, 1);
            }
        }
        let stats = pool.stats();
        assert!(stats.held <= Bytes::mib(40).0, "{stats}");
    }
}
