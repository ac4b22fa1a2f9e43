//! Premapping after an idle time, when the thread has fallen asleep.

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
    /// A request for work wakes the sleeping thread.
    woken_from_sleep,
    /// When an idle region grows beyond its mapped memory, each of the next 12 steps finds its memory premapped.
    a_region_that_was_idle,
    /// When an idle pool needs more than its mapped memory, memory is premapped after each of 12 such requests.
    a_pool_that_was_idle,
    /// A pool premaps no more than its budget allows.
    a_pool_with_a_budget,
    /// A pool premaps nothing for small blocks.
    a_pool_of_small_blocks,
}

/// Waits until the thread, which sleeps after a second without work, has fallen asleep.
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
        // Then there is no room for another step of two granules.
        until(|| region.premapped() > subject.granules(2));
        assert!(is_ready(&grow(subject, &region, granules)), "the step to {granules} granules");
    }
}

/// Returns the size of a pool's pages.
fn page<B: TestKit>(subject: &Subject<B>) -> Bytes {
    let pool = Pool::builder(&subject.backend).device(subject.device).build().unwrap();
    Bytes(pool.snapshot().page)
}

fn a_pool_that_was_idle<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let page = page(subject);
    let pool = Pool::builder(&subject.backend).device(subject.device).premap(&thread, page).build().unwrap();
    fall_asleep();
    let mut blocks = Vec::new();
    for _ in 0..12 {
        // More than is premapped, so that the request maps memory itself.
        blocks.push(pool.alloc(Bytes(2 * page.0)).unwrap());
        until(|| {
            let stats = pool.stats();
            stats.held == stats.live + page.0
        });
    }
}

fn a_pool_with_a_budget<B: TestKit>(subject: &Subject<B>) {
    let thread = thread();
    let page = page(subject).0;
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
    let page = page(subject).0;
    let builder = Pool::builder(&subject.backend).device(subject.device);
    let pool = builder.premap(&thread, Bytes(page * 4)).build().unwrap();
    let block = pool.alloc(Bytes(100)).unwrap();
    Counted::ask(&thread, 80, Step::More).1.wait(80);
    assert_eq!(pool.stats().held, page);
    drop(block);
}
