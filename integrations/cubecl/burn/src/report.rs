//! The measurements of a run.

use crate::arguments::{Arguments, Memory};
use crate::memory::{Setup, mib};
use gpu_vmm::Bytes;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The steps before the median counts. They compile kernels.
const WARM_UP: usize = 5;

/// The measurements.
pub struct Report {
    memory: Memory,
    times: Vec<Duration>,
    used: Bytes,
    held: Bytes,
}

impl Report {
    /// Creates it without steps.
    pub fn new(arguments: &Arguments) -> Self {
        Self { memory: arguments.memory, times: Vec::new(), used: Bytes::ZERO, held: Bytes::ZERO }
    }

    /// Counts a step. Returns the memory that burn uses and holds now, in MiB.
    pub fn step(&mut self, setup: &Setup, time: Duration) -> (u64, u64) {
        self.times.push(time);
        let (used, held) = setup.usage();
        let held = setup.pool.as_ref().map_or(held, |pool| Bytes(pool.stats().held) + setup.growing.mapped());
        (self.used, self.held) = (self.used.max(used), self.held.max(held));
        (mib(used), mib(held))
    }

    /// Prints why a step failed, and the measurements so far.
    pub fn failed(&mut self, setup: &Setup, number: usize, error: &str) {
        println!("step {number} failed: {error}");
        self.print("failed", setup);
    }

    /// Prints the measurements.
    pub fn finish(&mut self, setup: &Setup) {
        self.print("finished", setup);
    }

    fn print(&mut self, end: &str, setup: &Setup) {
        let warm = self.times.get_mut(WARM_UP..).unwrap_or_default();
        warm.sort_unstable();
        let median = warm.get(warm.len() / 2).copied().unwrap_or_default();
        let name = if self.memory == Memory::Own { "own pools" } else { "gpu-vmm" };
        println!("{name} {end} after {} steps", self.times.len());
        println!("median step: {:.2} ms", median.as_secs_f64() * 1e3);
        println!("most in use at the end of a step: {} MiB", mib(self.used));
        println!("most held at the end of a step: {} MiB", mib(self.held));
        println!("most taken from the driver: {} MiB", mib(setup.watch.most_taken()));
        if let Some(pool) = &setup.pool {
            let stats = pool.stats();
            println!(
                "the pool's peaks: {} MiB held, {} MiB in blocks; {} allocations, {} driver calls",
                mib(Bytes(stats.peak_held)),
                mib(Bytes(stats.peak_live)),
                stats.allocations,
                stats.driver_calls.total()
            );
        }
    }
}

/// Runs a step. cubecl reports a failed allocation by a panic or an error; returns either as a text.
///
/// # Errors
///
/// The failure.
pub fn attempt<T>(step: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            Err(text.unwrap_or_else(|| "a panic without a text".into()))
        }
    }
}
