//! The plug-ins, `plugins/c` and `plugins/python`, and the adapters in `integrations`: their programs and tests on host memory, on the
//! fake NVIDIA driver and on each version of HIP. The flagship examples run there as well.
//!
//! Python is `python3`, or the program that GPU_VMM_PYTHON names. Tests with NumPy run if it is installed. The allocator class for
//! PyTorch is compiled against each PyTorch that GPU_VMM_TEST_TORCH names: `TORCH=INCLUDE`, separated by commas, where TORCH is the folder
//! `torch` of an unpacked wheel and INCLUDE a folder with cuda_runtime_api.h. The last one should be the newest.

mod adapters;
mod cpp;

use crate::cargo;
use crate::compiler::compile;
use crate::documented;
use crate::environment::leave_the_machines;
use crate::fake_driver;
use crate::layout::Layout;
use crate::runtime::Runtime;
use crate::suites::{Job, LIMIT, prepare};
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Doing, Trouble};
use crate::{process, queue, shell};
use adapters::Adapters;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that names the Python for the tests.
const PYTHON: &str = "GPU_VMM_PYTHON";

/// The environment variable that names the versions of PyTorch for the allocator class.
const TORCH: &str = "GPU_VMM_TEST_TORCH";

/// The programs of `plugins/c`: the compiler and the source of each.
const PROGRAMS: [(&str, &str); 14] = [
    ("cc", "examples/pool.c"),
    ("cc", "examples/mapping.c"),
    ("cc", "examples/two_processes.c"),
    ("cc", "tests/round.c"),
    ("cc", "tests/rules.c"),
    ("cc", "tests/memory.c"),
    ("cc", "tests/multicast.c"),
    ("cc", "tests/pages.c"),
    ("cc", "tests/exchange.c"),
    ("cc", "tests/observers.c"),
    ("cc", "tests/random.c"),
    ("cc", "tests/forked.c"),
    ("c++", "tests/exit.cpp"),
    ("c++", "tests/torch.cpp"),
];

/// The C program for devices without virtual memory management.
const NO_VMM: &str = "tests/no_vmm.c";

/// The C program with clients of a server.
const CLIENTS: &str = "tests/serve.c";

/// The environment variable with the command of a server, to which programs and tests add the arguments `--socket` and `--budget`.
const SERVER: &str = "GPU_VMM_TEST_SERVER";

/// Examples of the facade. `cargo test --workspace` runs all of them on host memory.
const EXAMPLES: [&str; 3] = ["arena", "kv_cache", "ring"];

/// A driver that tests run on.
enum TestDriver<'a> {
    Host,
    FakeDriver,
    Hip(&'a Runtime),
}

impl TestDriver<'_> {
    fn shown(&self) -> String {
        match self {
            Self::Host => "host memory".to_owned(),
            Self::FakeDriver => "fake CUDA".to_owned(),
            Self::Hip(runtime) => format!("HIP {}", runtime.version),
        }
    }

    fn backend(&self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::FakeDriver => "cuda",
            Self::Hip(_) => "hip",
        }
    }

    /// Returns whether a program can start a server there. Child processes of a program on HIP do not run there.
    const fn has_servers(&self) -> bool {
        !matches!(self, Self::Hip(_))
    }

    /// Returns the shell command of a server there.
    fn server(&self, command: &Path) -> String {
        format!("{} serve --backend {}", shell::word(command), self.backend())
    }

    /// Returns the command for a program there.
    fn command(&self, layout: &Layout, program: &Path) -> Command {
        let mut command = match self {
            Self::Hip(runtime) => runtime.command(&layout.simulator(), program, None),
            Self::FakeDriver => fake_driver::command(&layout.fake_cuda(), program, None),
            Self::Host => Command::new(program),
        };
        match self {
            Self::Hip(_) => prepare(&mut command, 2),
            // A program that breaks the driver's rules fails, such as one that frees memory during a copy.
            Self::FakeDriver => {
                command.env("FAKE_CUDA_GPUS", "2").env("FAKE_CUDA_ON_VIOLATION", "abort");
            }
            Self::Host => leave_the_machines(&mut command),
        }
        command
    }
}

/// Runs all of them; a failure is a row of the table.
pub(crate) fn run(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    let runtimes = layout.chosen(runtimes);
    let library = cargo::c_library()?;
    let folder = cargo::workspace()?.join("plugins");
    check_symbols(&library, &folder.join("c/abi.txt"))?;
    fake_driver::set_up(layout)?;
    if !runtimes.is_empty() {
        cargo::simulator(&layout.simulator())?;
    }
    fs::create_dir_all(layout.logs()).doing(|| layout.logs().display().to_string())?;
    let mut programs = Vec::new();
    for (compiler, source) in PROGRAMS.into_iter().chain([("cc", NO_VMM), ("cc", CLIENTS)]) {
        let program = layout.logs().join(source.replace(['/', '.'], "-"));
        let (include, file) = (folder.join("c/include"), folder.join("c").join(source));
        if compiler == "cc" {
            let object = program.with_extension("o");
            compile(source, "c++", &["-std=c++17", "-x", "c++", "-c"], &include, &object, &[&file])?;
        }
        compile(source, compiler, &[], &include, &program, &[&file, &library])?;
        programs.push((source, program));
    }
    let examples = EXAMPLES.map(|name| cargo::example(name).map(|program| (name, program)));
    let examples = examples.into_iter().collect::<Answer<Vec<_>>>()?;
    let documented = documented::programs(layout, &library)?;
    let server = cargo::command_program()?;
    let python =
        Python { program: python()?, library: library.clone(), package: folder.join("python"), server };
    let adapters = Adapters::build(layout, &library)?;
    let cpp = cpp::Programs::build(layout, &library, summary)?;
    let places =
        [TestDriver::Host, TestDriver::FakeDriver].into_iter().chain(runtimes.iter().map(TestDriver::Hip));
    let mut jobs = Vec::new();
    for (name, program) in &documented {
        let command = TestDriver::Host.command(layout, program);
        jobs.push(Job { name: format!("host memory, {name}"), command, log: program.with_extension("txt") });
    }
    for place in places {
        let stem = place.shown().replace(' ', "-");
        // A program on HIP starts no server: its child processes do not run there.
        let is_run = |source| source != NO_VMM && (source != CLIENTS || place.has_servers());
        for (source, program) in programs.iter().filter(|(source, _)| is_run(*source)) {
            let mut command = place.command(layout, program);
            command.env(SERVER, place.server(&python.server));
            command.arg(place.backend());
            let log = layout.logs().join(format!("{stem}-{}.txt", source.replace(['/', '.'], "-")));
            jobs.push(Job { name: format!("{}, plugins/c/{source}", place.shown()), command, log });
        }
        for (name, program) in &examples {
            let mut command = place.command(layout, program);
            command.env("GPU_VMM_BACKEND", place.backend());
            let log = layout.logs().join(format!("{stem}-{name}.txt"));
            jobs.push(Job { name: format!("{}, examples/{name}", place.shown()), command, log });
        }
        let command = python.tests(layout, &place, &folder.join("python/tests"));
        let log = layout.logs().join(format!("{stem}-python.txt"));
        jobs.push(Job { name: format!("{}, plugins/python", place.shown()), command, log });
        jobs.extend(adapters.jobs(layout, &place, &python));
        jobs.extend(cpp.jobs(layout, &place, &python));
    }
    if let Some((source, program)) = programs.iter().find(|(source, _)| *source == NO_VMM) {
        let mut command = TestDriver::FakeDriver.command(layout, program);
        command.env("FAKE_CUDA_VMM", "0").arg(TestDriver::FakeDriver.backend());
        let log = layout.logs().join("fake-CUDA-no-vmm.txt");
        let name = format!("fake CUDA without virtual memory, plugins/c/{source}");
        jobs.push(Job { name, command, log });
    }
    jobs.extend(adapters.preload(layout));
    let torches = std::env::var(TORCH).unwrap_or_default();
    if torches.is_empty() {
        let reason = Trouble::new(format!("{TORCH} names no PyTorch"));
        summary.add(Row::skipped("PyTorch's allocator class", reason, false));
    }
    let torches: Vec<_> = torches.split(',').filter(|pair| !pair.is_empty()).collect();
    // The last one also with functions that only a later version could have.
    let kinds =
        torches.iter().map(|pair| (pair, None)).chain(torches.last().map(|pair| (pair, Some("future"))));
    for (index, (pair, kind)) in kinds.enumerate() {
        let wrong = || Trouble::new(format!("{TORCH}: {pair:?} is not of the form TORCH=INCLUDE"));
        let (torch, include) = pair.split_once('=').ok_or_else(wrong)?;
        let mut command = Command::new(&python.program);
        command
            .arg(folder.join("python/tests/native/run.py"))
            .arg(&library)
            .args([torch, include])
            .args(kind);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        leave_the_machines(&mut command);
        let log = layout.logs().join(format!("torch-class-{index}.txt"));
        let name = format!("allocator class, {torch}{}", kind.map_or("", |_| " and later"));
        jobs.push(Job { name, command, log });
    }
    queue::each(jobs, one)?.into_iter().for_each(|row| summary.add(row));
    Ok(())
}

/// What Python's tests need.
struct Python {
    program: PathBuf,
    /// The C library.
    library: PathBuf,
    /// The folder of the package.
    package: PathBuf,
    /// The command `gpu-vmm`.
    server: PathBuf,
}

impl Python {
    /// Returns the command for the tests in a folder.
    fn tests(&self, layout: &Layout, place: &TestDriver<'_>, folder: &Path) -> Command {
        let mut command = place.command(layout, &self.program);
        // The command with which tests start another Python.
        command.env("GPU_VMM_TEST_PYTHON", shell::words(&command));
        command.args(["-m", "unittest", "discover", "--start-directory"]).arg(folder);
        command.env("PYTHONPATH", &self.package).env("PYTHONDONTWRITEBYTECODE", "1");
        if place.has_servers() {
            command.env(SERVER, place.server(&self.server));
        }
        command.env("GPU_VMM_C_LIBRARY", &self.library).env("GPU_VMM_TEST_BACKEND", place.backend());
        command
    }
}

/// Compares the functions that the library exports with the list in the repository, by which a change of the ABI is seen in review.
fn check_symbols(library: &Path, list: &Path) -> Answer {
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only"]).arg(library);
    let output = command.output().doing(|| format!("nm, for the symbols of {}", library.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    let exported: BTreeSet<&str> = names.filter_map(|name| name.split('@').next()).collect();
    let listed = fs::read_to_string(list).doing(|| list.display().to_string())?;
    let listed: BTreeSet<&str> = listed.lines().collect();
    let differing: Vec<&&str> = exported.symmetric_difference(&listed).collect();
    if differing.is_empty() {
        return Ok(());
    }
    Err(Trouble::new(format!(
        "{} and the symbols of {} differ in {differing:?}",
        list.display(),
        library.display()
    )))
}

/// Runs one. A C program only passes or fails; Python reports its tests.
fn one(Job { name, mut command, log }: Job) -> Answer<Row> {
    let ended = process::run(&mut command, &log, LIMIT)?;
    let is_good = ended.status.is_some_and(|status| status.success());
    let has_run = ended.counts.is_none_or(|counts| counts.passed > 0);
    let outcome = if is_good && has_run { Outcome::Passed } else { Outcome::Failed };
    eprintln!("{name}: {} in {:.1} s", if is_good { "good" } else { "failed" }, ended.time.as_secs_f64());
    if outcome == Outcome::Failed {
        println!(
            "{}\n{name}: {ended}; that was\n  {command:?}\n",
            fs::read_to_string(&log).unwrap_or_default()
        );
    }
    Ok(Row::of(&name, outcome, ended.time).counting(ended.counts))
}

/// Returns Python's file: a loader does not look in PATH.
fn python() -> Answer<PathBuf> {
    let named = std::env::var_os(PYTHON).filter(|name| !name.is_empty()).unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&named);
    let answer = command.args(["-c", "import sys; print(sys.executable)"]).output();
    let answer = answer.doing(|| format!("{}, to run the tests of plugins/python", named.display()))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim()))
}
