//! The backend on HIP itself: on AMD GPUs, or on AMD's runtime over a simulated HSA runtime. Without HIP every test is
//! ignored with the reason.
//!
//! The tests make the calls as gpu-vmm-core makes them. They run one after the other, because they compare the free
//! memory. After each test the objects that can be counted must be gone.
#![allow(unsafe_code)] // the backend's traits are unsafe to call
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic

mod access;
mod addresses;
mod captures;
#[path = "../../../conformance/src/counts.rs"]
mod counts;
mod cycle;
mod devices;
mod events;
mod half_way;
mod memory_types;
mod process;
mod raw;
mod renewal;
mod rig;
mod share;
mod staging;
mod testkit;
mod views;

use counts::Counts;
use gpu_vmm_hip::HipBackend;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rig::Rig;

/// What a test needs in addition to HIP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Device,
    TwoDevices,
    /// Two that can access each other's memory.
    Peers,
}

struct Test {
    name: &'static str,
    needs: Needs,
    run: fn(&Rig),
}

fn run(backend: Result<HipBackend, String>, test: &Test) -> Result<Completion, Failed> {
    let backend = match backend {
        Ok(backend) => backend,
        Err(reason) => return Ok(Completion::ignored_with(format!("skipped: {reason}"))),
    };
    let rig = Rig::new(backend);
    if let Some(reason) = rig.lacks(test.needs) {
        return Ok(Completion::ignored_with(format!("skipped: {reason}")));
    }
    (test.run)(&rig);
    rig.check_nothing_is_left()?;
    Ok(Completion::Completed)
}

/// HIP 6 keeps freed addresses while tests run; at the end they are freed too.
fn no_addresses_are_left(
    backend: Result<HipBackend, String>,
    first: Option<Counts>,
) -> Result<Completion, Failed> {
    let backend = match backend {
        Ok(backend) => backend,
        Err(reason) => return Ok(Completion::ignored_with(format!("skipped: {reason}"))),
    };
    backend.release_kept_addresses()?;
    Counts::check_addresses(first)?;
    Ok(Completion::Completed)
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let backend = HipBackend::open().map_err(|error| {
        eprintln!("SKIPPED, all of them: {error}");
        error.to_string().lines().next().unwrap_or_default().to_owned()
    });
    if let Ok(backend) = &backend {
        eprintln!("{backend:?}");
    }
    let tests = [
        access::TESTS,
        addresses::TESTS,
        captures::TESTS,
        cycle::TESTS,
        devices::TESTS,
        events::TESTS,
        memory_types::TESTS,
        process::TESTS,
        raw::TESTS,
        renewal::TESTS,
        share::TESTS,
        staging::TESTS,
        testkit::TESTS,
        views::TESTS,
    ];
    let trial = |test: &'static Test| {
        let backend = backend.clone();
        Trial::ignorable_test(test.name, move || run(backend, test))
    };
    let mut trials: Vec<Trial> = tests.into_iter().flatten().map(trial).collect();
    let (first, opened) = (Counts::now(), backend.clone());
    trials.push(Trial::ignorable_test("no_addresses_are_left", move || no_addresses_are_left(opened, first)));
    // HIP leaks addresses and memory if a call below it fails, so these tests come last.
    trials.extend(half_way::TESTS.iter().map(trial));
    libtest_mimic::run(&arguments, trials).exit();
}
