//! Programs whose threads do several things at once, and programs that go wrong.

use crate::programs::{PAGE, Program, budget, info, options, pages, refusal, until_programs_are};
use crate::support::{ServerProcess, WAIT, backend};
use gpu_vmm_core::{BackingStore, Bytes, Result, WaitFor};
use gpu_vmm_host::HostBackend;
use gpu_vmm_pool::{Fence, Pool};
use gpu_vmm_serve::{Quota, ServeError};
use gpu_vmm_testkit::forked::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(100);

fn impatient(server: &ServerProcess, name: &str) -> Program {
    Program::connect(&server.client(), options(name, 0, SHORT)).unwrap()
}

/// Suspends a tag as programs do themselves.
fn suspend(program: &Program, tag: &str) {
    let store = BackingStore::host(program.pool.backend()).unwrap();
    program.pool.suspend(tag, &store, WaitFor::all_devices()).unwrap();
}

/// The tag that a thread resumes can sleep, and would be waited for by the thread itself, or by another one.
#[test]
fn a_resume_of_a_sleeper_does_not_wait_for_itself() {
    let server = ServerProcess::with(budget(20));
    let (one, other) = (impatient(&server, "one"), impatient(&server, "other"));
    let block = one.tagged("kv", 8);
    one.quota.let_sleep("kv").unwrap();
    suspend(&one, "kv");
    let full = other.alloc(20).unwrap();
    let since = Instant::now();
    assert!(one.pool.resume("kv").unwrap_err().is_out_of_memory());
    std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(|| one.pool.resume("kv").is_err()));
        assert!(one.alloc(8).is_err());
        threads.into_iter().for_each(|thread| assert!(thread.join().unwrap()));
    });
    assert!(since.elapsed() < WAIT, "{:?}", since.elapsed());
    drop(full);
    assert_eq!(one.pool.resume("kv").unwrap(), pages(8));
    drop(block);
}

/// A thread resumes a tag with memory that another program gives only after this program was asked too.
#[test]
fn questions_are_answered_while_a_sleeper_resumes() {
    let server = ServerProcess::with(budget(20));
    let [one, other] = ["one", "other"].map(|name| Program::new(&server, name, 0));
    let block = one.tagged("kv", 8);
    one.quota.let_sleep("kv").unwrap();
    suspend(&one, "kv");
    let full = other.alloc(18).unwrap();
    let third = impatient(&server, "third");
    std::thread::scope(|scope| {
        let resumes = scope.spawn(|| one.pool.resume("kv").unwrap());
        let since = Instant::now();
        while info(&server, "one").wants == 0 {
            assert!(since.elapsed() < WAIT);
        }
        // A higher priority is served first, and this program is asked for it.
        let high = Program::connect(&server.client(), options("high", 1, SHORT)).unwrap();
        assert!(high.alloc(12).is_err() && third.alloc(12).is_err());
        drop(full);
        assert_eq!(resumes.join().unwrap(), pages(8));
        assert!(since.elapsed() < WAIT, "{:?}", since.elapsed());
    });
    drop(block);
}

#[test]
fn a_later_tag_of_the_same_name_does_not_sleep() {
    let server = ServerProcess::with(budget(20));
    let (one, other) = (impatient(&server, "one"), impatient(&server, "other"));
    drop(one.tagged("kv", 8));
    one.quota.let_sleep("kv").unwrap();
    one.pool.forget_tag("kv").unwrap();
    let block = one.tagged("kv", 12);
    assert!(other.alloc(12).unwrap_err().is_out_of_memory());
    assert!(!one.pool.is_suspended("kv").unwrap());
    let report = info(&server, "one").report;
    assert_eq!((report.can_sleep, report.asleep), (0, 0));
    one.quota.let_sleep("kv").unwrap();
    drop(other.alloc(12).unwrap());
    drop(block);
}

/// The handle that is connected has a tag, which ends nevertheless.
#[test]
fn the_tag_of_the_connected_handle_ends() {
    let server = ServerProcess::with(budget(20));
    let pool = Pool::builder(&backend()).build().unwrap();
    let quota = server.client().connect_pool(&pool.tagged("kv").unwrap(), options("one", 0, SHORT)).unwrap();
    drop(pool.tagged("other").unwrap());
    pool.trim(Bytes::ZERO).unwrap();
    assert!(quota.let_sleep("kv").is_err());
}

#[test]
fn no_request_waits_longer_than_its_limit_for_another_thread() {
    let server = ServerProcess::with(budget(20));
    let (one, other) = (impatient(&server, "one"), Program::new(&server, "other", 0));
    let full = other.alloc(18).unwrap();
    std::thread::scope(|scope| {
        let reserves = scope.spawn(|| one.quota.reserve(pages(10), WAIT));
        let since = Instant::now();
        while info(&server, "one").wants == 0 {
            assert!(since.elapsed() < WAIT);
        }
        let began = Instant::now();
        let error = one.alloc(4).unwrap_err();
        assert!(error.is_out_of_memory() && error.to_string().contains("another thread"), "{error}");
        assert!(began.elapsed() < WAIT / 4, "{:?}", began.elapsed());
        drop(full);
        reserves.join().unwrap().unwrap();
    });
    // Of several threads that wait, none waits for the waits of all others.
    let full = other.alloc(10).unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        (0..20).for_each(|_| drop(scope.spawn(|| assert!(one.alloc(12).is_err()))));
    });
    assert!(began.elapsed() < 20 * SHORT, "{:?}", began.elapsed());
    drop(full);
}

/// A duration that the clock cannot add.
#[test]
fn waits_can_be_endless() {
    let server = ServerProcess::with(budget(20));
    let one = Program::connect(&server.client(), options("one", 0, Duration::MAX)).unwrap();
    one.quota.reserve(pages(4), Duration::MAX).unwrap();
    drop(one.alloc(19).unwrap());
    // More than there is does not wait.
    let error = one.alloc(30).unwrap_err();
    assert!(matches!(refusal(&error), ServeError::NoRoom { waited_ms: 0, .. }), "{error}");
    assert!(one.quota.reserve(pages(21), Duration::MAX).is_err());
}

/// Many threads need much at the same time. Each gets it, although others take what was granted for it.
#[test]
fn many_threads_get_what_there_is() {
    const THREADS: u64 = 48;
    let server = ServerProcess::with(budget(THREADS * 20));
    let one = Program::new(&server, "one", 0);
    for _ in 0..3 {
        let barrier = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    let block = one.alloc(20);
                    barrier.wait();
                    drop(block.unwrap());
                });
            }
        });
        // Nothing of it is left.
        let other = Program::new(&server, "other", 0);
        other.quota.reserve(pages(THREADS * 20), WAIT).unwrap();
    }
}

/// Several threads of a program whose requests do not wait need memory at the same time, of which there is enough.
#[test]
fn threads_without_patience_get_what_is_free() {
    let server = ServerProcess::with(budget(800));
    let one = Program::connect(&server.client(), options("one", 0, Duration::ZERO)).unwrap();
    let other = Program::new(&server, "other", 0);
    for round in 0..20 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let blocks: Vec<_> = (0..60).map(|_| one.alloc(1)).collect();
                    let error = blocks.iter().find_map(|block| block.as_ref().err());
                    assert!(error.is_none(), "round {round}: {error:?}");
                });
            }
        });
        // Nothing of it is left.
        drop(other.alloc(790).unwrap());
    }
}

/// A fence that panics when a thread looks at it.
#[derive(Debug)]
struct Panics(AtomicBool);

impl Fence for Panics {
    fn is_done(&self) -> Result<bool> {
        assert!(self.0.load(Ordering::Relaxed) || std::thread::current().name() != Some("gpu-vmm-quota"));
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn wait(&self) -> Result<()> {
        self.is_done().map(drop)
    }
}

/// The program's code runs on the thread that answers: its panics end neither the thread nor the books.
#[test]
fn fences_that_panic_leave_the_books_right() {
    let server = ServerProcess::with(budget(20));
    let (one, other) = (impatient(&server, "one"), impatient(&server, "other"));
    let fence = Arc::new(Panics(AtomicBool::new(false)));
    let kept = one.alloc(2).unwrap();
    one.alloc(10).unwrap().free_after(Arc::<Panics>::clone(&fence));
    assert!(other.alloc(16).is_err());
    assert_eq!(one.pool.budget(), one.quota.granted());
    assert!(info(&server, "one").answers);
    fence.0.store(true, Ordering::Relaxed);
    drop(other.alloc(16).unwrap());
    assert_eq!(info(&server, "one").granted, one.quota.granted().0);
    assert_eq!(one.pool.budget(), one.quota.granted());
    drop(kept);
}

/// A fence that looks at the pool's part of the budget.
#[derive(Debug)]
struct Looks(Quota<HostBackend>, AtomicBool);

impl Fence for Looks {
    fn is_done(&self) -> Result<bool> {
        assert!(self.0.granted() > Bytes::ZERO && self.0.is_connected());
        Ok(self.1.load(Ordering::Relaxed))
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn fences_can_look_at_the_budget() {
    let server = ServerProcess::with(budget(20));
    let (one, other) = (impatient(&server, "one"), impatient(&server, "other"));
    let fence = Arc::new(Looks(one.quota.clone(), AtomicBool::new(false)));
    one.alloc(10).unwrap().free_after(Arc::<Looks>::clone(&fence));
    assert!(other.alloc(16).is_err());
    assert!(info(&server, "one").answers);
    fence.1.store(true, Ordering::Relaxed);
    drop(other.alloc(16).unwrap());
}

/// A thread of the parent has a lock at the fork.
#[test]
fn forked_children_wait_for_no_thread_of_the_parent() {
    let server = ServerProcess::with(budget(20));
    let parent = server.elsewhere(|client| {
        let one = Program::connect(&client, options("one", 0, SHORT)).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            (0..2).for_each(|_| {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        let _ = (one.quota.granted(), one.quota.is_connected());
                    }
                });
            });
            for _ in 0..50 {
                let child = Child::fork(|| {
                    assert!(one.quota.granted() == Bytes::ZERO && !one.quota.is_connected());
                });
                child.finish();
            }
            ends.store(true, Ordering::Relaxed);
        });
    });
    parent.finish();
}

/// A pool is asked for memory at the moment in which it is connected, and its threads request some.
#[test]
fn pools_join_while_others_want_their_memory() {
    let server = ServerProcess::with(budget(40));
    let greedy = ["a", "b", "c"].map(|name| Program::new(&server, name, 0));
    let kept = greedy[0].alloc(2).unwrap();
    for _ in 0..20 {
        let pool = Pool::builder(&backend()).build().unwrap();
        let live = pool.alloc(pages(1)).unwrap();
        let free: Vec<_> = (0..8).map(|_| pool.alloc(pages(2)).unwrap()).collect();
        drop(free);
        let ends = AtomicBool::new(false);
        let quota = std::thread::scope(|scope| {
            for program in &greedy[1..] {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        assert!(program.quota.reserve(pages(39), Duration::ZERO).is_err());
                    }
                });
            }
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    drop(pool.alloc(pages(2)));
                }
            });
            let quota = server.client().connect_pool(&pool, options("joins", 0, SHORT)).unwrap();
            ends.store(true, Ordering::Relaxed);
            quota
        });
        // Its last answer was sent before the list is.
        let since = Instant::now();
        while info(&server, "joins").granted != quota.granted().0 {
            assert!(since.elapsed() < WAIT / 4, "{} here, {:?}", quota.granted(), server.status());
        }
        assert!(pool.budget() == quota.granted() && pool.stats().held <= pool.budget().0);
        drop((live, pool, quota));
        until_programs_are(&server, 3);
    }
    drop(kept);
}

/// The server is killed and started again. Until all programs are back, none gets what another one has.
#[test]
fn programs_that_come_back_later_lose_nothing() {
    let server = ServerProcess::with(budget(20));
    let programs = ["a", "b", "c"].map(|name| impatient(&server, name));
    let kept =
        [4, 5, 6].map(pages).into_iter().zip(&programs).map(|(size, one)| one.pool.alloc(size).unwrap());
    let kept: Vec<_> = kept.collect();
    let ends = AtomicBool::new(false);
    let server = std::thread::scope(|scope| {
        let mut server = server;
        for program in &programs {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    // As much as there is without what the others have.
                    drop(program.alloc(10));
                }
            });
        }
        for _ in 0..4 {
            let folder = server.kill();
            server = ServerProcess::again(folder, budget(20));
            let since = Instant::now();
            while !programs.iter().all(|one| one.quota.is_connected()) || server.status().programs.len() != 3
            {
                assert!(since.elapsed() < WAIT, "{:?}", server.status());
            }
            let held: u64 = programs.iter().map(|one| one.pool.stats().held).sum();
            assert!(held <= 20 * PAGE, "{held:#x}");
        }
        ends.store(true, Ordering::Relaxed);
        server
    });
    for (name, program) in ["a", "b", "c"].iter().zip(&programs) {
        assert_eq!(program.quota.granted(), program.pool.budget());
        assert_eq!(info(&server, name).granted, program.quota.granted().0);
    }
    drop(kept);
}
