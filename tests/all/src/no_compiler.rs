//! Cases whose work needs kernels, on a runtime without AMD's run-time compiler: none of them may fail.

use crate::cargo;
use crate::layout::Layout;
use crate::runtime::Runtime;
use crate::suites::{prepare, row};
use crate::summary::Summary;
use crate::trouble::{Answer, Doing};
use std::fs;

/// Parts of the names of such cases.
const CASES: [&str; 3] = ["capture", "::fault::", "::order::"];

/// The beginning of the names of the compiler's libraries.
const COMPILER: &str = "libhiprtc";

/// Runs them on the newest version of HIP.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    let Some(complete) = runtimes.last() else { return Ok(()) };
    let prefix = layout.root.join("no-compiler");
    let runtime = Runtime { version: complete.version.clone(), prefix };
    let folder = runtime.libraries();
    let shown = || folder.display().to_string();
    if folder.exists() {
        fs::remove_dir_all(&folder).doing(shown)?;
    }
    fs::create_dir_all(&folder).doing(shown)?;
    for entry in fs::read_dir(complete.libraries()).doing(shown)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(COMPILER) {
            crate::places::link(&entry.path(), &folder.join(entry.file_name()))?;
        }
    }
    let programs = cargo::test_programs(&["conformance"])?;
    for (number, cases) in CASES.into_iter().enumerate() {
        let name = format!("HIP {}, 2 GPUs without hiprtc, {cases}", runtime.version);
        let log = layout.logs().join(format!("{}-no-compiler-{number}.txt", runtime.version));
        let mut command = runtime.command(&layout.simulator(), &programs["conformance"].file, None);
        prepare(&mut command, 2);
        command.arg(cases);
        if let Some(row) = row(&name, &mut command, &log, true)? {
            summary.add(row);
        }
    }
    Ok(())
}
