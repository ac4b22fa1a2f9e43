//! The conformance suite on the backend of the guide: `tests/porting`, a crate outside of the workspace, as an author of a backend
//! writes one.

use crate::cargo;
use crate::layout::Layout;
use crate::suites::{Job, with_fewer_rounds};
use crate::trouble::Answer;

/// Returns the job that builds the crate into the workspace's folder, which has its dependencies already, and runs its suite.
pub(crate) fn job(layout: &Layout) -> Answer<Job> {
    let mut command = cargo::cargo();
    command.args(["test", "--quiet", "--locked", "--test", "suite", "--manifest-path"]);
    command.arg(cargo::workspace()?.join("tests/porting/Cargo.toml"));
    command.arg("--target-dir").arg(cargo::target_folder()?);
    if !layout.long {
        with_fewer_rounds(&mut command);
    }
    let log = layout.logs().join("porting.txt");
    Ok(Job { name: "tests/porting, the guide's backend".to_owned(), command, log })
}
