//! The packages and everything that they need as a registry in a folder, in the place of crates.io.

use super::{Published, unpacked};
use crate::cargo;
use crate::trouble::{Answer, Doing};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Fills `registry` with the sources of all dependencies, and with the unpacked packages of the `archives`.
pub(super) fn make(
    packages: &[Published],
    archives: &Path,
    workspace: &Path,
    registry: &Path,
) -> Answer<String> {
    unpacked::empty(registry)?;
    let mut command = cargo::cargo();
    command.current_dir(workspace).args(["vendor", "--quiet", "--versioned-dirs"]).arg(registry);
    cargo::output(&mut command)?;
    for package in packages {
        let archive = package.archive();
        cargo::output(Command::new("cp").arg("-r").arg(workspace.join(&archive)).arg(registry))?;
        // Lock files name the checksum of the archive.
        let file = archives.join(format!("{archive}.crate"));
        let sum = cargo::output(Command::new("sha256sum").arg(&file))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        let sums = registry.join(archive).join(".cargo-checksum.json");
        let text = json!({ "files": {}, "package": sum }).to_string();
        fs::write(&sums, text).doing(|| sums.display().to_string())?;
    }
    let count = fs::read_dir(registry).doing(|| registry.display().to_string())?.count();
    Ok(format!("{count} packages, {} of them ours", packages.len()))
}

/// Writes the configuration with which Cargo takes every package in `folder` from `registry`, and asks no network.
pub(super) fn replace_crates_io(folder: &Path, registry: &Path) -> Answer {
    let settings = folder.join(".cargo");
    fs::create_dir_all(&settings).doing(|| settings.display().to_string())?;
    let file = settings.join("config.toml");
    let text = format!(
        "[source.crates-io]\nreplace-with = \"packages\"\n\n[source.packages]\ndirectory = {:?}\n\n[net]\noffline = true\n",
        registry.display().to_string()
    );
    fs::write(&file, text).doing(|| file.display().to_string())
}
