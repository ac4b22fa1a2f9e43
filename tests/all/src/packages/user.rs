//! What a user does with the packages, in an empty folder outside of the repository.

use super::registry;
use crate::cargo;
use crate::trouble::{Answer, Doing, Trouble};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// The package of the command `gpu-vmm`.
const COMMAND: &str = "gpu-vmm-cli";

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    /// Creates it where no manifest and no settings of Cargo are above it.
    fn new(name: &str, registry: &Path) -> Answer<Self> {
        let folder = Self(env::temp_dir().join(format!("gpu-vmm-{name}-{}", process::id())));
        fs::create_dir(&folder.0).doing(|| folder.0.display().to_string())?;
        registry::replace_crates_io(&folder.0, registry)?;
        Ok(folder)
    }

    /// Returns a command of Cargo's there.
    fn cargo(&self, build: &Path) -> Command {
        let mut command = cargo::cargo();
        command.current_dir(&self.0).env("CARGO_TARGET_DIR", build).env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder for temporary files.
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Adds the library to a new project, and runs the program of its README on host memory.
pub(super) fn project(registry: &Path, build: &Path) -> Answer<String> {
    let folder = Folder::new("project", registry)?;
    cargo::output(folder.cargo(build).args(["init", "--quiet", "--vcs", "none", "--name", "user"]))?;
    cargo::output(folder.cargo(build).args(["add", "--quiet", "gpu-vmm", "--features", "share,snapshot"]))?;
    let readme = cargo::workspace()?.join("README.md");
    let text = fs::read_to_string(&readme).doing(|| readme.display().to_string())?;
    let program = text.split("```rust\n").nth(1).and_then(|rest| rest.split_once("```"));
    let (program, _) = program.ok_or_else(|| Trouble::new("README.md has no program in Rust"))?;
    fs::write(folder.0.join("src/main.rs"), program).doing(|| "src/main.rs".to_owned())?;
    let said = cargo::output(folder.cargo(build).args(["run", "--quiet"]).env("GPU_VMM_BACKEND", "host"))?;
    expect(&said, "on host")
}

/// Installs the command, and grows host memory with it.
pub(super) fn command(registry: &Path, build: &Path) -> Answer<String> {
    let folder = Folder::new("command", registry)?;
    let mut install = folder.cargo(build);
    install.args(["install", "--quiet", "--debug", "--locked", COMMAND]);
    // `cargo install` reads no settings of the folder that it runs in.
    install.env("CARGO_HOME", folder.0.join(".cargo")).arg("--root").arg(&folder.0);
    cargo::output(&mut install)?;
    let mut grow = Command::new(folder.0.join("bin/gpu-vmm"));
    let said = cargo::output(grow.args(["grow", "--backend", "host", "--to", "16MiB"]))?;
    expect(&said, "16 MiB")
}

/// Returns the line of an output that has `part`.
fn expect(said: &str, part: &str) -> Answer<String> {
    let line = said.lines().find(|line| line.contains(part));
    line.map(str::to_owned).ok_or_else(|| Trouble::new(format!("expected {part:?} in the output: {said}")))
}
