//! Failures on the thread: the growth that needs the memory reports them, and they change nothing else.

use super::{Counted, by, check, settled, thread, until, write};
use crate::case::cases;
use crate::library::failures::injected;
use crate::report::FAILURE_POINTS;
use crate::subject::{Subject, note};
use gpu_vmm_core::{Bytes, Detail, Error, Region};
use gpu_vmm_pool::Pool;
use gpu_vmm_premap::extend::Step;
use gpu_vmm_premap::{GrowingRegion, PremapOutcome, PremapThread};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "premap":
    /// Whichever driver call fails on the thread, the region is unchanged, and the growth that needs the memory reports the
    /// error.
    a_step_that_fails,
    /// If a rollback fails on the thread too, the growth that needs the memory reports that once, and later growth continues
    /// behind it.
    a_step_that_cannot_be_undone,
    /// Addresses that the thread has poisoned are not used for growth after the region was locked and unlocked.
    out_of_use_after_a_lock,
    /// Growth that fails itself leaves the region and its premapped memory unchanged.
    growth_that_fails_itself,
    /// Whichever driver call fails while the thread maps for a pool, the pool keeps the memory that it had, and releases all
    /// of it at the end.
    a_step_of_a_pool_that_fails,
    /// If a device has no memory to premap, none is taken, and growth for which there is enough memory succeeds.
    no_memory_to_premap,
    /// A failed step is not reported once the thread has mapped memory after it.
    a_failure_that_is_past,
}

/// A region on a backend with fault injection, with six granules in use and two premapped.
fn ready<B: TestKit>(
    subject: &Subject<B>,
    backend: &FaultInject<B>,
    thread: &PremapThread,
) -> GrowingRegion<FaultInject<B>> {
    let space = Region::builder(backend).on(subject.device).reserve(subject.granules(32)).build().unwrap();
    let region = GrowingRegion::new(space, by(subject, 2, 2), thread);
    region.grow_to(subject.granules(6)).unwrap();
    assert_eq!(settled(&region, thread), subject.granules(2));
    region.lock().unwrap().write_pattern(subject.device, Bytes(0), region.end(), 8).unwrap();
    region
}

/// Makes these calls fail while the thread maps the next step. Returns the number of calls.
fn step_with<B: TestKit>(
    subject: &Subject<B>,
    backend: &FaultInject<B>,
    region: &GrowingRegion<FaultInject<B>>,
    thread: &PremapThread,
    failing: &[u64],
) -> u64 {
    backend.fail_each(failing);
    let grown = region.grow_to(subject.granules(8)).unwrap();
    assert!(matches!(grown.outcome, PremapOutcome::Ready), "{grown:?}");
    settled(region, thread);
    let calls = backend.stop();
    assert_eq!(region.end(), subject.granules(8));
    calls
}

fn a_step_that_fails<B: TestKit>(subject: &Subject<B>) {
    let (backend, thread) = (FaultInject::new(subject.backend.clone()), thread());
    let mut points = 0;
    for failing in 0.. {
        let region = ready(subject, &backend, &thread);
        let live = backend.live();
        let calls = step_with(subject, &backend, &region, &thread, &[failing]);
        if calls <= failing {
            assert_eq!(region.premapped(), subject.granules(2));
            break;
        }
        points += 1;
        assert_eq!((region.premapped(), thread.used()), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(backend.live(), live, "after driver call {failing} failed");
        let same = region.lock().unwrap().count_wrong(subject.device, Bytes(0), subject.granules(6), 8);
        assert_eq!(same.unwrap(), 0);
        // The error is reported once.
        let grown = region.grow_to(subject.granules(9)).unwrap();
        let PremapOutcome::Not(Some(error)) = grown.outcome else { panic!("{grown:?}") };
        assert_eq!(injected(&error), Some(failing), "{error}");
        // After a while, the thread tries again when it is asked.
        until(|| {
            let grown = region.grow_to(region.end() + Bytes(1)).unwrap();
            assert!(!matches!(grown.outcome, PremapOutcome::Not(Some(_))), "{grown:?}");
            let _ = region.shrink_to(subject.granules(9), crate::library::tools::idle()).unwrap();
            region.grow_to(subject.granules(10)).unwrap();
            settled(&region, &thread) == subject.granules(2)
        });
    }
    assert!(points > 2, "{points} points");
    note(format!("{FAILURE_POINTS}{points}"));
}

fn a_step_of_a_pool_that_fails<B: TestKit>(subject: &Subject<B>) {
    let (backend, thread) = (FaultInject::new(subject.backend.clone()), thread());
    let builder = || Pool::builder(&backend).device(subject.device);
    // The number of calls of the request itself, before it asks the thread.
    let alone = builder().build().unwrap();
    let page = alone.snapshot().page;
    backend.fail(0, 0);
    alone.alloc(Bytes(page)).unwrap();
    let own = backend.stop();
    drop(alone);
    let mut points = 0;
    for failing in own.. {
        let pool = builder().premap(&thread, Bytes(2 * page)).build().unwrap();
        backend.fail(failing, 1);
        let block = pool.alloc(Bytes(page)).unwrap();
        Counted::ask(&thread, 80, Step::More).1.wait(80);
        let all = backend.stop() <= failing;
        let stats = pool.stats();
        assert_eq!((stats.held, stats.kept), if all { (3 * page, 2 * page) } else { (page, 0) });
        drop(block);
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!((pool.stats().held, backend.live().handles), (0, 0), "after driver call {failing} failed");
        if all {
            break;
        }
        points += 1;
    }
    assert!(points > 2, "{points} points");
    note(format!("{FAILURE_POINTS}{points}"));
}

fn a_step_that_cannot_be_undone<B: TestKit>(subject: &Subject<B>) {
    let (backend, thread) = (FaultInject::new(subject.backend.clone()), thread());
    let mut spoiled = 0;
    for first in 0..20 {
        let region = ready(subject, &backend, &thread);
        let calls = step_with(subject, &backend, &region, &thread, &[first, first + 1]);
        if calls <= first + 1 {
            continue;
        }
        assert_eq!((region.premapped(), thread.used()), (Bytes::ZERO, Bytes::ZERO));
        match region.grow_to(subject.granules(9)).map_err(Error::into_detail) {
            Ok(grown) => assert!(matches!(grown.outcome, PremapOutcome::Not(Some(_))), "{grown:?}"),
            Err(Detail::RollbackFailed { error, .. }) => {
                spoiled += 1;
                assert_eq!(injected(&error), Some(first), "{error}");
                assert_eq!(region.end(), subject.granules(8));
                // From here on, as in any region, the poisoned addresses stay and growth continues behind them.
                let end = region.lock().unwrap().end();
                assert_eq!(end, subject.granules(10));
                region.grow_to(subject.granules(12)).unwrap();
                assert_eq!(region.end(), subject.granules(12));
                // The thread maps ahead again after the pause that follows a failed step.
                until(|| {
                    region.grow_to(subject.granules(12)).unwrap();
                    settled(&region, &thread) == subject.granules(2)
                });
                let mut inside = region.lock().unwrap();
                inside.fill(subject.granules(10), subject.granules(2), 1).unwrap();
                let answer = inside.fill(subject.granules(8), subject.granules(2), 1);
                assert!(
                    matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Poisoned { .. })),
                    "{answer:?}"
                );
            }
            Err(error) => panic!("{error}"),
        }
        let same = region.lock().unwrap().count_wrong(subject.device, Bytes(0), subject.granules(6), 8);
        assert_eq!(same.unwrap(), 0);
        drop(region);
        subject.backend.drop_log().take_last();
        #[allow(unsafe_code)]
        // SAFETY: no region is left, and no device is working.
        unsafe { backend.reclaim() }.unwrap();
    }
    assert!(spoiled > 0);
    note(format!("{FAILURE_POINTS}{spoiled}"));
}

fn growth_that_fails_itself<B: TestKit>(subject: &Subject<B>) {
    let (backend, thread) = (FaultInject::new(subject.backend.clone()), thread());
    let region = ready(subject, &backend, &thread);
    for failing in 0..3 {
        backend.fail(failing, 1);
        let error = region.grow_to(subject.granules(20)).unwrap_err();
        assert_eq!(injected(&error), Some(failing), "{error}");
        backend.stop();
        assert_eq!((region.end(), region.premapped()), (subject.granules(6), subject.granules(2)));
        assert_eq!(thread.used(), subject.granules(2));
    }
    assert!(matches!(region.grow_to(subject.granules(8)).unwrap().outcome, PremapOutcome::Ready));
    assert!(matches!(region.grow_to(subject.granules(20)).unwrap().outcome, PremapOutcome::Not(None)));
}

fn no_memory_to_premap<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let total = subject.backend.memory_info(subject.device).unwrap().total;
    let all = Bytes(total.0 - total.0 % subject.unit().0);
    // One unit is taken, so that the total cannot be allocated.
    let _taken = subject.memory(1);
    let space = gpu_vmm_core::Region::builder(&subject.backend).on(subject.device).reserve(all + all);
    let ahead = gpu_vmm_premap::Premap { by: all, step: all };
    let region = GrowingRegion::new(space.build().unwrap(), ahead, &thread);
    let free = subject.free_here();
    assert_eq!(settled(&region, &thread), Bytes::ZERO);
    assert_eq!((subject.free_here(), thread.used()), (free, Bytes::ZERO));
    let grown = region.grow_to(subject.granules(2)).unwrap();
    let PremapOutcome::Not(Some(error)) = grown.outcome else { panic!("{grown:?}") };
    assert!(error.is_out_of_memory(), "{error}");
    write(subject, &region, 3);
    check(subject, &region, subject.granules(2), 3);
    let error = region.grow_to(all).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(region.end(), subject.granules(2));
}

fn out_of_use_after_a_lock<B: TestKit>(subject: &Subject<B>) {
    let (backend, thread) = (FaultInject::new(subject.backend.clone()), thread());
    let mut spoiled = 0;
    for first in 0..20 {
        let region = ready(subject, &backend, &thread);
        step_with(subject, &backend, &region, &thread, &[first, first + 1]);
        drop(region.lock().unwrap());
        let answer = region.grow_to(subject.granules(9));
        spoiled +=
            u32::from(matches!(answer.as_ref().map_err(Error::detail), Err(Detail::RollbackFailed { .. })));
        drop(region);
        subject.backend.drop_log().take_last();
        #[allow(unsafe_code)]
        // SAFETY: no region is left, and no device is working.
        unsafe { backend.reclaim() }.unwrap();
    }
    assert!(spoiled > 0, "growth used poisoned addresses");
}

fn a_failure_that_is_past<B: TestKit>(subject: &Subject<B>) {
    let (backend, thread) = (FaultInject::new(subject.backend.clone()), thread());
    let region = ready(subject, &backend, &thread);
    step_with(subject, &backend, &region, &thread, &[0]);
    assert_eq!(region.premapped(), Bytes::ZERO);
    // A user who unlocks the region asks the thread, which tries again after a pause.
    until(|| {
        drop(region.lock().unwrap());
        settled(&region, &thread) == subject.granules(2)
    });
    let grown = region.grow_to(subject.granules(12)).unwrap();
    assert!(matches!(grown.outcome, PremapOutcome::Not(None)), "{grown:?}");
}
