//! After a time without work, in which the thread has fallen asleep.

use super::{Counted, by, grow, growing, is_ready, thread, until};
use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::Bytes;
use gpu_vmm_pool::Pool;
use gpu_vmm_premap::PremapOutcome;
use gpu_vmm_premap::extend::Step;
use gpu_vmm_testkit::TestKit;
use std::time::Duration;

cases! { "premap":
    /// Work that is asked for while the thread sleeps wakes it.
    woken_from_sleep,
    /// A region that was idle, and then grows beyond what is mapped, finds each of the next 12 steps mapped.
    a_region_that_was_idle,
    /// A pool that was idle, and then runs out of mapped memory, has memory mapped ahead after each of 12 such steps.
    a_pool_that_was_idle,
    /// A pool maps no more ahead than it may hold.
    a_pool_with_a_budget,
    /// A pool maps nothing ahead for small blocks.
    a_pool_of_small_blocks,
}

/// Until the thread, which sleeps after a second without work, has fallen asleep.
fn fall_asleep() {
    std::thread::sleep(Duration::from_millis(1300));
}

fn woken_from_sleep<B: TestKit>(_: &Subject<B>) {
    let thread = thread();
    let (asks, work) = Counted::ask(&thread, u32::MAX, Step::Done);
    work.wait(1);
    fall_asleep();
    for steps in 2..8 {
        asks.ask();
        work.wait(steps);
    }
}

fn a_region_that_was_idle<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let region = growing(subject, by(subject, 4, 2), &thread);
    fall_asleep();
    assert!(matches!(grow(subject, &region, 7), PremapOutcome::Not(None)));
    for granules in 8..20 {
        // Then no other step of two granules has room.
        until(|| region.premapped() > subject.granules(2));
        assert!(is_ready(&grow(subject, &region, granules)), "the step to {granules} granules");
    }
}

fn a_pool_that_was_idle<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    // The size of a pool's frames.
    let page = subject.granules(1).max(Bytes::mib(2));
    let pool = Pool::builder(&subject.backend).device(subject.device).premap(&thread, page).build().unwrap();
    fall_asleep();
    let mut blocks = Vec::new();
    for _ in 0..12 {
        // More than is mapped ahead, so that the request maps memory itself.
        blocks.push(pool.alloc(Bytes(2 * page.0)).unwrap());
        until(|| {
            let stats = pool.stats();
            stats.held == stats.live + page.0
        });
    }
}

fn a_pool_with_a_budget<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let page = subject.granules(1).max(Bytes::mib(2)).0;
    let builder = Pool::builder(&subject.backend).device(subject.device).budget(Bytes(page * 4));
    let pool = builder.premap(&thread, Bytes(page * 16)).build().unwrap();
    let block = pool.alloc(Bytes(page * 2)).unwrap();
    until(|| pool.stats().held >= page * 4);
    drop(block);
    let all = pool.alloc(Bytes(page * 4)).unwrap();
    assert_eq!(pool.stats().peak_held, page * 4);
    drop(all);
}

fn a_pool_of_small_blocks<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let page = subject.granules(1).max(Bytes::mib(2)).0;
    let builder = Pool::builder(&subject.backend).device(subject.device);
    let pool = builder.premap(&thread, Bytes(page * 4)).build().unwrap();
    let block = pool.alloc(Bytes(100)).unwrap();
    Counted::ask(&thread, 80, Step::More).1.wait(80);
    assert_eq!(pool.stats().held, page);
    drop(block);
}
