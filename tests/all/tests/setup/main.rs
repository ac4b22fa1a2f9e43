//! Sets HIP up from small packages that are created here, and tries everything that can be wrong with packages, folders and
//! machines. An error is one line with the fault and the remedy, with status 1, and leaves nothing half-installed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic

mod bad_input;
mod own_program;
mod repaired;
mod rig;

use libtest_mimic::{Arguments, Completion, Trial};
use rig::Rig;

struct Test {
    name: &'static str,
    run: fn(&Rig),
}

/// Lists functions as tests of their names.
macro_rules! tests {
    ($($test:ident),* $(,)?) => {
        pub(crate) const TESTS: &[crate::Test] = &[$(crate::Test { name: stringify!($test), run: $test }),*];
    };
}
pub(crate) use tests;

fn main() {
    let arguments = Arguments::from_args();
    let trials = [bad_input::TESTS, own_program::TESTS, repaired::TESTS].into_iter().flatten().map(|test| {
        Trial::ignorable_test(test.name, || match rig::missing() {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => {
                (test.run)(&Rig::new(test.name));
                Ok(Completion::Completed)
            }
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
