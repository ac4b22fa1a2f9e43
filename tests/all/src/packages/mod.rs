//! `cargo test-all packages`: the packages for crates.io. `--build` also builds each, and uses them as a stranger's project does.

mod registry;
mod rules;
mod unpacked;
mod user;

use crate::cargo;
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The folder for the unpacked packages, under that for all of this.
const WORKSPACE: &str = "workspace";

/// The folder for the registry, beside it.
const REGISTRY: &str = "registry";

/// A package that is published.
#[derive(Debug)]
struct Published {
    name: String,
    version: String,
    folder: PathBuf,
    /// Its part of `cargo metadata`.
    manifest: Value,
}

impl Published {
    /// Returns the files in its folder that Cargo compiles first: of the library, of programs, and the build script.
    fn built(&self) -> Vec<String> {
        let targets = self.manifest["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_built = |target: &&Value| {
            let kinds = target["kind"].as_array().map(Vec::as_slice).unwrap_or_default();
            kinds
                .iter()
                .any(|kind| ["lib", "bin", "proc-macro", "custom-build"].iter().any(|one| kind == one))
        };
        let file = |target: &Value| {
            let path = Path::new(target["src_path"].as_str()?);
            Some(path.strip_prefix(&self.folder).ok()?.display().to_string())
        };
        targets.iter().filter(is_built).filter_map(file).collect()
    }

    /// Returns the name of its folder in an archive.
    fn archive(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// Checks all packages. With `registry`, also makes a registry of them. With `build`, also builds and uses them, which takes
/// minutes and a network.
pub(crate) fn run(registry: bool, build: bool, summary: &mut Summary) -> Answer {
    let metadata = cargo::metadata()?;
    let packages = published(&metadata)?;
    step(summary, "manifests", || {
        let wrong: Vec<_> =
            packages.iter().flat_map(|one| rules::manifest(&one.manifest, &packages)).collect();
        all_right(&wrong, &packages)
    });
    step(summary, "files and READMEs", || {
        let mut wrong = Vec::new();
        for package in &packages {
            let list = cargo::output(cargo::cargo().args([
                "package",
                "--list",
                "--allow-dirty",
                "--package",
                &package.name,
            ]))?;
            wrong.extend(rules::files(&package.name, &package.built(), &list));
            let readme = package.folder.join("README.md");
            let text = fs::read_to_string(&readme).doing(|| readme.display().to_string())?;
            wrong.extend(rules::links(&package.name, &text));
        }
        all_right(&wrong, &packages)
    });
    let folder = cargo::target_folder()?.join("packages");
    if registry || build {
        package(&packages, &folder, summary);
    }
    if build {
        build_and_use(&packages, &folder, summary);
    }
    Ok(())
}

/// Packages all, and makes the registry. A step that needs an earlier one fails with it.
fn package(packages: &[Published], folder: &Path, summary: &mut Summary) {
    let workspace = folder.join(WORKSPACE);
    step(summary, "packaged and unpacked", || unpacked::unpack(packages, folder, &workspace));
    step(summary, "a registry in a folder", || {
        registry::make(packages, &folder.join("package"), &workspace, &folder.join(REGISTRY))
    });
}

/// Builds the packages in every way, and uses them.
fn build_and_use(packages: &[Published], folder: &Path, summary: &mut Summary) {
    let (workspace, registry) = (folder.join(WORKSPACE), folder.join(REGISTRY));
    // Before the first publication, this does everything but to upload.
    step(summary, "cargo publish --dry-run", || unpacked::publish_dry(packages, folder));
    step(summary, "built by the stated Rust", || unpacked::stated_rust(packages, &workspace));
    step(summary, "built with the oldest dependencies", || unpacked::oldest(packages, &workspace));
    step(summary, "a project that adds the library", || user::project(&registry, &folder.join("user")));
    step(summary, "the command, installed", || user::command(&registry, &folder.join("user")));
    match last_version() {
        Ok(Some(version)) => {
            step(summary, "no break since the last version", || unpacked::compared(packages, &version))
        }
        Ok(None) => {
            let reason = Trouble::new("no version is tagged, so there is nothing to compare with");
            summary.add(Row::skipped("no break since the last version", reason, false));
        }
        Err(trouble) => summary.add(Row::broken("no break since the last version", trouble)),
    }
}

/// Runs one step, and adds its row.
fn step(summary: &mut Summary, name: &str, work: impl FnOnce() -> Answer<String>) {
    eprintln!("{name}");
    let began = Instant::now();
    let (outcome, note) = match work() {
        Ok(note) => (Outcome::Passed, note),
        Err(trouble) => (Outcome::Failed, trouble.to_string()),
    };
    summary.add(Row::of(name, outcome, began.elapsed()).noting(note));
}

/// Returns the published packages of the workspace.
fn published(metadata: &Value) -> Answer<Vec<Published>> {
    let all = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_published = |package: &&Value| package["publish"] != Value::Array(Vec::new());
    let packages: Vec<_> = all
        .iter()
        .filter(is_published)
        .map(|package| Published {
            name: text(&package["name"]),
            version: text(&package["version"]),
            folder: Path::new(&text(&package["manifest_path"]))
                .parent()
                .map(Path::to_owned)
                .unwrap_or_default(),
            manifest: package.clone(),
        })
        .collect();
    if packages.is_empty() {
        return Err(Trouble::new("the workspace has no package that is published"));
    }
    Ok(packages)
}

/// The tag of the last version, if there is one.
fn last_version() -> Answer<Option<String>> {
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace()?).args([
        "tag",
        "--list",
        "v*",
        "--merged",
        "HEAD",
        "--sort=-v:refname",
    ]);
    let tags = cargo::output(&mut git)?;
    Ok(tags.lines().next().map(str::to_owned))
}

fn all_right(wrong: &[String], packages: &[Published]) -> Answer<String> {
    if wrong.is_empty() {
        return Ok(format!("{} packages", packages.len()));
    }
    Err(Trouble::new(wrong.join("\n")))
}
