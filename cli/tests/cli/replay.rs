//! `gpu-vmm replay`: its output for a trace, and its errors for an invalid one.

use crate::rig::{Folder, command, fails, json, stderr, stdout};
use gpu_vmm_replay::synthetic::Workload;
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

/// Three blocks: one waits for another stream, one is never freed. The peak is 6 MiB.
const SMALL: &str = "# three blocks\na 1 4194304 0\na 2 2097152 7\nf 2\nf 1\nr 1\nr 2\na 3 100 0\n";

const PEAK: u64 = 6 << 20;

fn small(folder: &Folder) -> String {
    let file = folder.file("small.trace");
    std::fs::write(&file, SMALL).unwrap();
    file
}

/// Runs `gpu-vmm replay --backend host` with these arguments.
fn replay(arguments: &[&str]) -> std::process::Output {
    command(&["replay", "--backend", "host"]).args(arguments).output().unwrap()
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"))
}

#[test]
fn environment_budget_error_names_the_variable() {
    let folder = Folder::new("replay-budget");
    let file = small(&folder);
    let run = |budget: &str| {
        let mut command = command(&["replay", "--backend", "host", &file, "--json"]);
        command.env("GPU_VMM_BUDGET", budget).output().unwrap()
    };
    assert_eq!(number(&json(&run("64MiB")), "peak_asked"), PEAK);
    json(&run(""));
    for (budget, expected) in [
        ("4MiB", "the pool's budget is 4 MiB, as GPU_VMM_BUDGET says"),
        ("lots", "GPU_VMM_BUDGET is \"lots\"; set it to an amount of memory, such as 8GiB"),
    ] {
        let output = run(budget);
        assert_eq!(output.status.code(), Some(1), "{budget}");
        assert!(stderr(&output).contains(expected), "{budget}: {}", stderr(&output));
    }
}

#[test]
fn a_replay_in_json_has_every_member() {
    let folder = Folder::new("replay-json");
    let file = small(&folder);
    let report = json(&replay(&[&file, "--json"]));
    assert_eq!(
        (&report["trace"], &report["backend"], &report["device"]),
        (&file.into(), &"host".into(), &0.into())
    );
    assert_eq!((&report["allocator"], &report["device_name"]), (&"pool".into(), &"host memory 0".into()));
    let names = ["threads", "rounds", "allocations", "frees", "freed_for_later", "streams", "peak_asked"];
    assert_eq!(names.map(|name| number(&report, name)), [1, 2, 3, 2, 1, 2, PEAK]);
    let held = number(&report, "peak_held");
    assert!(held >= PEAK, "{report}");
    assert_eq!(report["ratio"].as_f64().unwrap(), held as f64 / PEAK as f64);
    assert!(number(&report, "device_took") >= PEAK, "{report}");
    assert!(number(&report, "driver_calls") >= 2, "memory needs driver calls: {report}");
    assert_eq!(report["driver_calls"], report["cold"]["driver_calls"]);
    assert!(number(&report, "timer_ns") < 100_000);
    for times in ["alloc_ns", "free_ns"] {
        let of = |name| number(&report[times], name);
        assert!(
            of("median") <= of("p99") && of("p99") <= of("p999") && of("p999") <= of("max") && of("max") > 0,
            "{report}"
        );
        assert!(report[times]["mean"].as_f64().unwrap() <= of("max") as f64);
    }
    for round in ["cold", "warm"] {
        assert!(number(&report[round], "total_ns") > 0, "{report}");
        assert!(number(&report[round], "held") <= number(&report[round], "peak_held"), "{report}");
    }
    assert!(report["operations_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn driver_replay_calls_for_each_block() {
    let folder = Folder::new("replay-driver");
    let file = small(&folder);
    let report = json(&replay(&[&file, "--json", "--allocator", "driver", "--rounds", "1"]));
    assert_eq!(report["allocator"], "driver");
    // At the peak nothing is rounded: both blocks are whole pages.
    assert_eq!((number(&report, "peak_held"), number(&report, "peak_asked")), (PEAK, PEAK));
    assert_eq!((&report["ratio"], &report["warm"]), (&1.0.into(), &Value::Null));
    assert_eq!(
        number(&report, "driver_calls"),
        6,
        "three and three, the last one after the end of the round"
    );
    assert_eq!(report["cold"]["held"], Value::Null);
}

#[test]
fn each_thread_replays_all_of_it() {
    let folder = Folder::new("replay-threads");
    let file = folder.file("made.trace");
    Workload::Streams.write(3, 400, std::fs::File::create(&file).unwrap()).unwrap();
    let one = json(&replay(&[&file, "--json", "--allocator", "driver", "--rounds", "1"]));
    let four = json(&replay(&[&file, "--json", "--allocator", "driver", "--rounds", "1", "--threads", "4"]));
    assert_eq!(number(&four, "driver_calls"), 4 * number(&one, "driver_calls"));
    let (least, most) = (number(&one, "peak_asked"), 4 * number(&one, "peak_asked"));
    let asked = number(&four, "peak_asked");
    assert!((least * 99 / 100..=most).contains(&asked), "{asked} of {least} to {most}");
    let pool = json(&replay(&[&file, "--json", "--threads", "4"]));
    assert_eq!(number(&pool, "threads"), 4);
    // The peaks of held and of requested memory can be at different moments: threads run in another order in each round.
    assert!(pool["ratio"].as_f64().unwrap() > 0.75, "{pool}");
}

#[test]
fn a_replay_for_people_says_the_same() {
    let folder = Folder::new("replay-text");
    let file = small(&folder);
    let output = replay(&[&file, "--rounds", "3"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    for part in [
        "  trace         3 allocations, 2 frees (1 of them reusable only later), 2 streams\n",
        "  replayed      by the pool on host, device 0 (host memory 0), 1 thread\n",
        "  requested     up to 6 MiB\n",
        "  held          ",
        " times requested); the device's free memory decreased by ",
        "  cold          ",
        "  warm          ",
        " (round 3)\n",
        "  allocation    median ",
        "  free          median ",
        "  throughput    ",
        "One more round timed each call; ",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100 || line == file), "{text}");
}

#[test]
fn pool_has_the_named_page_size() {
    let folder = Folder::new("replay-page");
    let (file, to) = (small(&folder), folder.file("pool.json"));
    for (page, bytes) in [("4MiB", 4 << 20), ("32MiB", 32_u64 << 20)] {
        let report = json(&replay(&[&file, "--json", "--page", page, "--snapshot", &to]));
        let snapshot: Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
        assert_eq!(number(&snapshot, "page"), bytes);
        let held = number(&report, "peak_held");
        assert!(held >= bytes && held.is_multiple_of(bytes), "{report}");
    }
}

#[test]
fn standard_input_serves_as_well() {
    let mut child = command(&["replay", "--backend", "host", "--json", "-"]);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(SMALL.as_bytes()).unwrap();
    let report = json(&child.wait_with_output().unwrap());
    assert_eq!((&report["trace"], number(&report, "allocations")), (&"-".into(), 3));
    // A device can be both the input and the output.
    let nothing = || std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let mut both = command(&["replay", "--backend", "host", "-", "--snapshot", "-"]);
    let output = both.stdin(nothing()).stdout(nothing()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("has no allocation"), "{}", stderr(&output));
}

#[test]
fn snapshot_is_of_the_peak() {
    let folder = Folder::new("replay-snapshot");
    let (file, to) = (small(&folder), folder.file("pool.json"));
    json(&replay(&[&file, "--json", "--snapshot", &to]));
    let snapshot: Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
    assert_eq!(snapshot["version"], 1);
    assert_eq!(snapshot["stats"]["live_blocks"], 2, "{snapshot}");
    assert!(number(&snapshot["stats"], "live") >= PEAK, "{snapshot}");
}

#[test]
fn bad_trace_error_has_the_place() {
    let folder = Folder::new("replay-bad");
    let file = folder.file("bad.trace");
    let refused = |text: &str, expected: &str| {
        std::fs::write(&file, text).unwrap();
        fails(&["replay", "--backend", "host", &file], 1, expected);
    };
    refused("a 1 1 0\nf 1\nf 1\n", "bad.trace, line 3: `f 1`: block 1 was freed at line 2 already");
    refused("a 1 1 0\nr 1\n", "line 2: `r 1`: block 1 of line 1 is not freed yet");
    refused("a 1 1 0\nf 2\n", "line 2: `f 2`: no block 2 was allocated before");
    refused(
        "a 1 two 0\n",
        "line 1: `a 1 two 0` is not an event: BYTES is not a number below 2^64; a line is `a ID",
    );
    refused("# nothing\n", "has no allocation");
    std::fs::write(&file, [0x1f, 0x8b, 8, 0, 0]).unwrap();
    fails(&["replay", &file], 1, "it ends in the middle of its compressed data");
    fails(&["replay", &folder.file("none")], 1, "none cannot be read: ");
    fails(&["replay"], 2, "the following required arguments were not provided");
}

#[test]
fn impossible_replay_takes_nothing() {
    let folder = Folder::new("replay-room");
    let file = small(&folder);
    let little = ["replay", "--backend", "host", "--host-memory", "8MiB", &file];
    let run = |more: &[&str]| command(&[&little[..], more].concat()).output().unwrap();
    assert_eq!(run(&["--allocator", "driver"]).status.code(), Some(0));
    let twice = [&little[..], &["--threads", "2", "--allocator", "driver"]].concat();
    fails(
        &twice,
        1,
        "replay: the trace requests up to 12 MiB at one time (6 MiB by each of 2 threads), but device 0 has 8 MiB; \
         begin anyway with --force, or simulate more with --host-memory",
    );
    // One block alone exceeds the memory, so the trace fails whatever the threads do.
    let tiny = ["replay", "--backend", "host", "--host-memory", "2MiB", &file, "--force"];
    for allocator in ["driver", "pool"] {
        let expected = "allocation 1 of 3: 4 MiB on stream 0, with 0 B asked for before it: ";
        fails(&[&tiny[..], &["--allocator", allocator]].concat(), 1, expected);
    }
    let missing = "device 7 does not exist; the host backend has 1";
    fails(&["replay", "--backend", "host", "--device", "7", &file], 1, missing);
    fails(&["replay", "--host-memory", "1GiB", &file], 2, "--host-memory is for --backend host");
    fails(&["replay", "--threads", "0", &file], 2, "0 is not in 1..=1024");
    let both = ["replay", "--allocator", "driver", "--snapshot", "x", &file];
    fails(&both, 2, "--snapshot is for --allocator pool");
    let nowhere = folder.file("no/such/file");
    fails(
        &["replay", "--backend", "host", "--snapshot", &nowhere, &file],
        1,
        "such/file cannot be written: ",
    );
}
