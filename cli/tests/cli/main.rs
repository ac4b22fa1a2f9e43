//! The command `gpu-vmm` as its users see it: its output, where it goes, and its exit status. On host memory.
//!
//! `info`, `grow` and the behaviour that all subcommands share are tested in this file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // whatever is not as expected is a failure

mod bench;
mod browser;
#[cfg(target_os = "linux")]
mod check;
mod conformance;
mod generated;
#[cfg(target_os = "linux")]
mod outputs;
mod page;
mod recorded;
mod replay;
mod report;
mod rig;
#[cfg(target_os = "linux")]
mod serve;
mod snapshot;
#[cfg(target_os = "linux")]
mod table;

#[cfg(target_os = "linux")]
use rig::with_addresses;
use rig::{command, fails, json, stderr, stdout};
use serde_json::Value;
use std::process::{Command, Output};

const MIB: u64 = 1 << 20;

/// A first address in a part of the address space that the kernel does not use on its own.
const FAR: &str = "0x100000000000";

/// Runs `gpu-vmm grow --backend host` with these arguments.
fn grow(arguments: &[&str]) -> Output {
    command(&["grow", "--backend", "host"]).args(arguments).output().unwrap()
}

/// The same if the kernel allocates addresses from the top down, so that the addresses after the first reservation are
/// taken. The kernel does so for every process whose stack has a limit.
fn grow_top_down(arguments: &[&str]) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -S -s 8192 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gpu-vmm")]);
    shell.args(["grow", "--backend", "host"]).args(arguments).output().unwrap()
}

/// Returns one member of every step.
fn of_steps<'a>(report: &'a Value, name: &str) -> Vec<&'a Value> {
    report["steps"].as_array().unwrap().iter().map(|step| &step[name]).collect()
}

#[test]
fn growth_in_json_has_every_member() {
    let report = json(&grow(&["--json", "--to", "20MiB"]));
    assert_eq!(report["backend"], "host");
    assert_eq!(report["device"], 0);
    assert_eq!(report["final_bytes"], 20 * MIB);
    assert_eq!(report["verified_bytes"], 20 * MIB);
    assert_eq!(report["wrong_words"], 0);
    let texts = ["device_name", "verified_by"].map(|name| report[name].as_str().unwrap());
    assert_eq!(texts, ["host memory 0", "the CPU"]);
    assert_eq!((&report["granularity_bytes"], &report["copy_skipped"]), (&(2 * MIB).into(), &Value::Null));
    let micros = |name: &str| report[name].as_f64().unwrap();
    assert!(micros("copy_micros") > 0.0 && micros("reserve_micros") > 0.0, "{report}");
    let ratio = micros("copy_micros") / micros("total_micros");
    assert!((micros("copy_ratio") - ratio).abs() <= 1e-9 * ratio, "{report}");
    assert_eq!(of_steps(&report, "bytes"), [2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 20 * MIB]);
    assert_eq!(of_steps(&report, "how"), ["within"; 5]);
    let address = report["steps"][0]["address"].as_str().unwrap();
    assert!(address.strip_prefix("0x").is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok()));
    assert_eq!(of_steps(&report, "address"), [address; 5]);
    let each: f64 = of_steps(&report, "micros").iter().map(|micros| micros.as_f64().unwrap()).sum();
    assert!((report["total_micros"].as_f64().unwrap() - each).abs() < 0.01 * each, "{report}");
}

/// `cargo test-all` runs this test if it can get the library: the installed driver, on a machine without a GPU.
#[test]
#[ignore = "needs NVIDIA's own library in GPU_VMM_CUDA_LIBRARY, and no GPU"]
fn info_reports_nvidias_missing_gpu() {
    let output = command(&["info"]).output().unwrap();
    assert!(output.status.success());
    let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "cuda not found the cuda backend has no device: cuInit answered CUDA_ERROR_NO_DEVICE (100)";
    assert!(text.contains(said), "{text}");
    let report = json(&command(&["info", "--json"]).output().unwrap());
    let cuda = report["backends"].as_array().unwrap().iter().find(|one| one["backend"] == "cuda").unwrap();
    assert_eq!(cuda["found"], false);
    assert!(cuda["error"].as_str().unwrap().contains("NVIDIA's kernel module is not loaded"), "{cuda}");
}

#[test]
fn sizes_are_rounded_up_by_steps() {
    let report = json(&grow(&["--json", "--from", "1", "--to", "7M", "--by", "0.5MiB"]));
    assert_eq!(of_steps(&report, "bytes"), [2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB]);
    assert_eq!(report["verified_bytes"], 8 * MIB);
}

#[test]
fn growth_behind_a_full_reservation_extends() {
    let report = json(&grow(&["--json", "--fixed", "--at", FAR, "--reserve", "2MiB", "--to", "32MiB"]));
    assert_eq!(of_steps(&report, "how"), ["within", "extended", "extended", "extended", "extended"]);
    assert_eq!(of_steps(&report, "address"), [FAR; 5]);
    assert_eq!(
        (&report["reserved_bytes"], &report["verified_bytes"]),
        (&(2 * MIB).into(), &(32 * MIB).into())
    );
}

#[test]
fn growth_remaps_if_addresses_are_taken() {
    let report = json(&grow_top_down(&["--json", "--reserve", "2MiB", "--to", "32MiB"]));
    let how = of_steps(&report, "how");
    assert!(how.iter().any(|how| *how == "remapped"), "{report}");
    let addresses = of_steps(&report, "address");
    for (index, how) in how.iter().enumerate().skip(1) {
        assert_eq!(addresses[index] != addresses[index - 1], *how == "remapped", "{report}");
    }
    assert_eq!((&report["verified_bytes"], &report["wrong_words"]), (&(32 * MIB).into(), &0.into()));
}

#[test]
fn fixed_address_is_kept_or_refused() {
    let output = grow_top_down(&["--fixed", "--reserve", "2MiB", "--to", "32MiB"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.starts_with("gpu-vmm: error: grow: 0..4 MiB exceeds the reservation of 2 MiB"), "{text}");
    assert!(text.contains("the driver returned 0x"), "{text}");
    assert_eq!(text.lines().count(), 1);
    assert!(stdout(&output).contains("2 MiB  within"), "the successful step is printed");
}

#[test]
fn growth_text_has_check_and_comparison() {
    let output = grow(&["--to", "8MiB"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for part in [
        "from 2 MiB to 8 MiB by doubling",
        "     8 MiB  within    0x",
        "checked by the CPU: all 8 MiB hold",
        "growth in 3 steps:",
        "the same by copying:",
        "times as long",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert_eq!(stderr(&output), "", "no bar if standard error is not a terminal");
}

/// The address space has room for 256 MiB, and not for the 384 MiB of the last copy.
#[test]
#[cfg(target_os = "linux")]
fn unaffordable_copy_is_not_measured() {
    let sizes = ["--reserve", "256MiB", "--from", "128MiB", "--to", "256MiB"];
    let arguments = [&["grow", "--backend", "host", "--json"][..], &sizes].concat();
    let report = json(&with_addresses(390_000, &arguments).output().unwrap());
    assert_eq!((&report["verified_bytes"], &report["wrong_words"]), (&(256 * MIB).into(), &0.into()));
    assert_eq!((&report["copy_micros"], &report["copy_ratio"]), (&Value::Null, &Value::Null));
    let reason = report["copy_skipped"].as_str().unwrap();
    let expected = "allocate: device 0 is out of memory (requested 256 MiB, ";
    assert!(reason.starts_with(expected) && reason.contains("mmap answered ENOMEM (12)"), "{reason}");
}

#[test]
fn invalid_arguments_open_nothing() {
    for (arguments, expected) in [
        (vec!["--from", "0"], "it must be at least one byte"),
        (vec!["--to", "0MiB"], "it must be at least one byte"),
        (vec!["--by", "0"], "it must be at least one byte"),
        (vec!["--reserve", "0"], "it must be at least one byte"),
        (vec!["--by", "triple"], "\"triple\" is not an amount of memory"),
        (vec!["--to", "5parsecs"], "\"5parsecs\" is not an amount of memory: the unit is unknown"),
        (vec!["--from", "4MiB", "--to", "2MiB"], "--from 4 MiB is more than --to 2 MiB"),
        (vec!["--by", "-.5"], "it is negative; a size is at least one byte"),
        (vec!["--extend-by", "2MiB"], "--extend-by has no effect: without --reserve"),
        (
            vec!["--extend-by", "2MiB", "--reserve", "8MiB", "--to", "8MiB"],
            "--extend-by has no effect: --reserve 8 MiB is large enough for --to 8 MiB",
        ),
        (vec!["--device", "one"], "invalid digit"),
        (vec!["--at", "here"], "an address is a number"),
        (vec!["--backend", "vulkan"], "invalid value 'vulkan'"),
        (vec!["--nonsense"], "unexpected argument '--nonsense'"),
    ] {
        fails(&[&["grow"], arguments.as_slice()].concat(), 2, expected);
    }
    fails(&["shrink"], 2, "unrecognized subcommand 'shrink'");
}

#[test]
fn device_limits_are_errors_with_numbers() {
    for (arguments, expected) in [
        (vec!["--to", "1000TiB"], "grow: the requested 1000 TiB exceeds the memory of "),
        (vec!["--to", "16777215TiB"], "grow: the requested 16777215 TiB exceeds the memory of "),
        (vec!["--device", "7"], "device 7 does not exist; the host backend has 1"),
        (
            vec!["--reserve", "200TiB"],
            "reserve: 200 TiB of addresses exceeds the address space of a process (128 TiB)",
        ),
        (vec!["--at", "0x1001"], "address 0x1001 is not a multiple of the granularity (2 MiB)"),
    ] {
        fails(&[&["grow", "--backend", "host", "--json"], arguments.as_slice()].concat(), 1, expected);
    }
}

#[test]
fn the_environment_names_the_backend() {
    let grow = |backend: &str, arguments: &[&str]| {
        let arguments = [&["grow", "--to", "4MiB", "--json"], arguments].concat();
        command(&arguments).env("GPU_VMM_BACKEND", backend).output().unwrap()
    };
    assert_eq!(json(&grow("host", &[]))["backend"], "host");
    // The command line has priority.
    assert_eq!(json(&grow("cuda", &["--backend", "host"]))["backend"], "host");
    let refused = grow("metal", &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("GPU_VMM_BACKEND is \"metal\"; set it to cuda, hip or host"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(json(&grow("", &["--backend", "host"]))["backend"], "host");
    // Empty is as if it were not set. Which backend is the best one, the machine decides.
    assert!(!stderr(&grow("", &[])).contains("GPU_VMM_BACKEND is"));
}

#[test]
fn host_is_used_without_a_gpu() {
    let mut command = command(&["grow", "--to", "4MiB", "--json"]);
    for vendor in ["CUDA", "HIP"] {
        command.env(format!("GPU_VMM_{vendor}_LIBRARY"), "/dev/null");
    }
    let output = command.env_remove("GPU_VMM_BACKEND").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["backend"]), (Some(0), &"host".into()));
    let text = stderr(&output);
    assert!(
        text.starts_with("gpu-vmm: no GPU found (") && text.ends_with("); using host memory\n"),
        "{text}"
    );
    assert_eq!(text.contains("(cuda: "), cfg!(feature = "cuda"), "{text}");
    assert_eq!(text.contains("hip: "), cfg!(feature = "hip"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn information_in_json_tells_of_every_backend() {
    let output = command(&["info", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    let backends = info["backends"].as_array().unwrap();
    for backend in backends {
        assert_eq!(backend["found"].as_bool().unwrap(), backend["error"].is_null(), "{backend}");
        assert_eq!(backend["found"].as_bool().unwrap(), backend["driver"].is_object(), "{backend}");
    }
    let names: Vec<&Value> = backends.iter().map(|backend| &backend["backend"]).collect();
    assert_eq!(names.contains(&&"cuda".into()), cfg!(feature = "cuda"));
    assert_eq!(names.contains(&&"hip".into()), cfg!(feature = "hip"));

    let host = backends.iter().find(|backend| backend["backend"] == "host").unwrap();
    let device = &host["devices"][0];
    assert!(device["free_bytes"].as_u64().unwrap() <= device["total_bytes"].as_u64().unwrap());
    assert!(device["granularity_bytes"].as_u64().unwrap().is_power_of_two());
    let capabilities = device["capabilities"].as_array().unwrap();
    let memory = capabilities.iter().find(|one| one["feature"] == "virtual memory").unwrap();
    assert_eq!(memory["available"], true);
    for missing in capabilities.iter().filter(|one| one["available"] == false) {
        assert_ne!(missing["note"], "", "{missing} is missing without a reason");
    }
}

#[test]
fn information_on_one_backend_opens_no_other() {
    let info = json(&command(&["info", "--backend", "host", "--json"]).output().unwrap());
    let names: Vec<&Value> = info["backends"].as_array().unwrap().iter().map(|one| &one["backend"]).collect();
    assert_eq!(names, ["host"]);
}

#[test]
fn info_text_fits_hundred_columns() {
    let output = command(&["info"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for part in ["host  found", "device 0", "granularity", "virtual memory        yes"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let too_long = |line: &&str| line.chars().count() > 100 && line.trim().contains(' ');
    assert_eq!(text.lines().find(too_long), None);
}

#[test]
fn version_has_commit_and_features() {
    let long = stdout(&command(&["--version"]).output().unwrap());
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines[0], concat!("gpu-vmm ", env!("CARGO_PKG_VERSION")));
    let commit = lines[1].strip_prefix("commit ").unwrap();
    let is_hash = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown (built without git)", "{long}");
    let features = lines[2].strip_prefix("features ").unwrap();
    assert_eq!(features.contains("cuda"), cfg!(feature = "cuda"), "{long}");
    assert!(features.contains("host") && lines[3].starts_with("target ") && lines.len() == 4, "{long}");
    assert_eq!(stdout(&command(&["-V"]).output().unwrap()), format!("{}\n", lines[0]));
}

#[test]
fn help_and_version_are_answers() {
    for (argument, expected) in [
        ("--help", "Usage: gpu-vmm <COMMAND>"),
        ("--help", "Exit status:\n  0  success\n"),
        ("--version", env!("CARGO_PKG_VERSION")),
    ] {
        let output = command(&[argument]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains(expected), "{}", stdout(&output));
    }
    let output = command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Usage: gpu-vmm <COMMAND>"));
}
