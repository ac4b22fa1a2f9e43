//! The pool under random schedules: `cargo test-all schedules`.
#![cfg(shuttle)]

use gpu_vmm_schedules::{Chance, Scenario, run};

const SCENARIO: Scenario = Scenario {
    threads: 3,
    streams: 3,
    operations: 12,
    ahead: false,
    chance: Chance { streams: 0, memory: 0 },
};

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
    run("memory_is_mapped_ahead", Scenario { ahead: true, ..SCENARIO });
}

#[test]
fn streams_fail() {
    run("streams_fail", Scenario { chance: Chance { streams: 6, memory: 0 }, ..SCENARIO });
}

#[test]
fn memory_fails() {
    run("memory_fails", Scenario { ahead: true, chance: Chance { streams: 0, memory: 6 }, ..SCENARIO });
}
