//! `gpu-vmm conformance`: its output in each format, the arguments that it refuses, and comparisons.

use crate::rig::{Folder, command, fails, json, stderr, stdout};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A group that passes on every target.
const GROUP: &str = "library::unmap::";

/// Runs a few cases on host memory.
fn run(arguments: &[&str]) -> Output {
    command(&["conformance", "--backend", "host", "--filter", GROUP]).args(arguments).output().unwrap()
}

#[test]
fn help_has_exit_statuses_and_formats() {
    let output = command(&["conformance", "--help"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for part in ["The exit status is 0 if no case failed", "--compare <FILE>", "junit", "an array of such"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn the_list_has_every_rule() {
    // HIP would not be found here, and an attempt to open it would print an error.
    let output =
        command(&["conformance", "--list"]).env("GPU_VMM_HIP_LIBRARY", "/dev/null").output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    assert!(text.starts_with("library, "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let rules = text.lines().filter(|line| line.contains("::")).count();
    let headings: Vec<&str> = text.lines().filter(|line| line.contains(" cases: ")).collect();
    let [library, driver] = headings[..] else { panic!("{headings:?}") };
    let count = |heading: &str, begin: &str, end: &str| {
        heading.strip_prefix(begin).unwrap().strip_suffix(end).unwrap().parse::<usize>().unwrap()
    };
    let library = count(library, "library, ", " cases: what gpu-vmm promises on every backend");
    let driver = count(driver, "driver, ", " cases: what the drivers' documentation says");
    let is_case = |line: &&str| line.starts_with("  ") && line[2..].split(' ').next().unwrap().contains("::");
    let cases = text.lines().filter(is_case).count();
    assert_eq!((library > 0 && driver > 0, library + driver), (true, cases));
    let some = command(&["conformance", "--list", "--filter", "library::grow::"]).output().unwrap();
    let some: Vec<String> =
        stdout(&some).lines().map(str::to_owned).filter(|line| line.contains("::")).collect();
    assert!(!some.is_empty() && some.len() < rules, "{rules}: {some:?}");
    assert!(some.iter().all(|line| line.starts_with("  grow::")), "{some:?}");
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn the_list_opens_no_driver() {
    // The loader prints every library that it searches for.
    let looked_for = |arguments: &[&str]| {
        let output = command(arguments).env("LD_DEBUG", "libs").output().unwrap();
        let text = stderr(&output);
        text.contains("libcuda") || text.contains("libamdhip64")
    };
    assert!(!looked_for(&["conformance", "--list"]));
    assert_eq!(looked_for(&["info"]), cfg!(any(feature = "cuda", feature = "hip")));
}

#[test]
fn contradicting_arguments_run_nothing() {
    for (arguments, expected) in [
        (vec!["--backend", "vulkan"], "invalid value 'vulkan'"),
        (vec!["--device", "one"], "invalid digit"),
        (vec!["--filter", "no such case"], "no case has \"no such case\" in its name"),
        (vec!["--format", "yaml"], "invalid value 'yaml'"),
        (vec!["--format", "markdown"], "--format markdown is for --compare"),
        (vec!["--list", "--format", "json"], "cannot be used with"),
        (vec!["--list", "--verbose"], "cannot be used with"),
        (vec!["--verbose", "--format", "json"], "--verbose has no effect"),
        (vec!["--compare"], "a value is required"),
        (vec!["--compare", "one.json", "--time", "9s"], "cannot be used with"),
        (vec!["--compare", "one.json", "two.json", "--format", "json"], "--compare reads JSON and writes"),
        (vec!["--compare", "one.json", "two.json", "--backend", "host"], "cannot be used with"),
    ] {
        fails(&[&["conformance"], arguments.as_slice()].concat(), 2, expected);
    }
}

#[test]
fn impossible_runs_fail_with_reason() {
    let nowhere = "/nowhere/report.json";
    for (arguments, expected) in [
        (vec!["--backend", "host", "--device", "7"], "device 7 does not exist; the host backend has 2"),
        (vec!["--backend", "host", "--out", nowhere], "/nowhere/report.json cannot be written"),
        (
            vec!["--backend", "host", "--format", "json", "--out", nowhere],
            "/nowhere/report.json cannot be written",
        ),
        (vec!["--compare", nowhere, nowhere], "/nowhere/report.json cannot be read"),
    ] {
        fails(&[&["conformance"], arguments.as_slice()].concat(), 1, expected);
    }
    let folder = Folder::new("no-report");
    let file = folder.file("no.json");
    std::fs::write(&file, r#"{"environment": {}}"#).unwrap();
    fails(&["conformance", "--compare", &file, &file], 1, "no.json is not a report: missing field");
}

#[test]
fn the_report_for_people_is_short() {
    let output = run(&[]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    for part in
        ["host: host memory, no GPU\n", "  driver   ", "library             passed", "  unmap  ", " passed\n"]
    {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!text.contains("unmap::"), "no case is remarkable: {text}");
    assert!(stdout(&run(&["--verbose"])).contains("    unmap::"));
}

#[test]
fn the_report_for_programs_has_every_member() {
    let report = json(&run(&["--format", "json"]));
    let environment = &report["environment"];
    for member in ["gpu_vmm", "time", "target", "ran_on", "driver", "devices", "machine", "system", "quirks"]
    {
        assert!(!environment[member].is_null(), "{member} is not in {environment}");
    }
    assert_eq!((&environment["ran_on"], &environment["filter"]), (&"host-memory".into(), &GROUP.into()));
    let cases = report["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let name = format!("{}::{}", case["layer"].as_str().unwrap(), case["name"].as_str().unwrap());
        assert!(name.starts_with(GROUP), "{case}");
        assert!(
            case["seconds"].as_f64().unwrap() > 0.0 && !case["rule"].as_str().unwrap().is_empty(),
            "{case}"
        );
    }
    let of = |verdict: &str| cases.iter().filter(|case| case["verdict"] == verdict).count();
    for (member, verdict) in [
        ("passed", "passed"),
        ("failed", "failed"),
        ("skipped", "skipped"),
        ("as_documented", "as-documented"),
        ("more_lenient", "more-lenient"),
        ("deviations", "deviates"),
    ] {
        assert_eq!(report["summary"][member], of(verdict), "{member}");
    }
}

#[test]
fn all_backends_are_listed_or_missing() {
    let arguments = ["conformance", "--backend", "all", "--filter", GROUP, "--format", "json"];
    let output = command(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    let targets: Vec<&str> = reports
        .as_array()
        .unwrap()
        .iter()
        .map(|report| report["environment"]["target"].as_str().unwrap())
        .collect();
    assert_eq!(targets.last(), Some(&"host"));
    let built_in: Vec<&str> = gpu_vmm::AnyBackend::BUILT_IN.iter().map(|vendor| vendor.name()).collect();
    for name in built_in {
        let missing = format!("gpu-vmm: {name} did not run: ");
        assert_ne!(
            targets.contains(&name),
            stderr(&output).contains(&missing),
            "{name}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn late_cases_are_skipped_with_reason() {
    let arguments = ["conformance", "--backend", "host", "--time", "1s", "--format", "json"];
    let report = json(&command(&arguments).output().unwrap());
    let cases = report["cases"].as_array().unwrap();
    let late = cases.iter().filter(|case| case["note"] == "the time given by --time was over").count();
    assert!(late > 100 && late < cases.len(), "{late} of {}", cases.len());
    let (ran, left) = cases.split_at(cases.len() - late);
    assert!(left.iter().all(|case| case["verdict"] == "skipped" && case["seconds"] == 0.0), "{left:?}");
    // The driver's rules come first: their results differ most between machines.
    assert!(ran[0]["layer"] == "driver" && left[late - 1]["layer"] == "library");
    let first = cases.iter().position(|case| case["layer"] == "library").unwrap();
    assert!(cases[first..].iter().all(|case| case["layer"] == "library"));
    assert!(report["summary"]["seconds"].as_f64().unwrap() < 20.0, "{}", report["summary"]);
}

#[test]
fn the_report_of_tests_can_be_read() {
    let output = run(&["--format", "junit"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = quick_junit::Report::deserialize_from_str(&stdout(&output)).unwrap();
    assert!(report.tests > 0 && report.failures == 0, "{report:?}");
    let suites: Vec<&str> = report.test_suites.iter().map(|suite| suite.name.as_str()).collect();
    assert!(suites.contains(&"host.library.unmap"), "{suites:?}");
}

#[test]
fn report_file_leaves_the_text_shown() {
    let folder = Folder::new("out");
    let file = folder.file("report.json");
    std::fs::write(&file, "what was there before, and is longer than any report".repeat(1000)).unwrap();
    let output = run(&["--format", "json", "--out", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("host: host memory, no GPU"), "{}", stdout(&output));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["summary"]["failed"], 0);

    let output = run(&["--out", &file]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), ""));
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("host: host memory, no GPU\n"));
}

#[test]
fn compared_reports_show_their_differences() {
    let folder = Folder::new("compare");
    let (before, after) = (folder.file("before.json"), folder.file("after.json"));
    let mut report = json(&run(&["--format", "json"]));
    std::fs::write(&before, report.to_string()).unwrap();
    let name = report["cases"][0]["name"].as_str().unwrap().to_owned();
    report["cases"][0]["verdict"] = "failed".into();
    report["cases"][0]["note"] = "it was seen to fail".into();
    report["cases"].as_array_mut().unwrap().pop();
    // A file may contain several reports.
    std::fs::write(&after, Value::from(vec![report.clone()]).to_string()).unwrap();

    let compare = |arguments: &[&str]| {
        let output =
            command(&["conformance", "--compare", &before, &after]).args(arguments).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
        stdout(&output)
    };
    let text = compare(&[]);
    for part in ["On hardware: none of these reports.\n", "after host", "it was seen to fail"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let line = text.lines().find(|line| line.contains(&name)).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), [name.as_str(), "passed", "FAILED"]);
    let same = report["cases"][1]["name"].as_str().unwrap();
    assert!(!text.contains(same) && compare(&["--verbose"]).contains(same), "{text}");
    assert!(text.contains("Cases that not all reports have\n"), "{text}");
    // A filter leaves out all cases but the ones that it names, also from the counts.
    let filtered = compare(&["--verbose", "--filter", &format!("library::{name}")]);
    assert!(filtered.contains(&name) && !filtered.contains(same), "{filtered}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");

    let page = compare(&["--format", "markdown"]);
    assert!(page.contains(&format!("| `{name}`<br>")) && page.contains("| passed | FAILED |"), "{page}");
}

#[test]
fn recorded_reports_compare_with_a_full_one() {
    let folder = Folder::new("recorded");
    let mine = folder.file("mine.json");
    std::fs::write(&mine, run(&["--format", "json"]).stdout).unwrap();
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance");
    let mut recorded: Vec<PathBuf> =
        std::fs::read_dir(recorded).unwrap().map(|entry| entry.unwrap().path()).collect();
    recorded.retain(|file| file.extension().is_some_and(|end| end == "json"));
    recorded.sort();
    let compared = command(&["conformance", "--verbose", "--format", "markdown", "--filter", "unmap::"])
        .args(["--compare", &mine])
        .args(&recorded)
        .output()
        .unwrap();
    assert_eq!(compared.status.code(), Some(0), "{}", stderr(&compared));
    let page = stdout(&compared);
    let names = recorded.iter().map(|file| file.file_stem().unwrap().to_str().unwrap());
    let names: Vec<&str> = ["mine"].into_iter().chain(names).collect();
    assert!(names.len() >= 7 && page.contains(&format!("| | {} |", names.join(" | "))), "{page}");
    // A case that this run had: its rule is from this report, and each recorded one has a verdict.
    let case = page.lines().find(|line| line.starts_with("| `unmap::")).unwrap();
    let cells: Vec<&str> = case.trim_matches('|').split(" | ").collect();
    assert!(cells[0].contains("<br>") && cells.len() == names.len() + 1, "{case}");
    assert!(cells[1..].iter().all(|cell| cell.trim() != "-"), "{case}");
}
