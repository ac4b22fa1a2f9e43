//! The adapters in `integrations`: they are compiled once, and their programs and tests run on each driver.

use super::{Python, TestDriver};
use crate::cargo;
use crate::compiler::compile;
use crate::layout::Layout;
use crate::suites::Job;
use crate::trouble::{Answer, Doing};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of `integrations` with Python tests.
const PYTHON: [&str; 5] = ["dynamo", "modelexpress", "sglang", "torch_memory_saver", "vllm"];

/// The flags of a shared library.
const SHARED: [&str; 3] = ["-fPIC", "-fvisibility=hidden", "-shared"];

/// The names of the runtime whose `cudaMalloc` is replaced: the toolkit's, and one as in PyTorch's wheels.
const RUNTIMES: [&str; 2] = ["libcudart.so", "libcudart-0a1b2c3d.so.12"];

/// The compiled part.
pub(super) struct Adapters {
    folder: PathBuf,
    /// The library in the place of torch_memory_saver's.
    saver: PathBuf,
    /// The programs that run on each driver: the path of the source in `integrations`, and the program.
    programs: [(&'static str, PathBuf); 2],
    /// The program whose `cudaMalloc` is replaced, and the libraries that call it: one for each name of the runtime.
    preload: (PathBuf, [PathBuf; 2]),
}

impl Adapters {
    /// Compiles all of them with every warning an error.
    pub(super) fn build(layout: &Layout, library: &Path) -> Answer<Self> {
        let workspace = cargo::workspace()?;
        let (include, folder) = (workspace.join("plugins/c/include"), workspace.join("integrations"));
        let own = |name: &str| layout.logs().join(name);
        let cpp = |name: &str, flags: &[&str], output: &Path, sources: &[&Path]| {
            let flags = [&["-std=c++17", "-pthread"], flags].concat();
            compile(name, "c++", &flags, &include, output, &[sources, &[library]].concat())
        };

        let (memory_saver, saver) = (folder.join("torch_memory_saver"), own("libtorch_memory_saver.so"));
        let sources = sources(&memory_saver.join("src"))?;
        let sources: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
        cpp("torch_memory_saver/src", &SHARED, &saver, &sources)?;
        let (name, pause) = ("torch_memory_saver/tests/pause.cpp", own("adapter-pause"));
        cpp(name, &[], &pause, &[&folder.join(name), &saver])?;
        let pause = (name, pause);

        let (name, pages) = ("kvcached/tests/pages.cpp", own("adapter-pages"));
        let header = folder.join("kvcached/include");
        cpp(name, &["-I", &header.to_string_lossy()], &pages, &[&folder.join(name)])?;

        let (runtimes, users) = (RUNTIMES.map(own), ["libuser.so", "libuser-of-a-wheel.so"].map(own));
        let preload = own("adapter-preload");
        let tests = memory_saver.join("tests");
        let c = |source: &str, flags: &[&str], output: &Path, more: &[&Path]| {
            let file = tests.join(source);
            compile(source, "cc", flags, &include, output, &[&[file.as_path()], more].concat())
        };
        for (runtime, user) in runtimes.iter().zip(&users) {
            c("runtime.c", &["-fPIC", "-shared"], runtime, &[])?;
            c("user.c", &["-fPIC", "-shared"], user, &[runtime])?;
        }
        c("preload.c", &[], &preload, &[])?;
        Ok(Self { folder, saver, programs: [pause, (name, pages)], preload: (preload, users) })
    }

    /// Returns the jobs on one driver.
    pub(super) fn jobs(&self, layout: &Layout, place: &TestDriver<'_>, python: &Python) -> Vec<Job> {
        let stem = place.shown().replace(' ', "-");
        let job = |name: &str, command| {
            let log = layout.logs().join(format!("{stem}-{}.txt", name.replace(['/', '.'], "-")));
            Job { name: format!("{}, integrations/{name}", place.shown()), command, log }
        };
        let mut jobs = Vec::new();
        for (source, program) in &self.programs {
            let mut command = place.command(layout, program);
            command.arg(place.backend());
            jobs.push(job(source, command));
        }
        for name in PYTHON {
            let mut command = python.tests(layout, place, &self.folder.join(name).join("tests"));
            command.env("GPU_VMM_BACKEND", place.backend()).env("GPU_VMM_TMS_LIBRARY", &self.saver);
            jobs.push(job(name, command));
        }
        jobs
    }

    /// Returns the jobs of the program whose `cudaMalloc` is replaced, on host memory: one for each name of the runtime.
    pub(super) fn preload(&self, layout: &Layout) -> [Job; 2] {
        let (program, users) = &self.preload;
        [0, 1].map(|at| {
            let mut command = TestDriver::Host.command(layout, program);
            command.arg(&users[at]).env("LD_PRELOAD", &self.saver);
            command.env("GPU_VMM_BACKEND", TestDriver::Host.backend());
            let name =
                format!("host memory, integrations/torch_memory_saver/tests/preload.c with {}", RUNTIMES[at]);
            Job { name, command, log: layout.logs().join(format!("adapter-preload-{at}.txt")) }
        })
    }
}

/// Returns the C++ sources in a folder, by name.
fn sources(folder: &Path) -> Answer<Vec<PathBuf>> {
    let reading = || format!("read {}", folder.display());
    let entries = fs::read_dir(folder).doing(reading)?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.doing(reading)?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "cpp"));
    paths.sort();
    Ok(paths)
}
