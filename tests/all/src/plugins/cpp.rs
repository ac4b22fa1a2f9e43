//! The programs of C++ over `gpu_vmm.hpp`: tests that run with and without exceptions, examples, and the programs of the guide. Those over
//! `gpu_vmm_mr.hpp` are compiled against the RMM that GPU_VMM_TEST_RMM names, a folder of `plugins/c/tests/cpp/fetch.py`, and run on the fake
//! NVIDIA driver; what the guide compares them with is compiled as well.

use super::{Python, SERVER, TestDriver};
use crate::cargo;
use crate::compiler::compile;
use crate::documented;
use crate::layout::Layout;
use crate::queue;
use crate::suites::Job;
use crate::summary::{Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
use std::fs;
use std::path::{Path, PathBuf};

/// The environment variable that names the folder with RMM.
const RMM: &str = "GPU_VMM_TEST_RMM";

/// The test with clients of a server.
const CLIENTS: &str = "tests/cpp/serve.cpp";

/// The tests, which compile with and without exceptions.
const TESTS: [&str; 4] = ["tests/cpp/types.cpp", "tests/cpp/regions.cpp", "tests/cpp/pools.cpp", CLIENTS];

/// The examples with exceptions, and without.
const EXAMPLES: [&str; 4] = [
    "examples/cpp/growing_vector.cpp",
    "examples/cpp/pool_streams.cpp",
    "examples/cpp/two_processes.cpp",
    "examples/cpp/suspend.cpp",
];
const WITHOUT_EXCEPTIONS: &str = "examples/cpp/no_exceptions.cpp";

/// The programs over RMM.
const OVER_RMM: [&str; 2] = ["tests/cpp/mr.cpp", "examples/cpp/rmm.cpp"];

/// What the guide compares the examples with.
const COUNTERPARTS: &str = "examples/cpp/counterparts";

/// A compiled program: its source in `plugins/c`, its name in the table, and its file.
struct Program {
    source: &'static str,
    shown: String,
    file: PathBuf,
}

/// The compiled programs.
pub(super) struct Programs {
    all: Vec<Program>,
    over_rmm: Vec<Program>,
    documented: Vec<(String, PathBuf)>,
}

impl Programs {
    /// Compiles all of them with every warning an error.
    pub(super) fn build(layout: &Layout, library: &Path, summary: &mut Summary) -> Answer<Self> {
        let folder = cargo::workspace()?.join("plugins/c");
        let with = TESTS.into_iter().chain(EXAMPLES).map(|source| (source, true));
        let without = TESTS.into_iter().chain([WITHOUT_EXCEPTIONS]).map(|source| (source, false));
        let all = queue::each(with.chain(without).collect(), |(source, throws)| {
            let (flags, note): (&[&str], _) = match throws {
                true => (&["-std=c++17", "-pthread"], ""),
                false => (&["-std=c++17", "-pthread", "-fno-exceptions"], " without exceptions"),
            };
            let shown = format!("plugins/c/{source}{note}");
            let file = layout.logs().join(shown.replace(['/', '.', ' '], "-"));
            compile(&shown, "c++", flags, &folder.join("include"), &file, &[&folder.join(source), library])?;
            Ok(Program { source, shown, file })
        })?;
        let rmm = std::env::var_os(RMM).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let over_rmm = match rmm {
            Some(rmm) => over_rmm(layout, library, &folder, &rmm)?,
            None => {
                let reason = Trouble::new(format!("{RMM} names no RMM"));
                summary.add(Row::skipped("resources of CCCL and RMM", reason, false));
                Vec::new()
            }
        };
        Ok(Self { all, over_rmm, documented: documented::cpp_programs(layout, library)? })
    }

    /// Returns the jobs on one driver.
    pub(super) fn jobs(&self, layout: &Layout, place: &TestDriver<'_>, python: &Python) -> Vec<Job> {
        let is_fake = matches!(place, TestDriver::FakeDriver);
        let rmm = self.over_rmm.iter().filter(|_| is_fake);
        // A program on HIP starts no server: its child processes do not run there.
        let all = self.all.iter().filter(|program| program.source != CLIENTS || place.has_servers());
        let mut jobs: Vec<Job> = all
            .chain(rmm)
            .map(|Program { shown, file, .. }| {
                let mut command = place.command(layout, file);
                command.arg(place.backend()).env("GPU_VMM_BACKEND", place.backend());
                command.env(SERVER, place.server(&python.server));
                let place = place.shown();
                let log = layout.logs().join(format!("{place}-{shown}.txt").replace(['/', ' '], "-"));
                Job { name: format!("{place}, {shown}"), command, log }
            })
            .collect();
        if matches!(place, TestDriver::Host) {
            jobs.extend(self.documented.iter().map(|(name, file)| {
                let command = place.command(layout, file);
                Job { name: format!("host memory, {name}"), command, log: file.with_extension("txt") }
            }));
        }
        jobs
    }
}

/// Compiles the programs over RMM, and what the guide compares them with.
fn over_rmm(layout: &Layout, library: &Path, folder: &Path, rmm: &Path) -> Answer<Vec<Program>> {
    let include = folder.join("include");
    let headers = ["librmm/include", "librmm/include/rapids", "rapids_logger/include", "nvidia/cu13/include"];
    let headers = headers.map(|name| format!("-isystem{}", rmm.join(name).display()));
    let libraries = [
        "librmm/lib64/librmm.so",
        "rapids_logger/lib64/librapids_logger.so",
        "nvidia/cu13/lib/libcudart.so.13",
    ];
    let libraries = libraries.map(|name| rmm.join(name));
    let found = libraries.iter().map(|library| {
        let folder = library.parent().unwrap_or(rmm);
        format!("-Wl,-rpath,{}", folder.display())
    });
    // RMM's library does not say where the libraries that it needs are: the program needs all of them.
    let mut flags = ["-std=c++20", "-pthread", "-Wl,--no-as-needed"].map(str::to_owned).to_vec();
    flags.extend(headers);
    flags.extend(found);
    // Thrust on the CPU: its vector for CUDA needs nvcc.
    flags.push("-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let counterparts = folder.join(COUNTERPARTS);
    let mut others = Vec::new();
    for entry in fs::read_dir(&counterparts).doing(|| counterparts.display().to_string())? {
        others.push(entry.doing(|| counterparts.display().to_string())?.path());
    }
    let (checked, programs) = std::thread::scope(|scope| {
        let checks = scope.spawn(|| {
            let flags = [flags.as_slice(), &["-c"]].concat();
            queue::each(others, |source| {
                let name = source.display().to_string();
                let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let output = layout.logs().join(format!("counterpart-{stem}.o"));
                compile(&name, "c++", &flags, &include, &output, &[&source])
            })
        });
        let programs = queue::each(OVER_RMM.into(), |source| {
            let shown = format!("plugins/c/{source}");
            let file = layout.logs().join(shown.replace(['/', '.'], "-"));
            let path = folder.join(source);
            let mut inputs = vec![path.as_path(), library];
            inputs.extend(libraries.iter().map(PathBuf::as_path));
            compile(&shown, "c++", &flags, &include, &file, &inputs)?;
            Ok(Program { source, shown, file })
        });
        (checks.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), programs)
    });
    checked?;
    programs
}
