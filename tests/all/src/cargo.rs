//! Calls of Cargo: runs the workspace's tests, builds HIP's test programs, the command and the simulated HSA runtime.

use crate::trouble::{Answer, Doing, Trouble};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The crate of the simulated HSA runtime.
const SIMULATOR: &str = "gpu-vmm-hsa-sim";

/// The crate of the fake NVIDIA driver.
const FAKE_CUDA: &str = "gpu-vmm-fake-cuda";

/// The library for C and Python.
const C_LIBRARY: &str = "gpu-vmm-c";

/// The simulator's library must have this name: HIP is linked to it.
const HSA: &str = "libhsa-runtime64.so.1";

/// The command for users.
const COMMAND: &str = "gpu-vmm";

/// The library's package.
const FACADE: &str = "gpu-vmm";

/// A test program and the folder of its package, in which Cargo would run it.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) file: PathBuf,
    pub(crate) folder: PathBuf,
}

/// Returns the Cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// Returns the Cargo of a toolchain, which may differ from the one that runs this program.
pub(crate) fn on_toolchain(toolchain: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", toolchain, "cargo"]);
    ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"].iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// Returns the folder in which Cargo builds.
pub(crate) fn target_folder() -> Answer<PathBuf> {
    let metadata = metadata()?;
    folder(&metadata, "target_directory")
}

/// Returns the root of this program's workspace.
pub(crate) fn workspace() -> Answer<PathBuf> {
    folder(&metadata()?, "workspace_root")
}

/// Returns what Cargo knows of the workspace's packages.
pub(crate) fn metadata() -> Answer<Value> {
    let answer = output(cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    serde_json::from_str(&answer).doing(|| "cargo metadata".to_owned())
}

fn folder(metadata: &Value, key: &str) -> Answer<PathBuf> {
    let folder =
        metadata[key].as_str().ok_or_else(|| Trouble::new(format!("cargo metadata has no {key}")))?;
    Ok(PathBuf::from(folder))
}

/// Runs `cargo test --workspace` and returns whether it passed.
pub(crate) fn test_workspace() -> Answer<bool> {
    let mut command = cargo();
    let status =
        command.args(["test", "--workspace", "--no-fail-fast"]).status().doing(|| "cargo test".to_owned())?;
    Ok(status.success())
}

/// Builds test programs with the flags of `cargo test --workspace`, so that nothing is built twice; by the names of targets.
pub(crate) fn test_programs(names: &[&str]) -> Answer<HashMap<String, Program>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--quiet"]);
    names.iter().for_each(|name| {
        command.args(["--test", name]);
    });
    let mut programs = HashMap::new();
    for artifact in artifacts(&mut command)? {
        if let (Some(name), Some(program)) = (artifact["target"]["name"].as_str(), program(&artifact)) {
            programs.insert(name.to_owned(), program);
        }
    }
    match names.iter().find(|name| !programs.contains_key(**name)) {
        Some(missing) => Err(Trouble::new(format!("cargo built no test program {missing}"))),
        None => Ok(programs),
    }
}

/// Builds the command `gpu-vmm`.
pub(crate) fn command_program() -> Answer<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--workspace", "--quiet", "--bin", COMMAND]);
    let artifacts = artifacts(&mut command)?;
    let files = artifacts.iter().filter(|artifact| artifact["target"]["name"] == COMMAND);
    let file = files.filter_map(|artifact| artifact["executable"].as_str()).next();
    file.map(PathBuf::from).ok_or_else(|| Trouble::new(format!("cargo built no program {COMMAND}")))
}

/// Builds an example of the facade.
pub(crate) fn example(name: &str) -> Answer<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--package", FACADE, "--example", name]);
    let artifacts = artifacts(&mut command)?;
    let files = artifacts.iter().filter(|artifact| artifact["target"]["name"] == name);
    let file = files.filter_map(|artifact| artifact["executable"].as_str()).next();
    file.map(PathBuf::from).ok_or_else(|| Trouble::new(format!("cargo built no example {name}")))
}

/// Builds the conformance suite of another copy of the workspace in a folder of its own, with HIP's quirks that can be
/// switched off. Warnings of rustc are ignored.
pub(crate) fn suite_of(copy: &Path, into: &Path) -> Answer<PathBuf> {
    let mut command = tests_in(copy, into, "gpu-vmm-conformance");
    command.args(["--test", "conformance"]);
    command.args(["--no-default-features", "--features", "host,hip,cuda,quirk-switch"]);
    let built = artifacts(&mut command)?;
    let program = built.iter().find_map(|artifact| artifact["executable"].as_str());
    program.map(PathBuf::from).ok_or_else(|| Trouble::new("cargo built no conformance suite"))
}

/// Builds all test programs of a package of another copy of the workspace, as [`suite_of`] builds the suite.
pub(crate) fn tests_of(copy: &Path, into: &Path, package: &str) -> Answer<Vec<Program>> {
    let mut command = tests_in(copy, into, package);
    // The unit tests of a library or of binaries are among them.
    command.arg("--tests");
    let built = artifacts(&mut command)?;
    Ok(built.iter().filter(|artifact| artifact["profile"]["test"] == true).filter_map(program).collect())
}

/// The command that builds test programs of a package of another copy of the workspace, each of which runs for many mutations.
fn tests_in(copy: &Path, into: &Path, package: &str) -> Command {
    let mut command = cargo();
    command.current_dir(copy).env("CARGO_TARGET_DIR", into);
    command.env("CARGO_ENCODED_RUSTFLAGS", "--cap-lints=allow");
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    command.args(["test", "--no-run", "--quiet", "--locked", "--package", package]);
    command
}

/// Returns the program of an artifact that has one, and the folder of its package.
fn program(artifact: &Value) -> Option<Program> {
    let (file, manifest) = (artifact["executable"].as_str()?, artifact["manifest_path"].as_str()?);
    let folder = Path::new(manifest).parent().unwrap_or(Path::new(".")).to_owned();
    Some(Program { file: file.into(), folder })
}

/// Builds a test program of another copy of the workspace with a `--cfg` of the tests of schedules; by its package, and the
/// flags that choose it.
pub(crate) fn schedules_of(
    copy: &Path,
    into: &Path,
    cfg: &str,
    package: &str,
    target: &[&str],
) -> Answer<PathBuf> {
    let mut command = cargo();
    command.current_dir(copy).env("CARGO_TARGET_DIR", into);
    command.env("CARGO_ENCODED_RUSTFLAGS", format!("--cap-lints=allow\u{1f}--cfg\u{1f}{cfg}"));
    command.args(["test", "--no-run", "--quiet", "--locked", "--package", package]).args(target);
    let built = artifacts(&mut command)?;
    let program = built.iter().find_map(|artifact| artifact["executable"].as_str());
    program.map(PathBuf::from).ok_or_else(|| Trouble::new(format!("cargo built no tests for {cfg}")))
}

/// Builds the simulated HSA runtime into a folder.
pub(crate) fn simulator(into: &Path) -> Answer {
    let mut command = cargo();
    command.args(["build", "--release", "--quiet", "--package", SIMULATOR]);
    let artifacts = artifacts(&mut command)?;
    let files = artifacts.iter().filter_map(|artifact| artifact["filenames"].as_array()).flatten();
    let library = files
        .filter_map(Value::as_str)
        .find(|file| Path::new(file).extension().is_some_and(|end| end == "a") && file.contains("hsa_sim"));
    let library = library.ok_or_else(|| Trouble::new(format!("{SIMULATOR} has no static library")))?;
    fs::create_dir_all(into).doing(|| into.display().to_string())?;
    let script = workspace()?.join("tests/hsa-sim/link.sh");
    output(Command::new(script).arg(library).arg(into.join(HSA))).map(drop)
}

/// Builds the fake NVIDIA driver with the flags of `cargo test --workspace`, and returns its library.
pub(crate) fn fake_cuda() -> Answer<PathBuf> {
    shared_library(FAKE_CUDA, "libgpu_vmm_fake_cuda.so")
}

/// Builds the library for C with the flags of `cargo build`, and returns its file.
pub(crate) fn c_library() -> Answer<PathBuf> {
    shared_library(C_LIBRARY, "libgpu_vmm_c.so")
}

/// Builds a package that is a library for other languages, and returns its file.
fn shared_library(package: &str, name: &str) -> Answer<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--package", package]);
    let artifacts = artifacts(&mut command)?;
    let files = artifacts.iter().filter_map(|artifact| artifact["filenames"].as_array()).flatten();
    let mut files = files.filter_map(Value::as_str).map(Path::new);
    let library = files.find(|file| file.ends_with(name));
    library.map(Path::to_owned).ok_or_else(|| Trouble::new(format!("{package} has no library")))
}

/// Runs a command of Cargo's and returns the artifacts that it built.
fn artifacts(command: &mut Command) -> Answer<Vec<Value>> {
    let messages = output(command.arg("--message-format=json-render-diagnostics"))?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter(|message| message["reason"] == "compiler-artifact").collect())
}

/// Returns the output of a command. Its errors go to this program's standard error.
pub(crate) fn output(command: &mut Command) -> Answer<String> {
    let shown = format!("{command:?}");
    let answer = command.stderr(Stdio::inherit()).output().doing(|| shown.clone())?;
    if !answer.status.success() {
        return Err(Trouble::new(format!("{shown} failed ({}); its errors are above", answer.status)));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}
