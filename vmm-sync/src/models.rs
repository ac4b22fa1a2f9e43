//! Runs a model under all its schedules, with loom: `cargo test-all schedules`.
//!
//! Models are tests in modules called `models`. They are built with `--cfg loom` alone, and all else that is tested is not
//! built then, since loom's locks and atomics are for models only.
#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `model` under each of its schedules in which threads are interrupted up to `interruptions` times, and prints the
/// number of schedules.
///
/// A panic, a deadlock or a data race ends the program: unwinding would wait for threads that never go on.
/// `LOOM_MAX_DURATION`, in seconds, ends a model early; the line that is printed says so.
#[track_caller]
pub fn explore(name: &str, interruptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Loom ends threads that it does not need any more by panics without a text.
        if panic.payload().is::<&str>() || panic.payload().is::<String>() {
            told(panic);
            std::process::exit(101);
        }
    }));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    // After how many schedules the time is compared with its limit.
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
    let all = if early { "not all: the time was up" } else { "all" };
    let seconds = took.as_secs_f64();
    println!("{name}: {count} schedules with {interruptions} interruptions, {all}, in {seconds:.1} s");
}

/// A thread of a model with a stack that is enough for a whole pool: loom's own have 32 KiB, the first one's too.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> loom::thread::JoinHandle<T> {
    // In words.
    loom::thread::Builder::new().stack_size(1 << 17).spawn(work).unwrap()
}
