//! Snapshots that a model of PyTorch's allocator wrote (`benches/pytorch/simulated.py`), with what the model knows of them.
#![allow(clippy::unwrap_used)] // whatever is not as expected is a failure

use gpu_vmm_core::DeviceId;
use gpu_vmm_core::{Backend, Bytes};
use gpu_vmm_host::HostConfig;
use gpu_vmm_replay::{Pooled, Streams, Trace, over_time};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

fn open(name: &str, device: u32) -> Trace {
    Trace::open(&folder().join(format!("{name}.pickle.gz")), Some(device), &|_| {}).unwrap()
}

/// Returns what is true of a device of a snapshot.
fn facts(name: &str, device: u32) -> Value {
    let all: Value = serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap();
    let facts = all[name][device.to_string()].clone();
    assert!(facts.is_object(), "{name}, device {device}");
    facts
}

#[test]
fn snapshots_say_what_the_model_knows() {
    for (file, name, device) in [
        ("whole-2", "whole", 0),
        ("whole-4", "whole", 0),
        ("whole-5", "whole", 0),
        ("ring-4", "ring", 0),
        ("two-devices-4", "two-devices", 0),
        ("two-devices-4", "two-devices", 1),
    ] {
        let (trace, facts) = (open(file, device), facts(name, device));
        let recording = trace.recording().unwrap();
        let number = |name: &str| facts[name].as_u64().unwrap();
        assert_eq!(
            [trace.allocations(), trace.peak_asked(), recording.blocks_before, recording.bytes_before],
            ["allocations", "peak_asked", "blocks_before", "bytes_before"].map(number),
            "{file}"
        );
        assert_eq!((recording.peak_held, recording.failed), (Some(number("peak_held")), 1), "{file}");
        assert!(recording.unknown.is_empty() && recording.frees_implied == 0, "{recording:?}");
        assert!(trace.freed_for_later() > 0, "{file}: batches are used on another stream");
    }
    assert_eq!(open("whole-2", 0), open("whole-4", 0));
}

#[test]
fn private_pool_of_a_graph_is_replayed() {
    let trace = open("graphs-4", 1);
    let recording = trace.recording().unwrap();
    // Of four allocations the second one has the memory of the first one.
    assert_eq!((trace.allocations(), trace.frees(), recording.private), (3, 3, 2));
    assert_eq!(recording.peak_held, facts("graphs", 1)["peak_held"].as_u64());
}

#[test]
fn pool_and_recorded_allocator_are_sampled() {
    let (trace, facts) = (open("ring-4", 0), facts("ring", 0));
    let backend = HostConfig::new().memory(Bytes::gib(4)).open().unwrap();
    let streams = Streams::of(&backend, DeviceId(0), trace.streams()).unwrap();
    let pooled =
        Pooled::new(&backend, DeviceId(0), &streams, Some(Bytes::mib(2))).unwrap().aligned(Bytes(512));
    let moments = over_time(&trace, &pooled).unwrap();
    assert_eq!(moments.len() as u64, trace.allocations());
    let most = |value: fn(&gpu_vmm_replay::Moment) -> u64| moments.iter().map(value).max().unwrap();
    assert_eq!(most(|moment| moment.requested), trace.peak_asked());
    assert_eq!(Some(most(|moment| moment.recorded.unwrap())), facts["peak_held"].as_u64());
    assert_eq!(most(|moment| moment.held), pooled.pool().stats().peak_held);
    assert!(moments.is_sorted_by_key(|moment| moment.at), "{moments:?}");
    assert!((0.0..=facts["seconds"].as_f64().unwrap()).contains(&moments.last().unwrap().at));
    drop(pooled);
    assert_eq!(backend.memory_info(DeviceId(0)).unwrap().free, Bytes::gib(4));
}

/// Damage is an error or another trace, and never a panic.
#[test]
fn no_changed_byte_panics() {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(folder().join("graphs-4.pickle.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    let mut errors = 0;
    for place in 0..bytes.len() {
        let original = bytes[place];
        for byte in [0, 0xff, original ^ 1] {
            bytes[place] = byte;
            errors += u32::from(Trace::read("it", None, &bytes[..]).is_err());
        }
        bytes[place] = original;
        assert!(Trace::read("it", None, &bytes[..place]).is_err(), "cut at {place}");
    }
    assert!(errors > 1000, "{errors} of {} changes are noticed", bytes.len() * 3);
}
