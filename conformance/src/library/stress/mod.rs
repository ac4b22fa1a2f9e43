//! Random programs against a model that knows every byte, mapping, access and the memory in use.
//!
//! A program works on several regions and pieces of memory, of two devices where there are two: it builds and drops,
//! maps (one piece several times as well), unmaps, sets access, grows in all ways, shrinks, swaps, writes. Some operations are
//! wrong, and must answer with the right error and change nothing. After each step the books are compared with the model
//! and memory in use with what is free; after every few of them the driver is asked for the access, and the devices for
//! the bytes.
//!
//! What fails is shrunk to a short program and printed as Rust. The seed is printed; two variables of the environment
//! change the run:
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_VMM_STRESS_SEED` | 1 | another seed, other programs |
//! | `GPU_VMM_STRESS_OPERATIONS` | 2000 | about how many operations there are in all, in programs of up to 150 |
//!
//! | file | subject |
//! |---|---|
//! | `step` | operations by number, and how they are drawn |
//! | `model` | what must be where, and how each operation must be answered |
//! | `run` | a program on the library and on the model at once, written down as Rust |
//! | `change` | the steps that change a region |
//! | `swap` | the step that changes two |
//! | `free` | free memory, compared with what is in use |
//! | `check` | what is looked at beside the answers |
//! | `tests`, `broken` | that a backend which does one thing wrong is found |

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
    /// Random programs on several regions, right and wrong operations mixed, do what a model of every byte, mapping and
    /// access says, and use the memory that it says.
    random_programs,
}

/// The longest program.
const LONGEST: usize = 150;

/// How many shorter programs are tried for one that failed.
const SHRINKING: u32 = 1000;

/// After how many steps all bytes are looked at.
const ROUND: usize = 8;

fn random_programs<B: TestKit>(subject: &Subject<B>) {
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, and is {text}")),
        Err(_) => default,
    };
    let seed = number("GPU_VMM_STRESS_SEED", 1);
    let operations = number("GPU_VMM_STRESS_OPERATIONS", 2000);
    match stress(subject, seed, operations as usize) {
        Ok(operations) => note(format!("seed {seed}, {operations} operations")),
        Err(program) => panic!("seed {seed} (GPU_VMM_STRESS_SEED), shrunk to\n{program}"),
    }
}

/// Runs random programs with about so many operations in all, and says how many they were. One that fails is given
/// shrunk, as Rust.
fn stress<B: TestKit>(subject: &Subject<B>, seed: u64, operations: usize) -> Result<usize, String> {
    let length = operations.clamp(1, LONGEST);
    // Any length up to that is as likely, so that the mean is half of it.
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
        // Shorter programs are looked at after each step, so that they end with the one that is wrong.
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

/// Runs a program, and again where it may have been disturbed by others. One that fails is given as Rust.
fn holds<B: TestKit>(subject: &Subject<B>, steps: &[Step], round: usize) -> Result<(), String> {
    let mut told = String::new();
    for _ in 0..leaks::TRIES {
        match run::run(subject, steps, round) {
            Outcome::Held => return Ok(()),
            Outcome::Disturbed(program) => told = program,
            Outcome::Broken(program) => return Err(program),
        }
    }
    Err(told)
}

/// Leaves out each step without which the program fails as well: what proptest has tried to leave out once may be
/// needed no more.
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
