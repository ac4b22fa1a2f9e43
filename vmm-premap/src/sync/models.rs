//! Runs a model under all its schedules, with loom: `cargo test-all schedules`.
//!
//! Models are tests in modules called `models`. They are built only with `--cfg loom`. No other test is built then, because
//! loom's locks and atomics work only in models.
#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `model` under each of its schedules in which threads are interrupted up to `interruptions` times, and prints the
/// number of schedules.
///
/// A panic, a deadlock or a data race ends the program, because unwinding would wait for threads that never continue.
/// `LOOM_MAX_DURATION`, in seconds, ends a model early; the printed line then says so.
#[track_caller]
pub fn explore(name: &str, interruptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Loom ends threads that it no longer needs with panics without a text.
        if panic.payload().is::<&str>() || panic.payload().is::<String>() {
            hook(panic);
            std::process::exit(101);
        }
    }));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    // The number of schedules between two comparisons of the time with its limit.
    builder.checkpoint_interval = 200;
    let begun = std::time::Instant::now();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let (count, took) = (count.load(Ordering::Relaxed), begun.elapsed());
    let early = builder.max_duration.is_some_and(|limit| took >= limit);
    let all = if early { "not all: the time limit was reached" } else { "all" };
    let seconds = took.as_secs_f64();
    println!("{name}: {count} schedules with {interruptions} interruptions, {all}, in {seconds:.1} s");
}

/// Starts a thread of a model with a stack large enough for a whole pool. All of loom's own stacks have 32 KiB, including that
/// of the first thread.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> loom::thread::JoinHandle<T> {
    // The size is in words.
    loom::thread::Builder::new().stack_size(1 << 17).spawn(work).unwrap()
}
