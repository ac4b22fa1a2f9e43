//! The pool under random schedules: `cargo test-all schedules`.
#![cfg(shuttle)]

use gpu_vmm_schedules::{Chance, Doing, Scenario, run};

const SCENARIO: Scenario = Scenario {
    threads: 3,
    streams: 3,
    operations: 12,
    often: None,
    // Each way through the pool: slots, classes, ranges of less and of more than a page.
    sizes: &[300, 4 << 10, 200 << 10, 1 << 20, 2 << 20, 5 << 20],
    budget: None,
    premap: false,
    chance: Chance { streams: 0, memory: 0 },
};

/// A page of the pool.
const PAGE: u64 = 2 << 20;

#[test]
fn nothing_fails() {
    run("nothing_fails", SCENARIO);
}

#[test]
fn two_threads_on_two_streams() {
    run("two_threads_on_two_streams", Scenario { threads: 2, streams: 2, operations: 30, ..SCENARIO });
}

#[test]
fn memory_is_mapped_ahead() {
    run("memory_is_mapped_ahead", Scenario { premap: true, ..SCENARIO });
}

#[test]
fn streams_fail() {
    run("streams_fail", Scenario { chance: Chance { streams: 6, memory: 0 }, ..SCENARIO });
}

#[test]
fn memory_fails() {
    run("memory_fails", Scenario { premap: true, chance: Chance { streams: 0, memory: 6 }, ..SCENARIO });
}

#[test]
fn little_memory() {
    run("little_memory", Scenario { operations: 30, budget: Some(4 * PAGE), ..SCENARIO });
}

#[test]
fn large_blocks_of_one_size() {
    let sizes = &[2 * PAGE];
    run("large_blocks_of_one_size", Scenario { threads: 2, operations: 30, sizes, ..SCENARIO });
}

#[test]
fn large_blocks_and_little_memory() {
    let (sizes, budget) = (&[PAGE, 2 * PAGE, PAGE / 2], Some(6 * PAGE));
    run("large_blocks_and_little_memory", Scenario { operations: 30, sizes, budget, ..SCENARIO });
}

#[test]
fn pages_of_several_streams() {
    let sizes = &[PAGE / 2 + 512, PAGE, 3000];
    let scenario = Scenario { threads: 2, operations: 40, often: Some(Doing::Allocate), sizes, ..SCENARIO };
    run("pages_of_several_streams", scenario);
}

#[test]
fn captures() {
    let (often, sizes) = (Some(Doing::Capture), &[300, PAGE, PAGE / 2]);
    run("captures", Scenario { threads: 2, streams: 2, operations: 30, often, sizes, ..SCENARIO });
}

#[test]
fn streams_come_and_go() {
    let (often, sizes) = (Some(Doing::ComeAndGo), &[300, 2 * PAGE]);
    run("streams_come_and_go", Scenario { threads: 2, operations: 20, often, sizes, ..SCENARIO });
}

#[test]
fn suspensions() {
    let (often, chance) = (Some(Doing::Suspend), Chance { streams: 4, memory: 0 });
    run("suspensions", Scenario { operations: 20, often, chance, ..SCENARIO });
}
