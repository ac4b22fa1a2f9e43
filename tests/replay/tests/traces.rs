//! The memory that a pool holds for a trace: for generated traces, and for recorded ones of this repository and in the folder that
//! `GPU_VMM_TRACES` names. On host memory, which is never touched.
#![allow(clippy::unwrap_used, clippy::panic)] // whatever is not as expected is a failure

use gpu_vmm_core::{Backend, Bytes, DeviceId};
use gpu_vmm_host::HostConfig;
use gpu_vmm_replay::synthetic::Workload;
use gpu_vmm_replay::{Options, Outcome, Plain, Pooled, Streams, Trace, replay};
use std::io::Write;
use std::path::{Path, PathBuf};

const DEVICE: DeviceId = DeviceId(0);

/// The recorded traces of this repository.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/pytorch/traces");

/// More than any trace requests, independent of the machine.
const MEMORY: Bytes = Bytes::gib(256);

fn made(workload: Workload, seed: u64, allocations: u64) -> Trace {
    let mut text = Vec::new();
    workload.write(seed, allocations, &mut text).unwrap();
    Trace::read("made", None, &text[..]).unwrap()
}

/// Replays one round, then `more` rounds on the same pool, and checks that no memory is left afterwards. Returns the outcome of the
/// first round, and how often memory was mapped in it and in all of them.
fn on_a_pool(trace: &Trace, threads: usize, more: u32) -> (Outcome, [u64; 2]) {
    let backend = HostConfig::new().memory(MEMORY).open().unwrap();
    let streams = Streams::of(&backend, DEVICE, trace.streams()).unwrap();
    let pooled = Pooled::new(&backend, DEVICE, &streams, None).unwrap();
    let run = |rounds| {
        let outcome = replay(trace, &pooled, Options { threads, rounds, ..Options::default() }).unwrap();
        (outcome, pooled.pool().stats().driver_calls.map)
    };
    let (outcome, first) = run(1);
    let all = if more > 0 { run(more).1 } else { first };
    let account = pooled.pool().stats();
    assert_eq!((account.live, account.live_blocks), (0, 0), "{account:?}");
    // The pool's account agrees with the driver: nothing else uses this device.
    assert_eq!(backend.memory_info(DEVICE).unwrap().free, MEMORY - Bytes(account.held), "{account:?}");
    assert!(outcome.device_took <= outcome.peak_held, "{outcome:?}");
    drop(pooled);
    assert_eq!(backend.memory_info(DEVICE).unwrap().free, MEMORY);
    (outcome, [first, all])
}

/// The limit of the ratio. A pool maps whole granules of 2 MiB, which weigh more in the small generated traces.
fn most(trace: &Trace, several_streams: f64) -> f64 {
    let granules = 16.0 * Bytes::mib(2).0 as f64 / trace.peak_asked() as f64;
    granules + if trace.streams() > 1 { several_streams } else { 1.02 }
}

#[test]
fn pool_holds_little_beyond_generated_traces() {
    for workload in Workload::ALL {
        let trace = made(workload, 1, 5000);
        let (Outcome { ratio, peak_held, peak_asked, .. }, _) = on_a_pool(&trace, 1, 0);
        // More blocks of the generated trace wait for other streams than in recorded ones.
        assert!(
            (1.0..most(&trace, 1.3)).contains(&ratio),
            "{workload:?}: {peak_held} for {peak_asked}: {ratio}"
        );
    }
}

#[test]
fn several_threads_leave_nothing_either() {
    let trace = made(Workload::Serving, 2, 3000);
    let (outcome, _) = on_a_pool(&trace, 3, 0);
    let asked = outcome.peak_asked;
    assert!((trace.peak_asked() * 99 / 100..=trace.peak_asked() * 3).contains(&asked), "{outcome:?}");
}

#[test]
fn the_driver_itself_serves_a_made_trace() {
    for workload in Workload::ALL {
        let trace = made(workload, 4, 2000);
        let backend = HostConfig::new().memory(MEMORY).open().unwrap();
        let plain = Plain::new(&backend, DEVICE).unwrap();
        let outcome = replay(&trace, &plain, Options::default()).unwrap();
        assert_eq!(outcome.driver_calls, 2 * trace.allocations());
        // Rounded up to whole pages.
        assert!((1.0..1.05).contains(&outcome.ratio), "{workload:?}: {outcome:?}");
        assert_eq!(backend.memory_info(DEVICE).unwrap().free, MEMORY);
    }
}

#[test]
fn full_device_fails_and_leaves_nothing() {
    let trace = made(Workload::Training, 5, 2000);
    let little = Bytes((trace.peak_asked() / 2).next_multiple_of(Bytes::mib(2).0));
    let backend = HostConfig::new().memory(little).open().unwrap();
    let plain = Plain::new(&backend, DEVICE).unwrap();
    let error = replay(&trace, &plain, Options { threads: 3, ..Options::default() }).unwrap_err().to_string();
    assert!(error.starts_with("allocation ") && error.contains(" asked for before it by thread "), "{error}");
    assert_eq!(backend.memory_info(DEVICE).unwrap().free, little);
}

fn say(text: &str) {
    std::io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

#[test]
fn pool_holds_little_beyond_recorded_programs() {
    holds_little_more(Path::new(RECORDED));
    match std::env::var_os("GPU_VMM_TRACES") {
        Some(folder) => holds_little_more(Path::new(&folder)),
        None => say("SKIPPED: no other recorded traces; GPU_VMM_TRACES names a folder with some"),
    }
}

/// A program that does the same again finds almost all memory where it was.
#[test]
fn further_passes_map_almost_nothing() {
    for name in ["streams", "graph_network"] {
        let trace =
            Trace::open(&Path::new(RECORDED).join(format!("{name}.trace.gz")), None, &|_| {}).unwrap();
        let (_, [first, three]) = on_a_pool(&trace, 1, 2);
        assert!(three - first <= first / 10, "{name}: {first} mappings in one pass, {three} in three");
    }
}

/// Replays each trace of a folder.
fn holds_little_more(folder: &Path) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(".trace.gz"));
    files.sort();
    assert!(!files.is_empty(), "no *.trace.gz in {}", folder.display());
    let mut too_much = Vec::new();
    for file in files {
        let trace = Trace::open(&file, None, &|_| {}).unwrap();
        let (Outcome { ratio, peak_held, peak_asked, .. }, _) = on_a_pool(&trace, 1, 0);
        let limit = if trace.freed_for_later() > 0 { 1.10 } else { 1.02 };
        let line = format!("{}: {peak_held} held for {peak_asked}: {ratio:.4}", file.display());
        say(&line);
        if !(1.0..=limit).contains(&ratio) {
            too_much.push(format!("{line}, more than {limit}"));
        }
    }
    assert!(too_much.is_empty(), "{too_much:#?}");
}
