//! `gpu-vmm check`: what it says first, its file, steps that crash, and what the file leaves out.

use crate::rig::{Folder, command, fails, stderr, stdout};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// Runs a check on host memory that has only some seconds.
fn check(folder: &Folder, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = command(&["check", "--backend", "host", "--time", "12s"]);
    command.args(arguments).current_dir(folder.path()).envs(settings.iter().copied()).output().unwrap()
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn step<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["steps"].as_array().unwrap().iter().find(|step| step["name"] == name).unwrap()
}

#[test]
fn plan_is_printed_without_running() {
    let folder = Folder::new("check-plan");
    let output = check(&folder, &["--plan", "--soak", "--endurance", "--out", "my.json"], &[]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "This check takes at most 12s, and runs these commands, each in a process of its own:",
        "The soak takes up to 10 minutes more.",
        "The endurance takes 1m more.",
        "writes one file, my.json. It has no host name, user name,",
        "Nothing is sent and nothing is installed. Read it before you attach it.",
    ] {
        assert!(words.contains(part), "{part:?} is not in {text}");
    }
    for part in ["at most 12s", "gpu-vmm info --backend host", "library::pool::soak", "one file, my.json"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(folder.names().is_empty());
}

#[test]
fn one_file_without_private_data() {
    let folder = Folder::new("check-erikas-folder");
    let home = folder.file("planted-home");
    let output = check(
        &folder,
        &[],
        &[
            ("HOME", &home),
            ("USER", "plantederika"),
            ("LOGNAME", "plantedlogin"),
            ("HOSTNAME", "plantedhost.example"),
            // Each value is in the file, as a setting.
            ("HSA_PLANTED", "3c:ec:ef:01:ab:7f of plantederika, 8f3c1f0e-0a1b-2c3d-4e5f-001122334455"),
            ("HIP_PLANTED", "serial number: PCB0123456 on plantedhost by plantedlogin"),
            ("GPU_VMM_PLANTED", &format!("{home}/lib:/home/plantedother/lib")),
            ("HSA_PLANTED_TOKEN", "plantedsecret"),
        ],
    );
    let text = std::fs::read_to_string(folder.file("gpu-vmm-check.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(folder.names(), ["gpu-vmm-check.json"]);
    let settings = &report["settings"];
    assert_eq!(settings["HSA_PLANTED"], "<mac> of <user>, <uuid>");
    assert_eq!(settings["HIP_PLANTED"], "serial number: <serial> on <host> by <user>");
    assert_eq!(settings["GPU_VMM_PLANTED"], "~/lib:~/lib");
    for private in
        ["planted-home", "plantede", "plantedl", "plantedh", "plantedo", "plantedsecret", "erikas-folder"]
    {
        assert!(!text.contains(private) && !stdout(&output).contains(private), "{private} is in {text}");
    }
    // On a busy machine the last steps have no time, and most of the suite has none anywhere.
    for step in report["steps"].as_array().unwrap() {
        let ended = step["ended"].as_str().unwrap();
        let is_late = ended.starts_with("killed after ") || ended == "not run: no time was left";
        assert!(ended == "status 0" || (is_late && step["name"] != "conformance"), "{step}");
    }
    assert_eq!((&report["check"], &report["limit_seconds"]), (&1.into(), &12.0.into()));
    assert_eq!(report["gpu_vmm"], env!("CARGO_PKG_VERSION"));
    let each = report["steps"].as_array().unwrap().iter().map(|step| step["seconds"].as_f64().unwrap());
    let (each, all): (f64, f64) = (each.sum(), report["seconds"].as_f64().unwrap());
    assert!(each > 0.0 && each <= all, "{each} of {all} seconds");
    let attach = "Attach gpu-vmm-check.json to an issue, with these ten lines:\n";
    assert!(stdout(&output).contains(attach), "{}", stdout(&output));
    assert_eq!(report["conformance"]["summary"]["failed"], 0);
    assert!(report["conformance"]["summary"]["skipped"].as_u64().unwrap() > 100);
    assert_eq!(report["grow"]["wrong_words"], 0);
    assert_eq!(report["info"][0]["backends"][0]["backend"], "host");
    assert!(report["kernel"]["source"].is_string() != report["kernel"]["unreadable"].is_string(), "{report}");
    let lines: Vec<&str> =
        report["summary"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert_eq!(lines.len(), 10, "{lines:#?}");
    assert!(stdout(&output).contains(&lines.join("\n")), "{}", stdout(&output));

    let compared = command(&["conformance", "--compare", "gpu-vmm-check.json"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(compared.status.code(), Some(0), "{}", stderr(&compared));
    assert!(stdout(&compared).contains("Contradictions to gpu-vmm's quirks"), "{}", stdout(&compared));
}

#[test]
fn failed_step_loses_nothing_else() {
    let folder = Folder::new("check-crash");
    let out = folder.file("out.json");
    // No device has this number, so that each step on a device fails; the first step has none.
    let output = check(&folder, &["--device", "7", "--out", &out], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("7 of 8 steps did not end well"), "{}", stderr(&output));
    let report = read(Path::new(&out));
    assert_eq!(
        (&step(&report, "info host")["is_good"], &step(&report, "grow")["ended"]),
        (&true.into(), &"status 1".into())
    );
    let said = step(&report, "conformance")["stderr"][0].as_str().unwrap();
    assert!(said.contains("device 7 does not exist"), "{said}");
    assert!(report["conformance"].is_null() && report["info"][0]["backends"].is_array());
    let why = "nothing to compare: the check ended without a report of the conformance suite, in each file";
    fails(&["conformance", "--compare", &out], 1, why);

    // Beside a report, the file is left out.
    let good = folder.file("good.json");
    let made = command(&[
        "conformance",
        "--backend",
        "host",
        "--filter",
        "library::unmap::",
        "--format",
        "json",
        "--out",
        &good,
    ]);
    assert!({ made }.status().unwrap().success());
    let compared = command(&["conformance", "--compare", &good, &out]).output().unwrap();
    assert_eq!(compared.status.code(), Some(0), "{}", stderr(&compared));
    assert!(stdout(&compared).contains("out is left out: the check ended without"), "{}", stdout(&compared));
}

#[test]
fn times_that_make_no_sense_are_refused() {
    for (time, expected) in [
        ("0s", "it must be at least 1s"),
        ("10ms", "it must be at least 1s"),
        ("-5s", "it is negative; a time is at least 1s"),
        ("--soak", "the value is missing before --soak"),
        ("10", "\"10\" is not a time such as 90s, 10min or 1h"),
        ("soon", "\"soon\" is not a time"),
        ("8days", "it must be at most 7days"),
    ] {
        fails(&["check", "--time", time], 2, expected);
        fails(&["conformance", "--time", time], 2, expected);
    }
}
