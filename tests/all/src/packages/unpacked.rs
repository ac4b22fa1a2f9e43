//! All packages as a workspace of their own: what a registry would have, in which nothing else of the repository is.

use super::Published;
use crate::cargo;
use crate::trouble::{Answer, Doing, Trouble};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// Adds an option for each package.
fn of_all(command: &mut Command, packages: &[Published]) {
    packages.iter().for_each(|package| {
        command.args(["--package", &package.name]);
    });
}

/// Packages all, in the order of their dependencies, and unpacks the archives into `workspace`.
pub(super) fn unpack(packages: &[Published], folder: &Path, workspace: &Path) -> Answer<String> {
    let mut command = cargo::cargo();
    command.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir"]).arg(folder);
    of_all(&mut command, packages);
    cargo::output(&mut command)?;
    empty(workspace)?;
    let mut manifest =
        "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\nexclude = [\"target\"]\n\n[patch.crates-io]\n"
            .to_owned();
    for package in packages {
        let archive = package.archive();
        let file = folder.join(format!("package/{archive}.crate"));
        cargo::output(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(workspace))?;
        manifest += &format!("{} = {{ path = \"{archive}\" }}\n", package.name);
    }
    let file = workspace.join("Cargo.toml");
    fs::write(&file, manifest).doing(|| file.display().to_string())?;
    // The versions that the workspace is tested with.
    let lock = workspace.join("Cargo.lock");
    fs::copy(cargo::workspace()?.join("Cargo.lock"), &lock).doing(|| lock.display().to_string())?;
    Ok(format!("{} packages", packages.len()))
}

/// Does everything that publishing does, the build of each package by itself included, and uploads nothing.
pub(super) fn publish_dry(packages: &[Published], folder: &Path) -> Answer<String> {
    let mut command = cargo::cargo();
    command.args(["publish", "--quiet", "--dry-run", "--allow-dirty", "--target-dir"]).arg(folder);
    of_all(&mut command, packages);
    cargo::output(&mut command).map(|_| "nothing is uploaded".to_owned())
}

/// Builds the packages with the oldest compiler that the manifests allow.
pub(super) fn stated_rust(packages: &[Published], workspace: &Path) -> Answer<String> {
    let stated = packages.iter().find_map(|package| package.manifest["rust_version"].as_str());
    let stated = stated.ok_or_else(|| Trouble::new("no package states its version of Rust"))?;
    let mut install = Command::new("rustup");
    cargo::output(install.args([
        "toolchain",
        "install",
        stated,
        "--profile",
        "minimal",
        "--no-self-update",
    ]))?;
    let mut command = cargo::on_toolchain(stated);
    check(&mut command, workspace, "stated")?;
    Ok(format!("Rust {stated}"))
}

/// Builds the packages with the oldest version of each dependency that the manifests allow.
pub(super) fn oldest(packages: &[Published], workspace: &Path) -> Answer<String> {
    let lock = workspace.join("Cargo.lock");
    let kept = fs::read(&lock).doing(|| lock.display().to_string())?;
    let mut command = cargo::on_toolchain("nightly");
    command.current_dir(workspace).args(["update", "--quiet", "-Zdirect-minimal-versions"]);
    let done = cargo::output(&mut command).and_then(|_| check(&mut cargo::cargo(), workspace, "oldest"));
    fs::write(&lock, kept).doing(|| lock.display().to_string())?;
    done.map(|()| format!("{} packages", packages.len()))
}

/// Checks the libraries and programs of a workspace with all features.
fn check(command: &mut Command, workspace: &Path, build: &str) -> Answer {
    command.current_dir(workspace).args([
        "check",
        "--quiet",
        "--workspace",
        "--all-features",
        "--target-dir",
    ]);
    command.arg(workspace.join("target").join(build)).env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo::output(command).map(drop)
}

/// Compares the public items with the last version's.
pub(super) fn compared(packages: &[Published], version: &str) -> Answer<String> {
    let mut command = cargo::cargo();
    command.args(["semver-checks", "--baseline-rev", version]);
    of_all(&mut command, packages);
    cargo::output(&mut command).map(|_| format!("compared with {version}"))
}

/// Makes a folder that has nothing in it but builds of earlier runs.
pub(super) fn empty(folder: &Path) -> Answer {
    let shown = || folder.display().to_string();
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        entries => {
            for entry in entries.doing(shown)? {
                let entry = entry.doing(shown)?;
                let is_folder = entry.file_type().doing(shown)?.is_dir();
                match (is_folder, entry.file_name() == "target") {
                    (true, true) => {}
                    (true, false) => fs::remove_dir_all(entry.path()).doing(shown)?,
                    (false, _) => fs::remove_file(entry.path()).doing(shown)?,
                }
            }
        }
    }
    fs::create_dir_all(folder).doing(shown)
}
