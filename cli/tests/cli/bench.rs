//! `gpu-vmm bench`: few samples of the quick pairs, the report in all formats, and the arguments that it refuses.

#[cfg(target_os = "linux")]
use crate::rig::with_addresses;
use crate::rig::{Folder, command, fails, json, stderr, stdout};
use serde_json::Value;
use std::path::Path;

/// Runs a quick pair on host memory, with these arguments.
fn calls(arguments: &[&str]) -> std::process::Output {
    command(&["bench", "--backend", "host", "--filter", "calls", "--samples", "3"])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn names_can_be_listed_without_a_driver() {
    let all = stdout(&command(&["bench", "--list"]).output().unwrap());
    for name in ["calls", "fresh", "growth", "kept", "pool", "mappings", "swap", "records"] {
        assert!(all.lines().any(|line| line.starts_with(name)), "{name}: {all}");
    }
    let some = stdout(&command(&["bench", "--list", "--filter", "prem"]).output().unwrap());
    assert_eq!(some.lines().count(), 1, "{some}");
}

#[test]
fn figures_are_printed_as_tables() {
    let text = stdout(&calls(&[]));
    for part in [
        "host: host memory, no GPU",
        "calls: each call through the library",
        "compared with driver's own calls",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("2 MiB: full cycle"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!text.contains('≤'), "targets are for GPUs: {text}");
}

#[test]
fn json_figures_have_sides_and_ratio() {
    let report = json(&calls(&["--json"]));
    assert_eq!(report["environment"]["target"], "host");
    assert_eq!(report["environment"]["filter"], "calls");
    let pairs = report["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1);
    let rows = pairs[0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 25);
    for row in rows {
        assert_eq!((&row["samples"], &row["unit"]), (&Value::from(3), &Value::from("nanoseconds")));
        for figure in [&row["ours"]["took"], &row["baseline"]["took"], &row["ratio"]] {
            let [low, median, high] = ["low", "median", "high"].map(|name| figure[name].as_f64().unwrap());
            assert!(0.0 < low && low <= median && median <= high, "{row}");
        }
    }
}

#[test]
fn written_report_is_shown_and_drawn() {
    let folder = Folder::new("bench");
    let [kept, picture] = ["report.json", "growth.svg"].map(|name| folder.file(name));
    assert!(stdout(&calls(&["--out", &kept])).contains("2 MiB: full cycle"));
    let show = |arguments: &[&str]| command(&["bench", "--show", &kept]).args(arguments).output().unwrap();
    assert!(stdout(&show(&[])).contains("2 MiB: full cycle"));
    assert!(stdout(&show(&["--markdown"])).contains("| 2 MiB: full cycle | driver's own call |"));
    assert_eq!(
        json(&show(&["--json"])),
        serde_json::from_str::<Value>(&std::fs::read_to_string(&kept).unwrap()).unwrap()
    );
    let both = stdout(&show(&["--show", &kept, "--markdown"]));
    for part in ["\n2. ", "| what | compared with | 1 | 2 |", "| 2 MiB: full cycle | driver's own call | "] {
        assert!(both.contains(part), "{part}: {both}");
    }
    let cycle = both.lines().find(|line| line.contains("2 MiB: full cycle")).unwrap();
    let cells: Vec<_> = cycle.split('|').map(str::trim).collect();
    assert_eq!(cells[3], cells[4], "one report twice: {cycle}");
    assert!(cells[3].contains(": ") && cells[3].contains("µs, "), "the ratio and both figures: {cycle}");
    // Growth was not measured.
    fails(&["bench", "--show", &kept, "--plot", &picture], 1, "no growth to draw");
    assert_eq!(folder.names(), ["report.json"]);
    std::fs::write(&kept, "{}").unwrap();
    fails(&["bench", "--show", &kept], 1, "report.json is not a report: missing field");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, reason) in [
        (&["--filter", "nothing of that"][..], "`gpu-vmm bench --list` lists all names"),
        (&["--filter", "calls", "--plot", "x.svg"], "--plot x.svg draws `growth`, which --filter leaves out"),
        (
            &["--filter", "calls", "--torch", "x"],
            "--torch has no effect: PyTorch's allocator is measured in `pool`",
        ),
        (&["--backend", "host", "--torch", "x"], "--torch has no effect on host memory"),
        (&["--out", "x.json", "--plot", "./x.json"], "--out and --plot are the same file"),
        (&["--samples", "-1"], "-1 is not in 1..=100000"),
        (&["--samples", "0"], "0 is not in 1..=100000"),
        (&["--json", "--markdown"], "cannot be used with"),
        (&["--show", "x.json", "--filter", "calls"], "cannot be used with"),
        (&["--show", "x.json", "--show", "y.json"], "several reports are shown side by side with --markdown"),
    ] {
        fails(&[&["bench"], arguments].concat(), 2, reason);
    }
    let missing = "device 7 does not exist; the host backend has 1";
    fails(&["bench", "--backend", "host", "--device", "7", "--filter", "calls"], 1, missing);
    fails(
        &["bench", "--backend", "host", "--torch", "/nowhere", "--filter", "pool"],
        2,
        "no effect on host memory",
    );
    fails(&["bench", "--show", "/nowhere/report.json"], 1, "/nowhere/report.json cannot be read");
    for option in ["--out", "--plot"] {
        let nowhere = ["bench", "--backend", "host", "--json", option, "/nowhere/report.json"];
        fails(&nowhere, 1, "/nowhere/report.json cannot be written: the folder /nowhere: No such file");
    }
}

#[test]
fn page_matches_the_committed_reports() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
    let folder = Folder::new("bench-page");
    let picture = folder.file("growth.svg");
    let mut bench = command(&["bench", "--markdown", "--plot", &picture]);
    for report in ["nvidia-h100-1.json", "nvidia-h100-2.json", "nvidia-h200-1.json", "nvidia-h200-2.json"] {
        bench.arg("--show").arg(docs.join("performance").join(report));
    }
    let shown = bench.output().unwrap();
    assert_eq!(shown.status.code(), Some(0));
    let page = read("performance.md");
    let target = page.lines().find(|line| line.starts_with("<!-- generated by: gpu-vmm bench")).unwrap();
    let (_, generated) = page.split_once(target).unwrap();
    assert_eq!(generated.trim(), stdout(&shown).trim());
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(
        drawn == read("performance/growth.svg"),
        "growth.svg is of other reports: run what {target} says"
    );
}

/// With 1 GiB of addresses, the pair `mappings` fails in the middle, and other ones too.
#[test]
#[cfg(target_os = "linux")]
fn failed_pairs_are_named_with_rows() {
    let folder = Folder::new("bench-failed");
    let file = folder.file("report.json");
    let arguments = ["bench", "--backend", "host", "--filter", "ap", "--samples", "1", "--out", &file];
    let output = with_addresses(1 << 20, &arguments).output().unwrap();
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let pairs = report["pairs"].as_array().unwrap();
    let names: Vec<&str> = pairs.iter().map(|pair| pair["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mappings", "premap", "swap"]);
    let (error, rows) = (pairs[0]["failed"].as_str().unwrap(), pairs[0]["rows"].as_array().unwrap());
    assert!(
        error.starts_with("reserve: no 2002 MiB of addresses are free (mmap answered ENOMEM (12)"),
        "{error}"
    );
    assert!(!rows.is_empty() && pairs[0]["skipped"].is_null(), "{report}");
    let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("FAILED: {error}")), "{text}");
    let failed = pairs.iter().filter(|pair| !pair["failed"].is_null());
    let failed: Vec<&str> = failed.map(|pair| pair["name"].as_str().unwrap()).collect();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), format!("gpu-vmm: error: failed: {}\n", failed.join(", ")));
}

#[test]
fn unmeasurable_pair_is_skipped() {
    let arguments = ["bench", "--backend", "host", "--filter", "peer"];
    let output = command(&arguments).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let why = "no other device can access device 0's memory";
    assert!(stdout(&output).ends_with(&format!("own copies\n  skipped: {why}\n")), "{}", stdout(&output));
    let report = json(&command(&arguments).arg("--json").output().unwrap());
    let pair = &report["pairs"][0];
    assert_eq!((&pair["name"], &pair["skipped"]), (&"peer".into(), &why.into()));
    assert_eq!((&pair["failed"], &pair["rows"]), (&Value::Null, &serde_json::json!([])));
}
