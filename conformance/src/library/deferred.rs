//! Memory dropped while a stream captures: its device cannot be waited for, so the backend keeps it and releases it later.

use crate::case::cases;
use crate::library::flights::{own, registered};
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::extend::Deferred;
use gpu_vmm_core::{
    Access, BankedRegion, Bytes, Detail, DeviceId, DeviceVec, Error, Operation, PhysicalMemory, Region,
};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

cases! { "deferred":
    /// A region dropped while a stream captures stays mapped and is kept, without a logged error; collecting releases it.
    kept_and_collected,
    /// While a capture is announced, gpu-vmm waits for no device, and a call that would have to wait changes nothing.
    announced_captures_are_not_disturbed,
    /// Announcing a capture returns only after calls that already wait for a device have returned.
    announced_during_a_wait,
    /// Announcing a capture returns only after a pool has recorded its event on the default stream; during the capture the pool
    /// records none.
    announced_while_a_pool_marks,
    /// The next call that waits for the devices releases the kept memory.
    the_next_wait_gives_back,
    /// Releasing a region later waits for no device; if no device has access to it, its memory is released at once.
    released_later,
    /// Memory that several devices can access is released after each of them has been waited for, in any order.
    each_device_is_waited_for,
    /// Memory that is kept after a wait has begun is not released by that wait.
    kept_during_a_wait,
    /// Unmapping kept memory is tried twice. If it fails, collecting returns the error, and a call with another purpose logs it.
    what_cannot_be_unmapped,
    /// When memory runs out, kept memory is released first, unless a capture is known.
    memory_runs_out,
    /// Closing reports that a stream captures, tries to wait only once, and the region is kept.
    closed_under_a_capture,
    /// Vectors and banked regions are kept as well.
    all_that_owns_a_region,
    /// Freed memory of a guarded region is not overwritten while a capture is known.
    no_poison_under_a_capture,
    /// Several threads drop, wait and collect at once: all memory is released, each part once.
    by_many_threads,
    /// A call that collects returns the size of the memory of all devices.
    collected_from_several_devices,
}

/// Creates a backend that can simulate captures on streams of the chosen device.
fn faulty<B: TestKit>(subject: &Subject<B>) -> FaultInject<B> {
    let backend = FaultInject::new(subject.backend.clone());
    assert_eq!(deferred(&backend).kept(), Bytes::ZERO, "memory of another case is kept");
    backend
}

fn deferred<B: TestKit>(backend: &FaultInject<B>) -> &Deferred {
    gpu_vmm_core::Backend::deferred(backend)
}

fn collect<B: TestKit>(backend: &FaultInject<B>) -> gpu_vmm_core::Result<Bytes> {
    deferred(backend).collect(backend)
}

/// Creates a region of one unit of the chosen device's memory.
fn region<B: TestKit>(subject: &Subject<B>, backend: &FaultInject<B>) -> Region<FaultInject<B>> {
    let mut region = Region::builder(backend).on(subject.device).reserve(subject.unit()).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    region
}

/// Drops a value during a capture, so that the backend keeps it.
fn drop_captured<B: TestKit>(backend: &FaultInject<B>, device: DeviceId, dropped: impl Sized) {
    backend.capture_on(device, true);
    drop(dropped);
    backend.capture_on(device, false);
}

/// Waits for a device as an operation of a region does.
fn wait<B: TestKit>(subject: &Subject<B>, backend: &FaultInject<B>) -> gpu_vmm_core::Result<()> {
    let mut other = region(subject, backend);
    other.unmap(Bytes(0), subject.unit(), idle())
}

fn kept_and_collected<B: TestKit>(subject: &Subject<B>) {
    let (backend, unit) = (faulty(subject), subject.unit());
    let (region, free) = (region(subject, &backend), subject.free_here());
    backend.capture_on(subject.device, true);
    drop(region);
    assert_eq!((deferred(&backend).kept(), subject.free_here()), (unit, free));
    assert_eq!(backend.live().mappings, 1, "the memory is still mapped");
    let error = collect(&backend).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Capturing { .. }) && error.operation() == Operation::WaitForDevice,
        "{error}"
    );
    assert_eq!((deferred(&backend).kept(), backend.live().mappings), (unit, 1));
    backend.capture_on(subject.device, false);
    assert_eq!(collect(&backend).unwrap(), unit);
    assert_eq!(collect(&backend).unwrap(), Bytes::ZERO, "the memory was released once");
    let live = backend.live();
    assert_eq!((deferred(&backend).kept(), live.mappings, live.handles), (Bytes::ZERO, 0, 0));
    assert!(subject.backend.drop_log().take_last().is_none(), "a drop during a capture is not a failure");
}

fn announced_captures_are_not_disturbed<B: TestKit>(subject: &Subject<B>) {
    let (backend, unit) = (faulty(subject), subject.unit());
    let [dropped, mut left] = [(); 2].map(|()| region(subject, &backend));
    let known = deferred(&backend);
    known.capture_begins();
    known.capture_begins();
    known.capture_ends();
    assert!(known.is_capturing(), "one of two captures has ended");
    backend.fail(0, 0);
    drop(dropped);
    for answer in [
        left.unmap(Bytes(0), unit, idle()),
        left.set_access(Bytes(0), unit, subject.device, Access::Read),
        left.shrink_to(Bytes(0), idle()).map(drop),
        collect(&backend).map(drop),
    ] {
        assert!(
            matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Capturing { source: None, .. })),
            "{answer:?}"
        );
    }
    assert_eq!(backend.stop(), 0, "a driver call was made");
    assert_eq!((known.kept(), left.mapped(), left.access(Bytes(0), subject.device)), (unit, unit, RW));
    known.capture_ends();
    known.capture_ends();
    assert!(!known.is_capturing());
    known.capture_begins();
    assert!(known.is_capturing(), "ending a capture that had not begun has no effect");
    known.capture_ends();
    left.unmap(Bytes(0), unit, idle()).unwrap();
    assert_eq!(known.kept(), Bytes::ZERO);
}

/// Calls `act`, and lets another thread announce a capture during the first call of this kind that `act` makes. Checks
/// that the announcement returns after that call, not before.
fn announce_during<B: TestKit>(backend: &FaultInject<B>, call: Operation, act: impl FnOnce()) {
    let (sender, receiver) = channel::<()>();
    let announcing = Arc::new(Mutex::new(None));
    let (meanwhile, thread) = (backend.clone(), Arc::clone(&announcing));
    backend.during(call, move || {
        let announcer = meanwhile.clone();
        *thread.lock().unwrap() = Some(std::thread::spawn(move || {
            deferred(&announcer).capture_begins();
            drop(sender);
        }));
        while !deferred(&meanwhile).is_capturing() {
            std::thread::yield_now();
        }
        let early = receiver.recv_timeout(Duration::from_millis(20));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "the call still waits for the driver");
        // A caller that waited for the announcement here would hold its locks until the driver returned.
        let refused = deferred(&meanwhile).unless_capturing(Operation::Unmap, || Ok(()));
        assert!(
            matches!(refused.as_ref().map_err(Error::detail), Err(Detail::Capturing { .. })),
            "{refused:?}"
        );
    });
    act();
    announcing.lock().unwrap().take().expect("the call was made").join().unwrap();
    deferred(backend).capture_ends();
}

fn announced_during_a_wait<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    let mut region = region(subject, &backend);
    announce_during(&backend, Operation::WaitForDevice, || {
        region.unmap(Bytes(0), subject.unit(), idle()).unwrap();
    });
}

fn announced_while_a_pool_marks<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    let pool = Pool::builder(&backend).device(subject.device).build().unwrap();
    let page = Bytes(pool.snapshot().page);
    let own = own(subject);
    let stream = registered(&pool, &*own);
    let mut blocks = Vec::new();
    // A request on another stream makes the pool poll the default stream.
    let mut ask = || blocks.push(stream.alloc(page).unwrap());
    let free_on_the_default_stream = || drop(pool.alloc(page).unwrap());
    free_on_the_default_stream();
    announce_during(&backend, Operation::RecordEvent, &mut ask);
    free_on_the_default_stream();
    let held = pool.stats().held;
    deferred(&backend).capture_begins();
    ask();
    deferred(&backend).capture_ends();
    assert_eq!(pool.stats().held, held + page.0, "the pool recorded an event on the default stream");
}

fn the_next_wait_gives_back<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    for count in [1, 3] {
        for _ in 0..count {
            drop_captured(&backend, subject.device, region(subject, &backend));
        }
        assert_eq!(
            (deferred(&backend).kept(), backend.live().mappings),
            (subject.units(count), count as usize)
        );
        wait(subject, &backend).unwrap();
        assert_eq!((deferred(&backend).kept(), backend.live().mappings), (Bytes::ZERO, 0));
    }
}

fn released_later<B: TestKit>(subject: &Subject<B>) {
    let (backend, unit) = (faulty(subject), subject.unit());
    let (used, mut unused) = (region(subject, &backend), region(subject, &backend));
    unused.set_access(Bytes(0), unit, subject.device, Access::None).unwrap();
    deferred(&backend).capture_begins();
    backend.fail(0, 0);
    used.release_later();
    assert_eq!((backend.stop(), deferred(&backend).kept()), (0, unit), "no driver call was made");
    unused.release_later();
    assert_eq!((backend.live().mappings, deferred(&backend).kept()), (1, unit), "no device uses it");
    deferred(&backend).capture_ends();
    assert_eq!(collect(&backend).unwrap(), unit);
    Region::builder(&backend).reserve(unit).build().unwrap().release_later();
    assert_eq!(deferred(&backend).kept(), Bytes::ZERO, "the region was empty");
}

fn each_device_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    for (first, last) in [(one, other), (other, one)] {
        let backend = faulty(subject);
        let mut both = region(subject, &backend);
        both.set_access(Bytes(0), subject.unit(), other, RW).unwrap();
        drop_captured(&backend, last, both);
        let wait_for = |device| {
            let mut region = Region::builder(&backend).on(device).reserve(subject.unit()).build().unwrap();
            region.grow_to(subject.unit()).unwrap();
            region.unmap(Bytes(0), subject.unit(), idle()).unwrap();
        };
        wait_for(first);
        wait_for(first);
        assert_eq!(deferred(&backend).kept(), subject.unit(), "{last} may still use it");
        assert_eq!(backend.live().mappings, 1);
        wait_for(last);
        assert_eq!((deferred(&backend).kept(), backend.live().mappings), (Bytes::ZERO, 0));
        // A capture on one device keeps the memory that the device can access, and no memory of another device.
        let [mut both, alone] = [(); 2].map(|()| region(subject, &backend));
        both.set_access(Bytes(0), subject.unit(), other, RW).unwrap();
        drop_captured(&backend, one, [both, alone]);
        backend.capture_on(other, true);
        let error = collect(&backend).unwrap_err();
        assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}");
        assert_eq!(deferred(&backend).kept(), subject.unit());
        backend.capture_on(other, false);
        assert_eq!(collect(&backend).unwrap(), subject.unit());
    }
}

fn kept_during_a_wait<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    // The memory kept before the wait makes the wait release something.
    drop_captured(&backend, subject.device, region(subject, &backend));
    let late = Mutex::new(Some(region(subject, &backend)));
    backend.during(Operation::WaitForDevice, move || {
        if let Some(region) = late.lock().unwrap().take() {
            region.release_later();
        }
    });
    assert_eq!(collect(&backend).unwrap(), subject.unit());
    assert_eq!(deferred(&backend).kept(), subject.unit(), "work on it may have been queued after the wait");
    assert_eq!(backend.live().mappings, 1);
    assert_eq!(collect(&backend).unwrap(), subject.unit());
    assert_eq!(backend.live().mappings, 0);
}

#[allow(unsafe_code)]
fn what_cannot_be_unmapped<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    let log = subject.backend.drop_log();
    // The wait is the first call, and the unmap the second.
    for failing in 1..=2 {
        drop_captured(&backend, subject.device, region(subject, &backend));
        backend.fail(1, failing);
        let collected = collect(&backend);
        backend.stop();
        assert_eq!(deferred(&backend).kept(), Bytes::ZERO);
        assert!(log.take_last().is_none(), "the error was returned, so it is not logged");
        if failing == 1 {
            assert_eq!(collected.unwrap(), subject.unit());
            assert_eq!(backend.live().mappings, 0);
        } else {
            assert!(
                matches!(collected.as_ref().map_err(Error::detail), Err(Detail::RollbackFailed { .. })),
                "{collected:?}"
            );
            assert_eq!(backend.live().mappings, 1, "the memory stays mapped in the driver");
        }
    }
    drop_captured(&backend, subject.device, region(subject, &backend));
    let mut other = region(subject, &backend);
    backend.fail(1, 2);
    other.unmap(Bytes(0), subject.unit(), idle()).unwrap();
    backend.stop();
    assert!(
        matches!(log.take_last().unwrap().detail(), Detail::RollbackFailed { .. }),
        "the error concerns the dropped region"
    );
    // So it does if memory runs out: the first call is the allocation's.
    drop_captured(&backend, subject.device, region(subject, &backend));
    let too_much = subject.free_here() + subject.unit();
    backend.fail(2, 2);
    let created = PhysicalMemory::create(&backend, too_much, subject.properties());
    backend.stop();
    assert!(
        matches!(created.as_ref().map_err(Error::detail), Err(Detail::OutOfMemory { .. })),
        "{created:?}"
    );
    assert!(matches!(log.take_last().unwrap().detail(), Detail::RollbackFailed { .. }));
    drop(other);
    // SAFETY: no region is left, and no device uses the memory.
    assert_eq!(unsafe { backend.reclaim() }.unwrap(), 3);
}

fn memory_runs_out<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    drop_captured(&backend, subject.device, region(subject, &backend));
    // More than the free memory, and all of it once the kept memory has been released.
    let all = subject.free_here() + subject.unit();
    let create = || PhysicalMemory::create(&backend, all, subject.properties()).map(drop);
    deferred(&backend).capture_begins();
    backend.fail(0, 0);
    assert!(matches!(create().as_ref().map_err(Error::detail), Err(Detail::OutOfMemory { .. })));
    assert_eq!((backend.stop(), deferred(&backend).kept()), (1, subject.unit()), "creation was tried once");
    deferred(&backend).capture_ends();
    // A capture that no call has announced prevents the wait. That is no failure of a destructor.
    backend.capture_on(subject.device, true);
    assert!(matches!(create().as_ref().map_err(Error::detail), Err(Detail::OutOfMemory { .. })));
    assert_eq!(deferred(&backend).kept(), subject.unit());
    assert!(subject.backend.drop_log().take_last().is_none());
    backend.capture_on(subject.device, false);
    let created = create();
    assert_eq!(
        deferred(&backend).kept(),
        Bytes::ZERO,
        "the kept memory was not released when memory ran out"
    );
    if subject.target.is_fresh() {
        created.unwrap();
    }
    backend.fail(0, 0);
    let more = PhysicalMemory::create(&backend, all + subject.unit(), subject.properties());
    assert!(
        matches!(
            more.as_ref().map_err(Error::detail),
            Err(Detail::OutOfMemory { .. } | Detail::ExceedsDevice { .. })
        ),
        "{more:?}"
    );
    assert!(backend.stop() <= 1, "no memory is kept, so no wait is needed");
}

fn closed_under_a_capture<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    let region = region(subject, &backend);
    backend.capture_on(subject.device, true);
    backend.fail(0, 0);
    let error = region.close(idle()).unwrap_err();
    assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}");
    assert_eq!(backend.stop(), 1, "each attempt to wait invalidates a capture");
    assert_eq!(deferred(&backend).kept(), subject.unit());
    backend.capture_on(subject.device, false);
    assert_eq!(collect(&backend).unwrap(), subject.unit());
}

fn all_that_owns_a_region<B: TestKit>(subject: &Subject<B>) {
    let backend = faulty(subject);
    let builder = || Region::builder(&backend).on(subject.device).reserve(subject.unit());
    let mut vec = DeviceVec::<u32, _>::build(builder()).unwrap();
    vec.push(7).unwrap();
    let mut banked = BankedRegion::build(builder()).unwrap();
    let [shown, hidden] = [(); 2].map(|()| banked.add_bank(subject.unit()).unwrap());
    banked.select(hidden, idle()).unwrap();
    banked.select(shown, idle()).unwrap();
    let in_vec = vec.region().mapped();
    let free = subject.free_here();
    backend.capture_on(subject.device, true);
    drop(vec);
    assert_eq!(deferred(&backend).kept(), in_vec);
    drop(banked);
    assert_eq!(
        deferred(&backend).kept(),
        in_vec + subject.unit(),
        "the hidden bank is not mapped, so it is not kept"
    );
    if subject.gives_back_at_once() {
        assert_eq!(subject.free_here(), free + subject.unit());
    }
    backend.capture_on(subject.device, false);
    assert_eq!(collect(&backend).unwrap(), in_vec + subject.unit());
    let live = backend.live();
    assert_eq!((live.mappings, live.handles), (0, 0));
    assert!(subject.backend.drop_log().take_last().is_none());
}

fn no_poison_under_a_capture<B: TestKit>(subject: &Subject<B>) {
    let (backend, unit) = (faulty(subject), subject.unit());
    let guarded = || {
        let builder = Region::builder(&backend).on(subject.device).reserve(unit).guarded();
        let mut region = builder.build().unwrap();
        region.grow_to(unit).unwrap();
        let memory = region.mapping_at(Bytes(0)).unwrap().memory.clone();
        region.unmap(Bytes(0), unit, idle()).unwrap();
        (memory, region)
    };
    for is_known in [true, false] {
        let (memory, _region) = guarded();
        if is_known {
            deferred(&backend).capture_begins();
        }
        backend.fail(0, 0);
        drop(memory);
        assert_eq!(backend.stop() == 0, is_known, "memory is filled only while no capture is known");
        if is_known {
            deferred(&backend).capture_ends();
        }
    }
    assert!(subject.backend.drop_log().take_last().is_none());
}

fn by_many_threads<B: TestKit>(subject: &Subject<B>) {
    const ROUNDS: u32 = 30;
    let (backend, device) = (faulty(subject), subject.device);
    let collected = Mutex::new(Bytes::ZERO);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (backend, collected) = (&backend, &collected);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    match (thread + round) % 4 {
                        0 => drop(region(subject, backend)),
                        1 => region(subject, backend).release_later(),
                        2 => backend.capture_on(device, round % 2 == 0),
                        _ => match collect(backend) {
                            Ok(size) => *collected.lock().unwrap() += size,
                            Err(error) => {
                                assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}")
                            }
                        },
                    }
                }
            });
        }
    });
    backend.capture_on(device, false);
    collect(&backend).unwrap();
    let live = backend.live();
    assert_eq!((deferred(&backend).kept(), live.mappings, live.handles), (Bytes::ZERO, 0, 0));
    assert!(*collected.lock().unwrap() <= subject.units(u64::from(4 * ROUNDS)));
    assert!(subject.backend.drop_log().take_last().is_none());
}

fn collected_from_several_devices<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let backend = faulty(subject);
    for device in [one, other] {
        let mut region = Region::builder(&backend).on(device).reserve(subject.unit()).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        region.release_later();
    }
    assert_eq!(deferred(&backend).kept(), subject.units(2));
    assert_eq!(collect(&backend).unwrap(), subject.units(2));
    assert_eq!((deferred(&backend).kept(), backend.live().mappings), (Bytes::ZERO, 0));
}
