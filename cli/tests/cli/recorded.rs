//! `gpu-vmm replay` of files that other programs' recorders write, and what `gpu-vmm report` shows of them.

use crate::rig::{Folder, command, fails, json, stderr, stdout};
use serde_json::Value;
use std::path::Path;

/// A snapshot of PyTorch's allocator, with what is true of it in `expected.json`.
const RING: &str = "ring-4.pickle.gz";

fn file(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/replay/tests/recorded")
        .join(name)
        .display()
        .to_string()
}

fn replay(arguments: &[&str]) -> std::process::Output {
    command(&["replay", "--backend", "host"]).args(arguments).output().unwrap()
}

/// Returns the words of an output, which breaks its lines anywhere.
fn words(output: &std::process::Output) -> String {
    stdout(output).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Replays the ring and returns the file of `--snapshot`.
pub(crate) fn replayed(folder: &Folder) -> String {
    let to = folder.file("replayed.json");
    json(&replay(&[&file(RING), "--json", "--snapshot", &to]));
    to
}

#[test]
fn memory_snapshot_is_replayed_as_pytorch_class_would() {
    let facts: Value = serde_json::from_slice(&std::fs::read(file("expected.json")).unwrap()).unwrap();
    let facts = &facts["ring"]["0"];
    let report = json(&replay(&[&file(RING), "--json"]));
    let recorded = &report["recorded"];
    assert_eq!((&recorded["source"], &recorded["device"]), (&"PyTorch".into(), &0.into()));
    for name in ["blocks_before", "bytes_before", "peak_held"] {
        assert_eq!(recorded[name], facts[name], "{name}");
    }
    assert_eq!(
        (&report["allocations"], &report["peak_asked"]),
        (&facts["allocations"], &facts["peak_asked"])
    );
    // Pages of 16 MiB, as the class has.
    assert!(report["peak_held"].as_u64().unwrap().is_multiple_of(16 << 20), "{report}");
    let small = json(&replay(&[&file(RING), "--json", "--page", "2MiB"]));
    assert!(small["peak_held"].as_u64() < report["peak_held"].as_u64(), "{small}");
    let text = words(&replay(&[&file(RING)]));
    assert!(
        text.contains(" recorded by PyTorch on device 0, whose allocator held up to 240 MiB; 21 blocks of "),
        "{text}"
    );
    assert!(text.contains(" times what PyTorch's allocator held)"), "{text}");
}

#[test]
fn device_of_several_must_be_chosen() {
    let two = file("two-devices-4.pickle.gz");
    fails(
        &["replay", "--backend", "host", &two],
        1,
        "it has entries of devices 0, 1; choose one with --recorded-device",
    );
    fails(
        &["replay", "--backend", "host", &two, "--recorded-device", "2"],
        1,
        "no entries of device 2; it has some of devices 0, 1",
    );
    let report = json(&replay(&[&two, "--json", "--recorded-device", "1"]));
    assert_eq!(report["recorded"]["device"], 1);
}

#[test]
fn log_of_rmm_is_replayed() {
    let folder = Folder::new("recorded-rmm");
    let log = folder.file("rmm.csv");
    let rows = "Thread,Time,Action,Pointer,Size,Stream\n9,10:00:00.000000,allocate,0x7f0000000000,4194304,0x0\n\
                9,10:00:01.500000,allocate failure,(nil),99,0x0\n9,10:00:02.500000,free,0x7f0000000000,4194304,0x0\n";
    std::fs::write(&log, rows).unwrap();
    let to = folder.file("pool.json");
    let report = json(&replay(&[&log, "--json", "--snapshot", &to]));
    assert_eq!((&report["recorded"]["source"], &report["recorded"]["failed"]), (&"RMM".into(), &1.into()));
    assert_eq!(report["recorded"]["peak_held"], Value::Null);
    assert_eq!(report["peak_asked"], 4 << 20);
    let text = words(&replay(&[&log]));
    assert!(
        text.contains("by RMM; the file does not say what its allocator held; 1 allocation failed"),
        "{text}"
    );
    let text = words(&command(&["report", &to]).output().unwrap());
    assert!(text.contains("rmm.csv: requested up to 4 MiB; the pool held up to "), "{text}");
}

#[test]
fn bad_file_error_has_the_place() {
    let folder = Folder::new("recorded-bad");
    let bad = folder.file("bad.pickle");
    let refused = |bytes: &[u8], expected: &str| {
        std::fs::write(&bad, bytes).unwrap();
        fails(&["replay", "--backend", "host", &bad], 1, expected);
    };
    let marker = folder.file("executed");
    let code = format!("\u{80}\u{4}cposix\nsystem\n(Vtouch {marker}\ntR.");
    let code: Vec<u8> = code.chars().map(|char| char as u8).collect();
    refused(
        &code,
        "bad.pickle, byte 2: the opcode GLOBAL of `posix.system` refers to code or to other files",
    );
    assert!(!Path::new(&marker).exists());
    refused(b"\x80\x04}", "bad.pickle, byte 3: the file ends in the middle of the pickle");
    refused(b"\x80\x04}.", "bad.pickle: the snapshot has no `device_traces`");
    refused(
        b"PK\x03\x04",
        "bad.pickle is a ZIP file, as torch.save writes; expected lines `a ID BYTES STREAM`, a pickle",
    );
    refused(b"{\"version\":1}", "bad.pickle is JSON; expected lines");
    refused(
        b"Thread,Time,Action,Pointer,Size,Stream\n1,2\n",
        "bad.pickle, line 2: `1,2` is not a row of RMM's log: it has 2 cells",
    );
    std::fs::write(&bad, "a 1 1 0\n").unwrap();
    let device = ["replay", "--backend", "host", &bad, "--recorded-device", "0"];
    fails(&device, 1, "bad.pickle is of one device; --recorded-device is for memory snapshots of PyTorch");
}

#[test]
fn report_shows_both_allocators() {
    let folder = Folder::new("recorded-report");
    let (to, out) = (replayed(&folder), folder.file("out"));
    let output = command(&["report", &to]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = words(&output);
    assert!(
        text.contains(
            "requested up to 181.5 MiB; PyTorch's allocator held up to 240 MiB, the pool held up to 208 MiB"
        ),
        "{text}"
    );
    let traced = command(&["report", &to, "--perfetto", &out]).output().unwrap();
    assert_eq!(traced.status.code(), Some(0), "{}", stderr(&traced));
    let trace: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let most = |name: &str| {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        events
            .filter(|event| event["pid"] == 2 && event["name"] == name)
            .filter_map(|event| event["args"]["bytes"].as_u64())
            .max()
    };
    assert_eq!(most("held by PyTorch's allocator"), Some(240 << 20));
    assert_eq!(most("held by the pool"), Some(208 << 20));
    assert!(most("requested") > Some(181 << 20), "{:?}", most("requested"));
    // Moments out of order cannot be drawn.
    let mut changed: Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
    changed["replay"]["moments"][0]["at"] = 5.into();
    std::fs::write(&to, changed.to_string()).unwrap();
    fails(&["report", &to], 1, "is not a pool snapshot: the replay has moment 0 after moment 5");
}
