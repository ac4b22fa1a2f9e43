//! Runs a model under all its schedules, with loom: `cargo test-all schedules`.
//!
//! Models are tests in modules called `models`. They are built with `--cfg loom` alone, and all else that is tested is not
//! built then, since loom's locks and atomics are for models only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `model` under each of its schedules in which threads are interrupted `interruptions` times at most, and prints how
/// many there were. A schedule that ends in a panic, a deadlock or a data race fails the test.
///
/// `LOOM_MAX_DURATION`, in seconds, ends it early; then it says so.
#[track_caller]
pub(crate) fn explore(name: &str, interruptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    // Whether time is up is asked after so many schedules.
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
    let all = if early { "not all schedules: the time was up" } else { "all schedules" };
    println!(
        "{name}: {count} schedules with {interruptions} interruptions, {all}, in {:.1} s",
        took.as_secs_f64()
    );
}
