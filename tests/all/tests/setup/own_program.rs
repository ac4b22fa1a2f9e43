//! A user's own program: its environment, how it ends, and which programs are refused. The program is the machine's shell, on
//! packages of the machine's loader and C library.

use crate::rig::Rig;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

crate::tests!(
    a_program_has_its_arguments_and_status,
    a_program_has_its_streams,
    a_signal_ends_it,
    the_environment_is_the_tests,
    what_is_set_up_is_used_without_packages,
    an_unknown_version,
    a_program_that_is_missing,
    a_script,
    setup_says_how,
);

/// Both commands, on the rig's packages.
const BOTH: [&str; 2] = ["run-hip", "run-cuda"];

fn run(rig: &Rig, how: &[&str], program: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = rig.command();
    command.args(how).args(program);
    command
}

/// Returns the output of a program that ended well.
fn printed(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

fn a_program_has_its_arguments_and_status(rig: &Rig) {
    for how in BOTH {
        let script = r#"printf '%s|' "$@"; exit 7"#;
        let program = ["sh", "-c", script, "name", "--version", "9", "--", "-x", "", "a b", "--folder"];
        let output = run(rig, &[how], program).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert_eq!(output.stdout, b"--version|9|--|-x||a b|--folder|", "{how}");
    }
    for version in ["9.1.2", "9.1", "9"] {
        let output = run(rig, &["run-hip", "--version", version], ["/bin/sh", "-c", "echo ran"]).output();
        assert_eq!(printed(&output.unwrap()), "ran\n");
    }
}

fn a_program_has_its_streams(rig: &Rig) {
    for how in BOTH {
        let mut command = run(rig, &[how], ["sh", "-c", "read word; echo out $word; echo err $word >&2"]);
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"word\n").unwrap();
        drop(writer);
        let output = command.stdin(Stdio::from(reader)).output().unwrap();
        assert_eq!(printed(&output), "out word\n");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors.lines().last(), Some("err word"), "{how}");
    }
}

fn a_signal_ends_it(rig: &Rig) {
    for how in BOTH {
        let mut command = run(rig, &[how], ["sh", "-c", "kill -SEGV $$"]);
        assert_eq!(command.output().unwrap().status.signal(), Some(11), "{how}");
        // As a shell reports it.
        let mut shell = Command::new("sh");
        shell.args(["-c", r#""$@"; exit $?"#, "sh"]).arg(command.get_program()).args(command.get_args());
        shell.env("HIP_RUNTIME_DEBS", rig.debs());
        assert_eq!(shell.output().unwrap().status.code(), Some(128 + 11), "{how}");
    }
}

fn the_environment_is_the_tests(rig: &Rig) {
    let own = rig.folder.join("own");
    let script = "echo $LD_LIBRARY_PATH,$HIP_VISIBLE_DEVICES,$AMD_COMGR_CACHE,$FAKE_CUDA_GPUS,$HSA_SIM_GPUS";
    let on = |how: &str| {
        let mut command = run(rig, &[how], ["sh", "-c", script]);
        command.env("LD_LIBRARY_PATH", &own).env("HIP_VISIBLE_DEVICES", "7").env_remove("AMD_COMGR_CACHE");
        let output = command.env("FAKE_CUDA_GPUS", "3").env("HSA_SIM_GPUS", "2").output().unwrap();
        printed(&output).to_owned()
    };
    assert_eq!(on("run-hip"), ",,0,3,2\n");
    let fake = rig.runtimes().join("fake-cuda");
    assert_eq!(on("run-cuda"), format!("{}:{},,,3,2\n", fake.display(), own.display()));
    assert!(fake.join("libcuda.so.1").exists() && fake.join("libcuda.so").exists());
    // The loader's own arguments have the folders on HIP.
    let mut command = run(rig, &["run-hip"], ["sh", "-c", "tr '\\0' '\\n' </proc/$$/cmdline"]);
    let output = command.env("LD_LIBRARY_PATH", &own).output().unwrap();
    let (simulator, libraries) = (rig.runtimes().join("sim"), rig.libraries());
    let folders = format!("{}:{}:{}", simulator.display(), libraries.display(), own.display());
    assert!(printed(&output).lines().any(|word| word == folders), "{output:?}");
    assert!(simulator.join("libhsa-runtime64.so.1").exists());
}

fn what_is_set_up_is_used_without_packages(rig: &Rig) {
    assert!(rig.set_up().status.success());
    fs::remove_dir_all(rig.debs()).unwrap();
    let without = |program: &[&str]| {
        let mut command = run(rig, &["run-hip"], program);
        // Without the variable, apt would be asked.
        command.env_remove("HIP_RUNTIME_DEBS").env("HIP_RUNTIME_MIRROR", "http://127.0.0.1:9/debian");
        command
    };
    assert_eq!(printed(&without(&["sh", "-c", "echo ran"]).output().unwrap()), "ran\n");
    fs::remove_file(rig.libraries().join("libc.so.6")).unwrap();
    let output = without(&["sh", "-c", "echo ran"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.starts_with("error: the runtime is incomplete"),
        "{said}"
    );
}

fn an_unknown_version(rig: &Rig) {
    let wanted = |version| run(rig, &["run-hip", "--version", version], ["sh"]);
    rig.refuses(&mut wanted("9.2"), &["no HIP 9.2", "there are 9.1.2"]);
    fs::write(rig.debs().join("8.list"), "libamdhip64-8_8.0.1-1_amd64.deb\n").unwrap();
    rig.refuses(&mut wanted("8"), &["8.list", "does not exist"]);
}

fn a_program_that_is_missing(rig: &Rig) {
    for how in BOTH {
        rig.refuses(&mut run(rig, &[how], ["no-such-program"]), &["no program no-such-program in PATH"]);
        rig.refuses(&mut run(rig, &[how], ["./no-such-program"]), &["./no-such-program", "No such file"]);
        rig.refuses(&mut run(rig, &[how], [&rig.debs()]), &["not an executable file"]);
    }
}

fn a_script(rig: &Rig) {
    use std::os::unix::fs::PermissionsExt;
    let script = rig.folder.join("script");
    fs::write(&script, "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    rig.refuses(&mut run(rig, &["run-hip"], [&script]), &["not an ELF program", "interpreter"]);
    assert_eq!(printed(&run(rig, &["run-cuda"], [&script]).output().unwrap()), "ran\n");
}

/// The lines that `setup` prints work, with a program in the place of the word.
fn setup_says_how(rig: &Rig) {
    let output = rig.set_up();
    let said = printed(&output);
    let folder = format!("cargo test-all --folder '{}' ", rig.runtimes().display());
    for command in ["run-hip --version 9.1.2 PROGRAM ARGS...", "run-cuda PROGRAM ARGS..."] {
        assert!(said.contains(&format!("{folder}{command}\n")), "{said}");
    }
    let anywhere: Vec<&str> =
        said.lines().filter_map(|line| line.split_once("anywhere:")).map(|(_, line)| line.trim()).collect();
    assert_eq!(anywhere.len(), 2, "{said}");
    for line in anywhere {
        let line = line.replace("PROGRAM ARGS...", "/bin/sh -c 'exit 7'");
        let status = Command::new("sh").args(["-c", &line]).current_dir("/").status().unwrap();
        assert_eq!(status.code(), Some(7), "{line}");
    }
}
