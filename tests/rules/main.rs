//! The rules of the design, on every backend that this machine has.
//!
//! Each case runs once for each backend, named `host::grow::within` and so on. A backend that is not there shows its
//! cases as ignored, with the reason. `GPU_VMM_TEST_BACKENDS=cuda,host` chooses; what is chosen and missing fails.

// A test says what does not hold by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod alias;
mod bad_input;
mod books;
mod data;
mod device_vec;
mod grow;
mod leaks;
mod physical;
mod place;
mod process;
mod subject;
mod transactions;
#[cfg(feature = "host")]
mod undo;
mod waiting;

use gpu_vmm::{Backend, Vendor};
use libtest_mimic::{Arguments, Completion, Trial};
use subject::{Case, Subject, subjects};

fn main() {
    let mut arguments = Arguments::from_args();
    let cases: Vec<Case> = [
        access::CASES,
        alias::CASES,
        bad_input::CASES,
        books::CASES,
        data::CASES,
        device_vec::CASES,
        grow::CASES,
        physical::CASES,
        place::CASES,
        process::CASES,
        transactions::CASES,
        #[cfg(feature = "host")]
        undo::CASES,
        waiting::CASES,
    ]
    .concat();
    let mut trials = Vec::new();
    for (vendor, found) in subjects() {
        if found.as_ref().is_ok_and(|subject| subject.backend.vendor() != Vendor::Host) {
            // Cases count a real device's memory, and HIP takes one call at a time anyway.
            arguments.test_threads = Some(1);
        }
        for case in &cases {
            let name = format!("{vendor}::{}", case.name);
            let run = case.run;
            trials.push(match &found {
                Ok(subject) => {
                    let subject = subject.clone();
                    Trial::ignorable_test(name, move || run_one(&subject, run))
                }
                Err(reason) => {
                    let reason = reason.clone();
                    Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason)))
                }
            });
        }
        if let Ok(subject) = found
            && subject.backend.vendor() == Vendor::Hip
        {
            let first = leaks::Before::now();
            trials.push(Trial::test(format!("{vendor}::no_addresses_are_left"), move || {
                Ok(first.check_addresses(&subject.backend)?)
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn run_one(subject: &Subject, run: fn(&Subject)) -> Result<Completion, libtest_mimic::Failed> {
    let subject = subject.fresh();
    let (before, below) = (subject.free(), leaks::Before::now());
    let completion = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&subject))) {
        Ok(()) => Completion::Completed,
        Err(panic) => match panic.downcast::<subject::Skip>() {
            Ok(skip) => Completion::ignored_with(skip.0),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    };
    let after = subject.free();
    if before != after {
        return Err(format!("free memory was {before:?} before the case and is {after:?} after it").into());
    }
    below.check(&subject.backend)?;
    match subject.backend.drop_log().take_last() {
        Some(error) => Err(format!("a destructor failed: {error}").into()),
        None => Ok(completion),
    }
}
