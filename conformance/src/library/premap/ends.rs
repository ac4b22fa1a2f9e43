//! Drops, forks, and the end of the process.

use super::{by, check, grow, growing, settled, thread, write};
use crate::case::cases;
use crate::fork_server::Ended;
use crate::library::fork::{first_wrong, forked};
use crate::library::tools::idle;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::Bytes;
use gpu_vmm_premap::{GrowingRegion, PremapThread};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::forked::is_forked;
use std::sync::atomic::{AtomicBool, Ordering};

cases! { "premap":
    /// A region that is dropped while the thread maps memory for it leaks nothing, at any point of that work.
    dropped_while_it_works,
    /// A thread that is dropped before its regions still works for them, and ends with the last region.
    the_thread_is_dropped_first,
    /// In a child that is forked while the thread works, every call returns an error and none blocks, including drops.
    forked_while_it_works,
    /// A process can exit while its thread is working.
    the_process_ends_while_it_works with ends_while_it_works,
}

fn dropped_while_it_works<B: TestKit>(subject: &Subject<B>) {
    let (thread, free) = (thread(), subject.free_here());
    for round in 0..60 {
        let space = subject.space(64).build().unwrap();
        let region = GrowingRegion::new(space, by(subject, 64, 1), &thread);
        std::thread::sleep(std::time::Duration::from_micros(round * 20));
        if round % 2 == 0 {
            grow(subject, &region, 3);
        }
        drop(region);
        assert_eq!(thread.used(), Bytes::ZERO);
    }
    assert_eq!(subject.free_here(), free);
}

fn the_thread_is_dropped_first<B: TestKit>(subject: &Subject<B>) {
    let (thread, other) = (thread(), thread());
    let region = growing(subject, by(subject, 4, 2), &thread);
    drop(thread);
    grow(subject, &region, 4);
    super::until(|| region.premapped() == subject.granules(4));
    drop(region);
    settled(&growing(subject, by(subject, 1, 1), &other), &other);
}

fn forked_while_it_works<B: TestKit>(subject: &Subject<B>) {
    let mut thread = Some(thread());
    let mut region = Some(growing(subject, by(subject, 8, 1), thread.as_ref().unwrap()));
    grow(subject, region.as_ref().unwrap(), 4);
    write(subject, region.as_ref().unwrap(), 7);
    let stop = AtomicBool::new(false);
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        let busy = thread.clone().unwrap();
        let stop = &stop;
        // The thread is busy all the time, so that it is inside of the driver when the process forks.
        scope.spawn(move || {
            let other = GrowingRegion::new(subject.space(32).build().unwrap(), by(subject, 8, 1), &busy);
            while !stop.load(Ordering::Relaxed) {
                grow(subject, &other, 16);
                let _ = other.shrink_to(Bytes(0), idle()).unwrap();
            }
        });
        let ended = (0..8).map(|round| {
            std::thread::sleep(std::time::Duration::from_millis(3));
            forked(|| {
                let (Some(region), Some(thread)) = (region.take(), thread.take()) else { return 99 };
                let wrong = first_wrong(&[
                    is_forked(region.grow_to(subject.granules(1))),
                    is_forked(region.grow_to(subject.granules(6))),
                    is_forked(region.grow_to(subject.granules(60))),
                    is_forked(region.shrink_to(Bytes(0), idle())),
                    is_forked(region.lock()),
                    region.end() == subject.granules(4),
                ]);
                if round % 2 == 0 {
                    drop(region);
                    drop(thread);
                } else {
                    drop(thread);
                    drop(region);
                }
                wrong
            })
        });
        let ended = ended.collect();
        stop.store(true, Ordering::Relaxed);
        ended
    });
    assert_eq!(ended, [Ended::Exit(0); 8], "the index of the check that failed, or a signal for a lock");
    let (region, thread) = (region.unwrap(), thread.unwrap());
    check(subject, &region, subject.granules(4), 7);
    settled(&region, &thread);
    drop(region);
    assert_eq!(thread.used(), Bytes::ZERO);
}

fn the_process_ends_while_it_works<B: TestKit>(subject: &Subject<B>) {
    for _ in 0..5 {
        subject.child().finish();
    }
}

fn ends_while_it_works<B: TestKit>(subject: &Subject<B>, _: &Peer) {
    let thread = PremapThread::start(super::ENOUGH).unwrap();
    let space = subject.space(64).build().unwrap();
    let region = Box::leak(Box::new(GrowingRegion::new(space, by(subject, 64, 1), &thread)));
    std::mem::forget(thread);
    let region: &GrowingRegion<B> = region;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            grow(subject, region, 2);
        });
    });
    // Runs the exit handlers of other threads and libraries.
    std::process::exit(0)
}
