//! The conformance suite on the backend of the guide: `tests/porting`, a crate outside of the workspace, as an author of a backend
//! writes one.

use crate::cargo;
use crate::layout::Layout;
use crate::suites;
use crate::summary::Summary;
use crate::trouble::{Answer, Doing};
use std::fs;

/// Builds the crate into the workspace's folder, which has its dependencies already, and runs its suite.
pub(crate) fn run(layout: &Layout, summary: &mut Summary) -> Answer {
    fs::create_dir_all(layout.logs()).doing(|| layout.logs().display().to_string())?;
    let mut command = cargo::cargo();
    command.args(["test", "--quiet", "--locked", "--test", "suite", "--manifest-path"]);
    command.arg(cargo::workspace()?.join("tests/porting/Cargo.toml"));
    command.arg("--target-dir").arg(cargo::target_folder()?);
    let row = suites::row(
        "tests/porting, the guide's backend",
        &mut command,
        &layout.logs().join("porting.txt"),
        false,
    )?;
    row.into_iter().for_each(|row| summary.add(row));
    Ok(())
}
