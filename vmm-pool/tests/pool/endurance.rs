//! Programs that run for long, with a model of what the pool may use.
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_VMM_ENDURANCE_STEPS` | 1000000 | the number of steps of each test, over all of its programs |
//! | `GPU_VMM_ENDURANCE_SEED` | 1 | the first seed of random programs |
//! | `GPU_VMM_ENDURANCE_PROGRAMS` | 50 | the number of random programs |
//!
//! The memory is the host backend's, and no program touches it. The streams are the test's own, and end late. A program is the
//! same in each run, except for what several threads do at the same time.

use gpu_vmm_core::Bytes;
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::LateWork;
use gpu_vmm_testkit::endurance::{FAULTS, Limit, Order, Program, Report, Sizes, Violation, run};

const MIB: u64 = 1 << 20;

/// Programs of each kind.
const PROGRAMS: [(&str, Program); 7] = [
    ("a double buffer", Program::plain(1, Sizes::One(3_000_000), Order::Turns)),
    ("a ring of one size", Program::plain(1, Sizes::One(3 * MIB), Order::Fifo)),
    ("a sawtooth", Program::plain(2, Sizes::Bits(24), Order::Sawtooth)),
    ("a stack", Program::plain(3, Sizes::Bits(24), Order::Lifo)),
    ("small blocks", Program { blocks: 4096, ..Program::plain(4, Sizes::Bits(16), Order::Random) }),
    (
        "small blocks on eight streams",
        Program {
            streams: 8,
            behind: 64,
            blocks: 4096,
            ..Program::plain(6, Sizes::Bits(16), Order::Sawtooth)
        },
    ),
    (
        "a stack that is suspended, with a budget that changes",
        Program {
            suspends: true,
            budgets: true,
            ..Program::plain(5, Sizes::Even { from: 1, to: 8 * MIB }, Order::Lifo)
        },
    ),
];

/// Seeds of random programs for which the pool did not keep the bound.
const FAILED: [u64; 30] = [
    1, 3, 5, 7, 8, 9, 11, 12, 15, 16, 17, 18, 20, 23, 24, 25, 26, 27, 28, 29, 30, 33, 34, 35, 40, 41, 44, 45,
    46, 47,
];

/// Returns the value of a variable.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Runs a program on a pool of its own.
fn run_on_host(program: &Program, steps: u64) -> Result<Report, Violation> {
    let host = HostConfig::new().memory(Bytes::gib(32)).open().unwrap();
    let backend = LateWork::new(host, program.streams);
    let pool = Pool::builder(&backend).budget(Bytes(program.budget)).build().unwrap();
    run(program, &pool, &backend, Limit::Steps(steps))
}

/// Runs programs, which share the steps of a test, and fails after the last one if a promise was broken.
#[track_caller]
fn hold(programs: &[(String, Program)]) {
    let steps = setting("GPU_VMM_ENDURANCE_STEPS", 1_000_000) / programs.len() as u64;
    let mut failed = Vec::new();
    for (name, program) in programs {
        match run_on_host(program, steps) {
            Ok(Report { steps, used, bound, .. }) => println!("{name}: {steps} steps, {used:?} of {bound:?}"),
            Err(violation) => failed.push(format!("{name}: {violation}\n    {program:?}\n")),
        }
    }
    assert!(failed.is_empty(), "{} of {} programs:\n{}", failed.len(), programs.len(), failed.concat());
}

fn named(programs: &[(&str, Program)]) -> Vec<(String, Program)> {
    programs.iter().map(|(name, program)| ((*name).to_owned(), program.clone())).collect()
}

fn of_seeds(seeds: impl Iterator<Item = u64>) -> Vec<(String, Program)> {
    seeds.map(|seed| (format!("seed {seed}"), Program::random(seed))).collect()
}

/// Returns the seeds that the variables choose.
fn chosen() -> std::ops::Range<u64> {
    let first = setting("GPU_VMM_ENDURANCE_SEED", 1);
    first..first + setting("GPU_VMM_ENDURANCE_PROGRAMS", 50)
}

#[test]
fn programs_stay_within_the_bound() {
    hold(&named(&PROGRAMS));
}

#[test]
fn programs_that_failed_stay_within_the_bound() {
    hold(&named(&FAULTS));
}

#[test]
fn failed_seeds_stay_within_the_bound() {
    hold(&of_seeds(FAILED.into_iter()));
}

#[test]
fn random_programs_stay_within_the_bound() {
    hold(&of_seeds(chosen()));
}

/// Events of forgotten streams serve others: some of these needed more than 128 for a stream.
#[test]
fn forgotten_streams_keep_no_events() {
    let late = |seed| Program { behind: 250, trims: true, ..Program::random(seed) };
    hold(&[11, 46, 47].map(|seed| (format!("seed {seed}, far behind"), late(seed))));
}

/// Every other tag has host memory. With a budget, the kinds take it from each other.
#[test]
fn two_kinds_stay_within_the_bound() {
    let kinds = |seed| Program { kinds: true, tags: 2, ..Program::random(seed) };
    let mut programs: Vec<_> = [1, 5, 9, 16, 20, 24, 40, 46]
        .map(|seed| (format!("seed {seed}, of two kinds"), kinds(seed)))
        .to_vec();
    let short = Program { budget: 96 * MIB, budgets: false, ..kinds(7) };
    programs.push(("two kinds that share 96 MiB".to_owned(), Program { threads: 1, ..short.clone() }));
    programs.push(("four threads that share 96 MiB".to_owned(), Program { threads: 4, ..short }));
    hold(&programs);
}

/// A pool that takes memory or addresses without end is noticed.
#[test]
fn a_pool_beyond_the_bound_is_noticed() {
    let program = Program::plain(1, Sizes::One(3 * MIB), Order::Lifo);
    let host = HostConfig::new().memory(Bytes::gib(32)).open().unwrap();
    let backend = LateWork::new(host, 1);
    let pool = Pool::builder(&backend).build().unwrap();
    let _unknown: Vec<_> = (0..5000).map(|_| pool.alloc(Bytes::mib(3)).unwrap()).collect();
    let violation = run(&program, &pool, &backend, Limit::Steps(1000)).unwrap_err();
    assert!(violation.what.starts_with("mapped is") || violation.what.starts_with("held is"), "{violation}");
}
