//! Random programs against a model that knows every byte, mapping, access and the memory in use.
//!
//! A program works on several regions and pieces of memory, on two devices if there are two: it builds and drops, maps (one
//! piece several times too), unmaps, sets access, grows in all ways, shrinks, swaps, writes. Some operations are invalid;
//! they must return the right error and change nothing. After each step, the regions' reports and the free memory are
//! compared with the model. After every few steps, the driver's access and the bytes on the devices are checked too.
//!
//! A program that fails is reduced to a short one and printed as Rust, with its seed. Two environment variables change the
//! run:
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_VMM_STRESS_SEED` | 1 | the seed of the random programs |
//! | `GPU_VMM_STRESS_OPERATIONS` | 2000 | the approximate number of operations, in programs of up to 150 |

#[cfg(test)]
mod broken;
mod change;
mod check;
mod free;
mod model;
mod run;
mod step;
mod swap;
#[cfg(test)]
mod tests;

use crate::case::cases;
use crate::leaks;
use crate::subject::{Subject, note};
use gpu_vmm_testkit::TestKit;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use run::Outcome;
use std::cell::Cell;
use step::Step;

cases! { "stress":
    /// Random programs of valid and invalid operations on several regions behave as a model of every byte, mapping and access
    /// predicts, and use the predicted memory.
    random_programs,
}

/// The length of the longest program.
const LONGEST: usize = 150;

/// The maximum number of shorter programs that are tried for one that failed.
const SHRINKING: u32 = 1000;

/// The number of steps between two checks of all bytes.
const ROUND: usize = 8;

fn random_programs<B: TestKit>(subject: &Subject<B>) {
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, got {text}")),
        Err(_) => default,
    };
    let seed = number("GPU_VMM_STRESS_SEED", 1);
    let operations = number("GPU_VMM_STRESS_OPERATIONS", 2000);
    match stress(subject, seed, operations as usize) {
        Ok(operations) => note(format!("seed {seed}, {operations} operations")),
        Err(program) => panic!("seed {seed} (GPU_VMM_STRESS_SEED), shrunk to\n{program}"),
    }
}

/// Runs random programs with about `operations` operations in all. Returns the number of operations, or a reduced failing
/// program as Rust.
fn stress<B: TestKit>(subject: &Subject<B>, seed: u64, operations: usize) -> Result<usize, String> {
    let length = operations.clamp(1, LONGEST);
    // All lengths up to that are equally likely, so the mean is half of it.
    let mut config = Config::with_cases((2 * operations).div_ceil(length) as u32);
    config.failure_persistence = None;
    config.max_shrink_iters = SHRINKING;
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let done = Cell::new(0);
    let failed = Cell::new(false);
    let ran = runner.run(&step::programs(length), |steps| {
        done.set(done.get() + steps.len());
        // Shorter programs are checked after each step, so that they end with the step that fails.
        let round = if failed.get() { 1 } else { ROUND };
        holds(subject, &steps, round).map_err(|program| {
            failed.set(true);
            TestCaseError::fail(program)
        })
    });
    match ran {
        Ok(()) => Ok(done.get()),
        Err(TestError::Fail(program, steps)) => Err(shorter(subject, steps).unwrap_or(program.to_string())),
        Err(TestError::Abort(reason)) => Err(reason.to_string()),
    }
}

/// Runs a program, and again if other processes may have disturbed it. Returns a failing program as Rust.
fn holds<B: TestKit>(subject: &Subject<B>, steps: &[Step], round: usize) -> Result<(), String> {
    let mut report = String::new();
    for _ in 0..leaks::TRIES {
        match run::run(subject, steps, round) {
            Outcome::Held => return Ok(()),
            Outcome::Disturbed(program) => report = program,
            Outcome::Broken(program) => return Err(program),
        }
    }
    Err(report)
}

/// Removes each step without which the program still fails: a step that proptest once had to keep may no longer be needed.
fn shorter<B: TestKit>(subject: &Subject<B>, mut steps: Vec<Step>) -> Option<String> {
    let mut program = holds(subject, &steps, 1).err()?;
    let mut left = steps.len();
    while left > 0 {
        left -= 1;
        let mut without = steps.clone();
        without.remove(left);
        if let Err(shorter) = holds(subject, &without, 1) {
            (steps, program) = (without, shorter);
            left = steps.len();
        }
    }
    Some(program)
}
