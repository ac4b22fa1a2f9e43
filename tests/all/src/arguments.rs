//! The command line.

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// Runs all tests: the workspace's, CUDA's on a fake NVIDIA driver, and HIP's on AMD's own runtime over a simulated
/// HSA runtime.
///
/// AMD's runtime is unpacked into a private folder; nothing is installed. HIP_RUNTIME_DEBS names a folder of packages;
/// without it, apt fetches them from Debian sid and experimental. NVIDIA's own library comes from Debian's non-free packages:
/// without a GPU, it shows what gpu-vmm reports then.
#[derive(Debug, Parser)]
#[command(name = "cargo test-all", bin_name = "cargo test-all", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// The folder for runtimes and packages [default: hip-runtime in Cargo's target folder]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,

    /// Asks apt for newer versions even if some are set up
    #[arg(long, global = true)]
    pub(crate) update: bool,

    /// Fails if a version of HIP cannot be set up; with HIP_RUNTIME_DEBS this is always so
    #[arg(long, global = true)]
    pub(crate) require_hip: bool,

    /// Also runs what repeats shorter runs on further simulated machines: the suite with one GPU, its fault sweeps on each
    /// version of HIP
    #[arg(long, global = true)]
    pub(crate) long: bool,

    /// Runs the suite and the plug-ins on one version of HIP alone: number N, counted around
    #[arg(long, global = true, value_name = "N")]
    pub(crate) hip_turn: Option<usize>,

    /// Fails if NVIDIA's own library cannot be set up
    #[arg(long, global = true)]
    pub(crate) require_nvidia: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sets up AMD's runtime and the fake NVIDIA driver, runs no test, and prints how to run a program on each
    Setup,
    /// Runs a program on AMD's own HIP runtime without a GPU, and exits with its status
    ///
    /// The runtime's own loader starts the program, over the simulated HSA runtime. It starts no scripts: name the
    /// interpreter. Processes that the program starts do not run on HIP. LD_LIBRARY_PATH is searched after the runtime's
    /// libraries. tests/hsa-sim/README.md lists the settings, HSA_SIM_... . If a signal kills the program, a shell reports
    /// 128 plus the signal's number.
    RunHip {
        /// The version, in full or its first numbers [default: the newest]
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
        /// The program, a path or a name in PATH, followed by its arguments, which are passed on unchanged
        #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
        program: Vec<OsString>,
    },
    /// Runs a program on the fake NVIDIA driver, and exits with its status
    ///
    /// Processes that the program starts run on it, too. LD_LIBRARY_PATH is searched after the driver.
    /// tests/fake-cuda/README.md lists the settings, FAKE_CUDA_... .
    RunCuda {
        /// As for `run-hip`
        #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
        program: Vec<OsString>,
    },
    /// Sets everything up, and writes reports of the conformance suite from host memory and from each version of HIP
    ///
    /// The files are called host.json and hip-VERSION.json. If the folder's README.md has the line that begins its generated
    /// part, all reports in the folder are condensed to one line for each case, files of `gpu-vmm check` too, and that part is
    /// generated again.
    Report {
        /// The folder for the reports
        #[arg(value_name = "FOLDER")]
        into: PathBuf,
    },
    /// Sets HIP up and runs HIP's tests alone
    Hip {
        /// Arguments for the test programs, after `--`: parts of the names of the tests to run, or options
        #[arg(last = true, value_name = "FILTER")]
        filter: Vec<String>,
    },
    /// Runs the tests of CUDA alone: on the fake NVIDIA driver, and on NVIDIA's own library without a GPU
    Cuda {
        /// As for `hip`
        #[arg(last = true, value_name = "FILTER")]
        filter: Vec<String>,
    },
    /// Runs the tests of the plug-ins and adapters alone, for C and Python: on host memory, on the fake NVIDIA driver, on HIP
    Plugins,
    /// Runs the pool under every schedule of its parts (loom) and random schedules of the whole (shuttle), code without
    /// system calls on Miri, and threads under ThreadSanitizer
    ///
    /// Miri and ThreadSanitizer need a nightly toolchain with miri and rust-src; without it they are SKIPPED.
    Schedules {
        /// The seconds that each model and each scenario runs at most
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
        /// A part of the names of the models and scenarios to run, without Miri and ThreadSanitizer [default: all]
        filter: Option<String>,
    },
    /// Checks the packages for crates.io: their manifests, their files and the links of their READMEs
    ///
    /// A release runs it with --build. That needs a network, a nightly toolchain, and some minutes.
    Packages {
        /// Also makes the packages, and builds and uses them: by the stated Rust, with the oldest dependencies that are allowed,
        /// in a new project, and as an installed command
        #[arg(long)]
        build: bool,
        /// Also makes the packages, and a registry of them and of all that they need under target/packages/registry
        #[arg(long)]
        registry: bool,
    },
    /// Prints the newest release of everything that gpu-vmm plugs into, and the newest one that was tested
    ///
    /// docs/guide/support.md has the list. A newer release fails nothing.
    Versions,
    /// Applies the mutations of tests/mutations to a copy of the library, and checks that the tests catch each
    Mutations {
        /// A part of the names of the mutations, or what must catch them: host, `hip 7`, `tests gpu-vmm-pool` [default: all]
        filter: Option<String>,
        /// Runs one part of N equal parts: 1/4 is the first, fifth, ninth ... mutation
        #[arg(long, value_name = "K/N", default_value = "1/1")]
        part: Part,
    },
}

/// One of several equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The part's number, from zero.
    index: usize,
    of: usize,
}

impl Part {
    /// Returns whether the part has the item at a place of the list.
    pub(crate) const fn has(self, place: usize) -> bool {
        place % self.of == self.index
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((part, of)) if (1..=of).contains(&part) => Ok(Self { index: part - 1, of }),
            _ => Err("expected K/N with K from 1 to N, as in 1/4".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn read(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn a_programs_arguments_are_its_own() {
        for (line, wanted, expected) in [
            ("test-all run-hip --version 6 prog", Some("6"), "prog"),
            ("test-all run-hip prog --version 6 --folder x", None, "prog --version 6 --folder x"),
            ("test-all run-hip prog -h -- --help -V", None, "prog -h -- --help -V"),
            ("test-all run-hip --version=7.2.4 -- --odd -x", Some("7.2.4"), "--odd -x"),
            ("test-all --folder f run-hip --update prog --update", None, "prog --update"),
        ] {
            let arguments = read(line).unwrap();
            let Some(Command::RunHip { version, program }) = arguments.command else { panic!("{line}") };
            assert_eq!(
                (version.as_deref(), program.join(OsStr::new(" "))),
                (wanted, expected.into()),
                "{line}"
            );
        }
        let arguments = read("test-all run-cuda prog --version 1 --").unwrap();
        let Some(Command::RunCuda { program }) = arguments.command else { panic!() };
        assert_eq!(program, ["prog", "--version", "1", "--"]);
    }

    #[test]
    fn the_parts_are_the_whole() {
        let part = |text: &str| text.parse::<Part>();
        let parts = [part("1/3").unwrap(), part("2/3").unwrap(), part("3/3").unwrap()];
        for place in 0..7 {
            assert_eq!(parts.iter().filter(|part| part.has(place)).count(), 1, "{place}");
        }
        assert!(parts[1].has(1) && part("1/1").unwrap().has(5));
        for wrong in ["0/3", "4/3", "1/0", "0/0", "1", "a/b", "-1/2", ""] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_options_before_program_are_refused() {
        for line in ["test-all run-hip", "test-all run-cuda", "test-all run-hip --verison 7 prog"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
