//! Many rounds in which memory is unmapped or reused while work still uses it. Several threads begin their work together, so
//! that it overlaps although most of them wait for the whole device. Captures are announced; a thread that cannot wait
//! because of a capture tries again.
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_VMM_ROUNDS` | 16 | the number of rounds, over all threads |
//! | `GPU_VMM_ROUND_WORK` | 1 | the duration of a round's work, in multiples of about 60 ms |
#![allow(unsafe_code)] // starts work, captures streams, launches graphs

use super::in_flight::{AFTER, check, mapped};
use crate::case::cases;
use crate::library::captures::Announced;
use crate::library::flights::{finish, own, registered, rounds, start_on};
use crate::library::tools::{idle, setting};
use crate::subject::{Subject, note};
use gpu_vmm_core::{Bytes, Detail, Error, Region};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{CaptureMode, TestKit, WorkStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

cases! { "order":
    /// With many threads at once, memory is unmapped or reused only after the work on it has ended: work of other contexts,
    /// default streams and pool streams, and eager work before a capture.
    rounds_under_work,
}

const THREADS: u64 = 8;
const BEFORE: u64 = 2;

/// One round. Returns false if the backend lacks what the round needs. Each round [meets](Thread::meet) the others when its
/// work has begun.
type Round<B> = fn(&Thread<'_, B>, u32) -> bool;

/// The parts that a thread needs for its rounds.
struct Thread<'a, B: TestKit> {
    subject: &'a Subject<B>,
    pool: &'a Pool<B>,
    own: &'a dyn WorkStream,
    /// A stream in another context, if a device can have several contexts.
    elsewhere: Option<&'a dyn WorkStream>,
    meeting: &'a Meeting,
}

/// The point at which the threads of a wave wait for each other.
#[derive(Default)]
struct Meeting {
    came: AtomicU64,
    failed: AtomicBool,
}

impl<B: TestKit> Thread<'_, B> {
    /// Waits until the work of all rounds of this wave has begun or failed to begin.
    fn meet(&self) {
        let wave = self.meeting.came.fetch_add(1, Ordering::AcqRel) / THREADS;
        while self.meeting.came.load(Ordering::Acquire) < (wave + 1) * THREADS {
            self.meeting.go_on();
        }
    }
}

impl Meeting {
    /// Lets other threads run. Panics if another thread has failed, since that thread may have left a capture open forever.
    fn go_on(&self) {
        assert!(!self.failed.load(Ordering::Relaxed), "the round of another thread has failed");
        thread::yield_now();
    }
}

impl<B: TestKit> Drop for Thread<'_, B> {
    fn drop(&mut self) {
        self.meeting.failed.fetch_or(thread::panicking(), Ordering::Relaxed);
    }
}

fn rounds_under_work<B: TestKit>(subject: &Subject<B>) {
    subject.needs_kernels();
    let (count, times) = (setting("GPU_VMM_ROUNDS", 16), setting("GPU_VMM_ROUND_WORK", 1) as u32);
    let kinds: [Round<B>; 4] = [another_context, another_threads_stream, another_stream, a_capture];
    let (meeting, seen) = (Meeting::default(), [const { AtomicU64::new(0) }; 4]);
    let streams: Vec<_> = (0..THREADS).map(|_| own(subject)).collect();
    let pool = Pool::builder(&subject.backend).device(subject.device).build().unwrap();
    let kept = subject.backend.deferred().kept();
    thread::scope(|scope| {
        for (kind, own) in (0..kinds.len()).cycle().zip(&streams) {
            let (meeting, seen, pool, round) = (&meeting, &seen[kind], &pool, kinds[kind]);
            scope.spawn(move || {
                // Contexts share the device in time slices, so a few of them slow the others down only a little.
                let elsewhere =
                    (kind == 0).then(|| subject.backend.stream_elsewhere(subject.device).ok()).flatten();
                let thread = Thread { subject, pool, own: &**own, elsewhere: elsewhere.as_deref(), meeting };
                for _ in 0..count.div_ceil(THREADS) {
                    seen.fetch_add(u64::from(round(&thread, times)), Ordering::Relaxed);
                }
            });
        }
    });
    // Collects the regions that were dropped during a capture.
    subject.backend.deferred().collect(&subject.backend).unwrap();
    assert_eq!(subject.backend.deferred().kept(), kept);
    let seen = seen.map(|seen| seen.into_inner());
    assert!(seen[2] > 0, "all work had ended before the calls returned, so the rounds show nothing");
    note(format!(
        "rounds: {} of another context, {} of another thread's stream, {} of a pool's stream, {} before a capture",
        seen[0], seen[1], seen[2], seen[3]
    ));
}

/// Returns true if a call failed because of a capture.
fn is_of_a_capture(error: &Error) -> bool {
    matches!(error.detail(), Detail::Capturing { .. })
}

/// Unmaps and waits for all devices, as soon as no stream captures.
fn unmap<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, meeting: &Meeting) {
    loop {
        match region.unmap(Bytes::ZERO, subject.unit(), idle()) {
            Err(error) if is_of_a_capture(&error) => meeting.go_on(),
            answer => return answer.unwrap(),
        }
    }
}

/// A kernel in another context, which is the current one when the memory is unmapped.
fn another_context<B: TestKit>(thread: &Thread<'_, B>, times: u32) -> bool {
    let subject = thread.subject;
    let Some(stream) = thread.elsewhere else {
        thread.meet();
        return false;
    };
    let memory = subject.memory(1);
    let mut region = mapped(subject, &memory);
    region.write_pattern(subject.device, Bytes::ZERO, subject.unit(), BEFORE).unwrap();
    start_on(subject, stream, (&region, Bytes::ZERO), AFTER, times);
    thread.meet();
    subject.backend.in_context_of(stream, &mut || unmap(subject, &mut region, thread.meeting)).unwrap();
    assert!(stream.is_done().unwrap(), "unmapped before the work of another context had ended");
    check(subject, &mapped(subject, &memory), Bytes::ZERO);
    true
}

/// A kernel on this thread's default stream, while another thread unmaps.
fn another_threads_stream<B: TestKit>(thread: &Thread<'_, B>, times: u32) -> bool {
    let subject = thread.subject;
    let Some(stream) = subject.backend.per_thread_stream() else {
        thread.meet();
        return false;
    };
    let memory = subject.memory(1);
    let mut region = mapped(subject, &memory);
    region.write_pattern(subject.device, Bytes::ZERO, subject.unit(), BEFORE).unwrap();
    let (at, rounds) = (region.address(), rounds(subject) * times);
    // SAFETY: the region is mapped, and unmapping it waits for the work, as this case checks.
    let started = unsafe {
        subject.backend.start_pattern_on(subject.device, stream, at, subject.unit(), AFTER, rounds)
    };
    thread.meet();
    if started.is_err() {
        return false;
    }
    thread::scope(|scope| scope.spawn(|| unmap(subject, &mut region, thread.meeting)).join()).unwrap();
    check(subject, &mapped(subject, &memory), Bytes::ZERO);
    true
}

/// Starts work on a block. Returns false if it had ended at once.
fn work<B: TestKit>(subject: &Subject<B>, own: &dyn WorkStream, block: &Block<B>, times: u32) -> bool {
    // SAFETY: the pool must not reuse the memory until the work has ended, as this case checks.
    unsafe {
        subject.backend.start_pattern_on(
            subject.device,
            own.stream(),
            block.address(),
            subject.unit(),
            AFTER,
            rounds(subject) * times,
        )
    }
    .unwrap();
    !own.is_done().unwrap()
}

/// Waits for a stream of the pool, on which the pool may record an event for another thread at any time.
fn wait<B: TestKit>(subject: &Subject<B>, own: &dyn WorkStream) {
    subject.backend.synchronize_stream(subject.device, own.stream()).unwrap();
}

fn overlap<B: TestKit>(one: &Block<B>, (from, to): (u64, u64)) -> bool {
    one.address().0 < to && from < one.address().0 + one.capacity().0
}

/// A block of one stream that is freed while its work runs, and requests on another stream.
fn another_stream<B: TestKit>(thread: &Thread<'_, B>, times: u32) -> bool {
    let Thread { subject, pool, own: own_, .. } = *thread;
    let other = own(subject);
    let [ours, theirs] = [own_, other.as_ref()].map(|stream| registered(pool, stream));
    let block = ours.alloc(subject.unit()).unwrap();
    let is_seen = work(subject, own_, &block, times);
    let at = (block.address().0, block.address().0 + block.capacity().0);
    thread.meet();
    drop(block);
    let next: Vec<_> = (0..3).map(|_| theirs.alloc(subject.unit()).unwrap()).collect();
    let wrong = next.iter().any(|next| overlap(next, at));
    assert!(!wrong || own_.is_done().unwrap(), "given to another stream before the work had ended");
    wait(subject, own_);
    is_seen
}

/// A block that is freed while eager work runs, and a capture of the same stream whose graph is launched on another stream.
fn a_capture<B: TestKit>(thread: &Thread<'_, B>, times: u32) -> bool {
    let Thread { subject, pool, own: own_, .. } = *thread;
    let launched = own(subject);
    let stream = registered(pool, own_);
    let block = stream.alloc(subject.unit()).unwrap();
    let is_seen = work(subject, own_, &block, times);
    let at = (block.address().0, block.address().0 + block.capacity().0);
    thread.meet();
    drop(block);
    let announced = Announced::new(&subject.backend);
    // SAFETY: the capture is ended below, on this thread.
    if unsafe { subject.backend.begin_capture(subject.device, own_.stream(), CaptureMode::Relaxed) }.is_err()
    {
        wait(subject, own_);
        return false;
    }
    let next = stream.alloc(subject.unit()).unwrap();
    // SAFETY: the block is live until the graph has run.
    let queued = unsafe {
        subject.backend.start_pattern_on(subject.device, own_.stream(), next.address(), subject.unit(), 7, 1)
    };
    let graph = subject.backend.end_capture(subject.device, own_.stream());
    drop(announced);
    let graph = match queued.and(graph) {
        // The deviation's entry: another thread asked whether the stream captures, and then queried an event on it.
        Err(error) if is_of_a_capture(&error) && subject.has_quirk("events-spoil-captures") => {
            wait(subject, own_);
            return false;
        }
        graph => graph.unwrap(),
    };
    // SAFETY: as above.
    unsafe { graph.launch(launched.stream()) }.unwrap();
    assert!(!overlap(&next, at) || own_.is_done().unwrap(), "a graph has memory that eager work still uses");
    finish(subject, &*launched);
    wait(subject, own_);
    // SAFETY: the block's memory is mapped, and its device may read it.
    let wrong =
        unsafe { subject.backend.count_wrong(subject.device, next.address(), subject.unit(), 7) }.unwrap();
    assert_eq!(wrong, 0, "eager work has written to a graph's memory");
    is_seen
}
