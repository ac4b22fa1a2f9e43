//! The command line.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Runs all tests: those of the workspace, then CUDA's on a fake NVIDIA driver, and HIP's on AMD's own runtime
/// over a simulated HSA runtime.
///
/// AMD's runtime is unpacked into a private folder; nothing is installed. The packages are those of the folder that
/// HIP_RUNTIME_DEBS names, or else apt fetches them from Debian sid and experimental. So is NVIDIA's own library, from
/// Debian's non-free packages: without a GPU, it shows what gpu-vmm says then.
#[derive(Debug, Parser)]
#[command(name = "cargo test-all", bin_name = "cargo test-all", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Where the runtimes and the packages are kept [default: hip-runtime in Cargo's target folder]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,

    /// Asks apt for newer versions, though some are set up
    #[arg(long, global = true)]
    pub(crate) update: bool,

    /// Makes it a failure where a version of HIP cannot be set up; so it is anyhow with HIP_RUNTIME_DEBS
    #[arg(long, global = true)]
    pub(crate) require_hip: bool,

    /// Makes it a failure where NVIDIA's own library cannot be set up
    #[arg(long, global = true)]
    pub(crate) require_nvidia: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sets AMD's runtime up and runs nothing
    Setup,
    /// Sets it up, and writes reports of the conformance suite from host memory and from each version of HIP
    ///
    /// The files are called host.json and hip-VERSION.json. Where the folder has a README.md with the line that begins
    /// its generated part, that part is made anew from all reports that lie in the folder.
    Report {
        /// Where the reports are written
        #[arg(value_name = "FOLDER")]
        into: PathBuf,
    },
    /// Sets it up and runs HIP's tests alone
    Hip {
        /// For the test programs, behind `--`: a part of the names of the tests to run, or options of theirs
        #[arg(last = true, value_name = "FILTER")]
        filter: Vec<String>,
    },
    /// Runs the tests of CUDA alone: on the fake NVIDIA driver, and on NVIDIA's own library without a GPU
    Cuda {
        /// As for `hip`
        #[arg(last = true, value_name = "FILTER")]
        filter: Vec<String>,
    },
    /// Runs the tests of the plug-ins alone, for C and Python: on host memory, on the fake NVIDIA driver, on HIP
    Plugins,
    /// Runs the pool under every schedule of its parts (loom) and under random ones of the whole (shuttle), what makes no
    /// system calls on Miri, and threads under ThreadSanitizer
    ///
    /// Miri and ThreadSanitizer need a nightly toolchain with miri and rust-src, and are SKIPPED without.
    Schedules {
        /// How long each model and each scenario runs at most
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
        /// A part of the names of the models and scenarios to run, without Miri and ThreadSanitizer [default: all]
        filter: Option<String>,
    },
    /// Plants the faults of tests/mutations in a copy of the library, and sees the conformance suite find each of them
    Mutations {
        /// A part of the names of the faults to plant, or what finds them: host, `hip 7`, loom, shuttle [default: all]
        filter: Option<String>,
    },
}
