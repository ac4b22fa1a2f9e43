//! What the pool asks the driver about streams, with events whose work ends when the test says so.
#![allow(unsafe_code)]

use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Backend, BackingStore, Bytes, CopyCalls, Detail, DeviceId, Error, Event, MemoryCalls, Operation, Result,
    Stream, SyncCalls, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::FaultInject;
use std::ptr::without_provenance_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SIZE: Bytes = Bytes::mib(16);

/// The work of all streams, and the calls about them.
#[derive(Debug, Default)]
struct Driver {
    /// Whether the work of every event is done.
    done: bool,
    /// The stream that captures.
    capturing: Option<usize>,
    /// Whether a query of an event spoils that capture.
    spoils: bool,
    /// The stream on which no event can be recorded, and the error.
    record_fails: Option<(usize, Detail)>,
    /// Whether queries of events fail.
    query_fails: bool,
    /// Whether events cannot be made independent of their streams.
    outlive_fails: bool,
    /// The number of events for which that was tried.
    outlived: usize,
    created: usize,
    queried: usize,
    /// The number of the event that was queried last, in the order of creation from 1 on.
    last_queried: usize,
    /// The number of waits for the device.
    device_waits: usize,
    /// The streams on which an event was recorded, also if that failed.
    recorded: Vec<usize>,
    /// The streams that were asked whether they capture.
    asked: Vec<usize>,
}

/// Locks the driver also after a test has failed with it: the pool's destructor asks it too.
fn locked(driver: &Mutex<Driver>) -> MutexGuard<'_, Driver> {
    driver.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A host backend without work of its own: events and captures come from a [`Driver`].
#[derive(Clone, Debug)]
struct ScriptedBackend {
    inner: FaultInject<HostBackend>,
    driver: Arc<Mutex<Driver>>,
}

impl ScriptedBackend {
    fn new(driver: Driver) -> Self {
        let inner = FaultInject::new(HostConfig::new().memory(Bytes::mib(256)).open().unwrap());
        Self { inner, driver: Arc::new(Mutex::new(driver)) }
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        locked(&self.driver)
    }
}

// SAFETY: every call is forwarded to the host backend, which meets the requirements.
unsafe impl Backend for ScriptedBackend {
    forward!(inner: Backend);
}

// SAFETY: as above.
unsafe impl MemoryCalls for ScriptedBackend {
    type Handle = <FaultInject<HostBackend> as MemoryCalls>::Handle;
    type Reservation = <FaultInject<HostBackend> as MemoryCalls>::Reservation;
    forward!(inner: MemoryCalls);
}

// SAFETY: as above.
unsafe impl CopyCalls for ScriptedBackend {
    forward!(inner: CopyCalls);
}

// SAFETY: no work is queued on any stream.
unsafe impl SyncCalls for ScriptedBackend {
    fn synchronize(&self, _: DeviceId) -> Result<()> {
        self.driver().device_waits += 1;
        Ok(())
    }

    fn synchronize_stream(&self, _: DeviceId, _: Stream<'_>) -> Result<()> {
        Ok(())
    }

    fn event(&self, _: DeviceId) -> Result<Box<dyn Event>> {
        let mut driver = self.driver();
        driver.created += 1;
        Ok(Box::new(ScriptedEvent(Arc::clone(&self.driver), driver.created)))
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        let mut driver = self.driver();
        driver.asked.push(stream.as_raw().addr());
        Ok(driver.capturing == Some(stream.as_raw().addr()))
    }

    fn queries_spoil_captures(&self) -> bool {
        self.driver().spoils
    }
}

#[derive(Debug)]
struct ScriptedEvent(Arc<Mutex<Driver>>, usize);

// SAFETY: no work is queued on any stream.
unsafe impl Event for ScriptedEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        let mut driver = locked(&self.0);
        driver.recorded.push(stream.as_raw().addr());
        match &driver.record_fails {
            Some((on, detail)) if *on == stream.as_raw().addr() => {
                Err(Error::new(Operation::RecordEvent, detail.clone()))
            }
            _ => Ok(()),
        }
    }

    fn is_done(&self) -> Result<bool> {
        let mut driver = locked(&self.0);
        driver.queried += 1;
        driver.last_queried = self.1;
        match driver.query_fails {
            true => Err(Error::new(
                Operation::QueryEvent,
                Detail::Unsupported { reason: "the test says so".into() },
            )),
            false => Ok(driver.done),
        }
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn hold(&self, _: Stream<'_>) -> Result<()> {
        Ok(())
    }

    fn outlive_stream(&mut self) -> Result<()> {
        let mut driver = locked(&self.0);
        driver.outlived += 1;
        match driver.outlive_fails {
            true => Err(Error::new(
                Operation::RecordEvent,
                Detail::Unsupported { reason: "the test says so".into() },
            )),
            false => Ok(()),
        }
    }
}

/// Returns a stream that is only compared and counted.
fn stream(number: usize) -> Stream<'static> {
    // SAFETY: the backend passes it to no driver.
    unsafe { Stream::from_raw(without_provenance_mut(number)) }
}

/// Allocates and frees a block on a stream.
fn use_on(pool: &Pool<ScriptedBackend>, stream: Stream<'static>) {
    drop(pool.request(SIZE).stream(stream).alloc().unwrap());
}

const FIRST: usize = 0x1000;
const SECOND: usize = 0x2000;
const THIRD: usize = 0x3000;

/// Returns the error of a record on a stream of another device.
fn foreign(stream: usize) -> (usize, Detail) {
    (stream, Detail::ForeignStream { theirs: "device 1".into(), ours: "device 0".into() })
}

#[test]
fn foreign_stream_event_is_recorded_once() {
    let backend = ScriptedBackend::new(Driver { record_fails: Some(foreign(FIRST)), ..Driver::default() });
    let pool = Pool::builder(&backend).build().unwrap();
    use_on(&pool, stream(FIRST));
    let _others: Vec<_> = (0..4).map(|_| pool.alloc(SIZE).unwrap()).collect();
    assert_eq!(backend.driver().recorded, [FIRST]);
    assert_eq!(backend.drop_log().count(), 0);
    // The pool waits for the devices if it needs the memory.
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), SIZE);
}

/// On a driver whose queries spoil captures, memory of another stream is not reused before the capture has ended.
#[test]
fn capture_allows_only_harmless_event_queries() {
    for spoils in [true, false] {
        let backend = ScriptedBackend::new(Driver { spoils, done: true, ..Driver::default() });
        let pool = Pool::builder(&backend).build().unwrap();
        // The last block keeps the others from the end of the addresses, where any stream may allocate.
        let kept = pool.request(SIZE).stream(stream(SECOND)).alloc().unwrap();
        let place = pool.request(SIZE).stream(stream(FIRST)).alloc().unwrap();
        let _last = pool.alloc(SIZE).unwrap();
        let address = place.address();
        drop(place);
        for (capturing, is_asked) in [(Some(SECOND), !spoils), (None, true)] {
            backend.driver().capturing = capturing;
            backend.driver().queried = 0;
            let block = pool.alloc(SIZE).unwrap();
            assert_eq!(backend.driver().queried > 0, is_asked, "{spoils}, {capturing:?}");
            assert_eq!(block.address() == address, is_asked, "{spoils}, {capturing:?}");
            if is_asked {
                break;
            }
            std::mem::forget(block);
        }
        drop(kept);
    }
}

/// A capture of a stream that the pool does not know is spoiled as well.
#[test]
fn foreign_capture_stops_event_queries() {
    let backend = ScriptedBackend::new(Driver { spoils: true, done: true, ..Driver::default() });
    let pool = Pool::builder(&backend).build().unwrap();
    use_on(&pool, stream(FIRST));
    backend.deferred().capture_begins();
    let _block = pool.alloc(SIZE).unwrap();
    assert_eq!(backend.driver().queried, 0);
    backend.deferred().capture_ends();
    let _block = pool.alloc(SIZE).unwrap();
    assert!(backend.driver().queried > 0);
}

/// The wait for a device would invalidate the capture. The wait for an event does not.
#[test]
fn capture_waits_only_for_events() {
    let record_fails = Some(foreign(SECOND));
    let backend = ScriptedBackend::new(Driver { record_fails, capturing: Some(THIRD), ..Driver::default() });
    let pool = Pool::builder(&backend).build().unwrap();
    let _kept = pool.alloc(SIZE).unwrap();
    // The pool asks only about streams that it knows.
    // SAFETY: the stream is only compared and counted.
    let _registered = unsafe { pool.register_stream(stream(THIRD)) }.unwrap();
    let blocks = [FIRST, SECOND].map(|one| pool.request(SIZE).stream(stream(one)).alloc().unwrap());
    drop(blocks);
    let suspend = || {
        // SAFETY: no work is queued.
        pool.suspend("", &BackingStore::nothing(), unsafe { WaitFor::nothing() })
    };
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), SIZE, "the memory of the first stream");
    let error = suspend().unwrap_err();
    assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}");
    backend.driver().capturing = None;
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), SIZE, "the memory of the second stream");
    assert_eq!(suspend().unwrap(), SIZE, "the block in use");
}

/// The program may destroy the stream while the pool asks. Of the stream's events, the last one alone is asked then.
#[test]
fn forgotten_stream_is_asked_by_event() {
    for outlive_fails in [false, true] {
        let backend = ScriptedBackend::new(Driver { outlive_fails, ..Driver::default() });
        let pool = Pool::builder(&backend).build().unwrap();
        use_on(&pool, stream(FIRST));
        let _other = pool.alloc(SIZE).unwrap();
        assert_eq!(backend.driver().recorded, [FIRST]);
        pool.forget_stream(stream(FIRST)).unwrap();
        assert_eq!(backend.driver().outlived, 1);
        assert_eq!(backend.driver().recorded, [FIRST; 2]);
        backend.driver().last_queried = 0;
        let _another = pool.alloc(SIZE).unwrap();
        // An event of a stream that is not done ends its queries, so no event before the last one was queried.
        assert_eq!(backend.driver().last_queried, if outlive_fails { 0 } else { 2 });
        assert_eq!(backend.drop_log().count(), u64::from(outlive_fails));
        // Without such an event the pool waits for the devices.
        assert_eq!(pool.trim(Bytes::ZERO).unwrap(), SIZE);
        assert_eq!(backend.driver().device_waits, usize::from(outlive_fails));
    }
}

/// An event covers the memory that was freed before it. The wait for the device would also wait for the program's other streams.
#[test]
fn later_free_gets_its_own_event() {
    let backend = ScriptedBackend::new(Driver::default());
    let pool = Pool::builder(&backend).build().unwrap();
    let [first, second] = [(); 2].map(|()| pool.request(SIZE).stream(stream(FIRST)).alloc().unwrap());
    drop(first);
    let _other = pool.alloc(SIZE).unwrap();
    assert_eq!(backend.driver().recorded, [FIRST]);
    drop(second);
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), SIZE * 2);
    let driver = backend.driver();
    assert_eq!((&driver.recorded[..], driver.device_waits), (&[FIRST; 2][..], 0));
}

/// Its memory is free for other streams when the pool is trimmed or needs it.
#[test]
fn forgotten_stream_empties_thread_caches() {
    let backend = ScriptedBackend::new(Driver::default());
    let pool = Pool::builder(&backend).build().unwrap();
    // SAFETY: the stream is only compared and counted.
    let registered = unsafe { pool.register_stream(stream(SECOND)) }.unwrap();
    for size in [Bytes(1000), Bytes::kib(300)] {
        drop(pool.request(size).stream(stream(FIRST)).alloc().unwrap());
        drop(registered.alloc(size).unwrap());
    }
    let before = pool.stats().cached;
    pool.forget_stream(stream(FIRST)).unwrap();
    let between = pool.stats().cached;
    assert!(0 < between && between < before, "{before} bytes, then {between}");
    drop(registered);
    assert_eq!(pool.stats().cached, 0);
}

/// Work of the first stream may still use it.
#[test]
fn unmovable_memory_stays_with_its_stream() {
    let backend = ScriptedBackend::new(Driver::default());
    let page = Bytes::mib(2);
    let pool = Pool::builder(&backend).budget(SIZE * 2 + page * 2).build().unwrap();
    let [one, _stays, other, _last] =
        [SIZE, page, SIZE, page].map(|size| pool.request(size).stream(stream(FIRST)).alloc().unwrap());
    drop((one, other));
    let request = || pool.request(SIZE * 2).stream(stream(FIRST)).alloc();
    backend.inner.fail_calls(&[Operation::Map]);
    assert_eq!(request().unwrap_err().operation(), Operation::Map);
    backend.inner.stop();
    assert!(pool.request(SIZE).alloc_mapped().is_none());
    drop(request().unwrap());
    backend.driver().done = true;
    pool.alloc(SIZE).unwrap();
}

/// When the second stream's work is done, the memory of the block is free for the first stream. The pool waits for that stream
/// once more before it releases the memory.
#[test]
fn trim_releases_block_of_two_streams() {
    let backend = ScriptedBackend::new(Driver::default());
    let pool = Pool::builder(&backend).build().unwrap();
    let mut block = pool.request(Bytes(1000)).stream(stream(FIRST)).alloc().unwrap();
    block.record_use(stream(SECOND)).unwrap();
    drop(block);
    let held = pool.stats().held;
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes(held));
}

/// The program may have destroyed a forgotten stream.
#[test]
fn forgotten_stream_reaches_no_call() {
    let backend = ScriptedBackend::new(Driver { spoils: true, ..Driver::default() });
    let pool = Pool::builder(&backend).build().unwrap();
    use_on(&pool, stream(FIRST));
    let others = [(); 2].map(|()| pool.request(SIZE).stream(stream(SECOND)).alloc().unwrap());
    pool.forget_stream(stream(FIRST)).unwrap();
    // The last call about it is the event behind its work.
    assert_eq!(backend.driver().recorded.last(), Some(&FIRST));
    backend.driver().recorded.clear();
    backend.driver().asked.clear();
    drop(others);
    let _blocks = [(); 3].map(|()| pool.alloc(SIZE).unwrap());
    pool.trim(Bytes::ZERO).unwrap();
    let driver = backend.driver();
    assert!(driver.asked.contains(&SECOND) && driver.recorded.contains(&SECOND), "{driver:?}");
    assert!(!driver.asked.contains(&FIRST) && !driver.recorded.contains(&FIRST), "{driver:?}");
}

/// An event on a capturing stream would become part of the graph.
#[test]
fn ending_capturing_stream_records_nothing() {
    for capturing in [None, Some(FIRST)] {
        let backend = ScriptedBackend::new(Driver::default());
        let pool = Pool::builder(&backend).build().unwrap();
        // SAFETY: the stream is only compared and counted.
        let registered = unsafe { pool.register_stream(stream(FIRST)) }.unwrap();
        drop(registered.alloc(SIZE).unwrap());
        backend.driver().capturing = capturing;
        drop(registered);
        assert_eq!(backend.driver().recorded.len(), usize::from(capturing.is_none()), "{capturing:?}");
    }
}

/// The error is written down, and the memory is free after the next event.
#[test]
fn unqueryable_event_is_replaced() {
    let backend = ScriptedBackend::new(Driver { query_fails: true, ..Driver::default() });
    let pool = Pool::builder(&backend).build().unwrap();
    let place = pool.request(SIZE).stream(stream(FIRST)).alloc().unwrap();
    let (address, _behind) = (place.address(), pool.alloc(SIZE).unwrap());
    drop(place);
    let first = pool.alloc(SIZE).unwrap();
    assert_ne!(first.address(), address);
    let errors = backend.drop_log().count();
    assert!(errors > 0);
    assert_eq!(backend.drop_log().take_last().unwrap().operation(), Operation::QueryEvent);
    let records = backend.driver().recorded.len();
    backend.driver().query_fails = false;
    backend.driver().done = true;
    let second = pool.alloc(SIZE).unwrap();
    assert_eq!(second.address(), address);
    assert!(backend.driver().recorded.len() > records);
    assert_eq!(backend.drop_log().count(), errors);
}

#[test]
fn events_are_used_again() {
    let backend = ScriptedBackend::new(Driver { done: true, ..Driver::default() });
    // One block fits, so that each stream waits for the other.
    let pool = Pool::builder(&backend).budget(SIZE).build().unwrap();
    let unavailable = Detail::Unsupported { reason: "the test says so".into() };
    for round in 0..20 {
        backend.driver().record_fails = (round % 2 == 0).then(|| (FIRST, unavailable.clone()));
        use_on(&pool, stream(FIRST));
        drop(pool.alloc(SIZE).unwrap());
    }
    let driver = backend.driver();
    assert!(driver.recorded.len() >= 20, "{driver:?}");
    assert!(driver.created <= 2, "{} events for two streams", driver.created);
}

/// Two halves of a page, one for each stream, and a block that keeps them apart from the end of the addresses.
fn halves(pool: &Pool<ScriptedBackend>) -> [Block<ScriptedBackend>; 3] {
    let alloc = |(size, name)| pool.request(Bytes::mib(size)).stream(stream(name)).alloc().unwrap();
    [(4, FIRST), (4, SECOND), (8, FIRST)].map(alloc)
}

/// The memory of a page serves a stream elsewhere while it waits for that stream. Another stream may use a part of the page that is ready,
/// but not with other memory: the work still uses the addresses of the rest.
#[test]
fn pages_stay_mapped_while_parts_wait() {
    let backend = ScriptedBackend::new(Driver { done: true, ..Driver::default() });
    let pool = Pool::builder(&backend).page(Bytes::mib(8)).slack(0).build().unwrap();
    let [first, second, _behind] = halves(&pool);
    let place = second.address();
    drop(second);
    // Makes the second half ready.
    pool.trim(Bytes::ZERO).unwrap();
    backend.driver().done = false;
    drop(first);
    let _elsewhere = pool.request(Bytes::mib(16)).stream(stream(FIRST)).alloc().unwrap();
    assert_eq!(pool.stats().held, Bytes::mib(24).0, "the page serves its stream elsewhere");
    let other = pool.request(Bytes::mib(4)).stream(stream(SECOND)).alloc().unwrap();
    assert_eq!(pool.stats().driver_calls.unmap, 0, "addresses that work uses were unmapped");
    assert_ne!(other.address(), place);
}

/// The memory of a page that two streams have used serves neither elsewhere before both are done.
#[test]
fn pages_of_two_streams_serve_neither_elsewhere() {
    let backend = ScriptedBackend::new(Driver::default());
    let pool = Pool::builder(&backend).page(Bytes::mib(8)).slack(0).build().unwrap();
    let [first, second, _behind] = halves(&pool);
    drop(second);
    drop(first);
    let _elsewhere = pool.request(Bytes::mib(16)).stream(stream(FIRST)).alloc().unwrap();
    assert_eq!(pool.stats().held, Bytes::mib(32).0, "memory serves a stream while another one uses it");
}
