//! The arguments, their help, and the checks that need no driver.

use crate::numbers::{negative, some_bytes, some_time};
use crate::steps::Increment;
use crate::version;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use gpu_vmm::{Address, Bytes, Vendor};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) mod serve;

const EXAMPLES: &str = "\
Examples:
  gpu-vmm info                            what this machine supports
  gpu-vmm grow                            grow from 2 MiB to 1 GiB
  gpu-vmm grow --to 64GiB --fixed         fail rather than change the address
  gpu-vmm grow --by 64MiB --reserve 64MiB run out of addresses: extend or remap
  gpu-vmm grow --backend host --json      on host memory, as JSON
  gpu-vmm conformance                     check the driver and gpu-vmm
  gpu-vmm snapshot model.snap             list a snapshot, verify checksums
  gpu-vmm report pool.json --html p.html  draw a pool's memory as a page
  gpu-vmm replay run.trace.gz             replay a trace on a pool
  gpu-vmm serve --budget 40GiB            keep memory that outlives its program
  gpu-vmm bench --filter growth           compare growth with copying
  gpu-vmm check                           all of it in ten minutes, in one file for an issue

Exit status:
  0  success
  1  something failed: the error line on standard error says what
  2  the arguments are invalid
  A reader that closes the pipe is no failure. An interrupt ends the command as it ends any other program, and leaves
  each file complete or unchanged.";

/// Shows what GPU drivers support, tests and measures them, and grows memory in place.
#[derive(Parser, Debug)]
#[command(name = "gpu-vmm", version, long_version = version::LONG, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List backends and devices, what each supports, and why not if it does not
    Info(InfoArguments),
    /// Grow memory in steps, fill and check it, and compare with growth by copying
    #[command(long_about = GROW)]
    Grow(GrowArguments),
    /// Check every rule that gpu-vmm promises and that the driver's documentation states
    #[command(long_about = CONFORMANCE)]
    Conformance(ConformanceArguments),
    /// List the contents of a snapshot and verify its checksums; opens no driver
    #[command(long_about = SNAPSHOT)]
    Snapshot(SnapshotArguments),
    /// Show the memory of a pool: as numbers, or as a page with its addresses and physical memory
    #[command(long_about = REPORT)]
    Report(ReportArguments),
    /// Replay a program's allocations on a pool or the driver: memory held, driver calls, times
    #[command(long_about = REPLAY)]
    Replay(ReplayArguments),
    /// Compare the cost of gpu-vmm with raw driver calls and with solutions without it
    #[command(long_about = BENCH)]
    Bench(BenchArguments),
    /// Keep GPU memory that outlives the programs that use it, and ask such a server
    #[command(long_about = serve::SERVE, args_conflicts_with_subcommands = true)]
    Serve(serve::ServeArguments),
    /// Run info, grow, conformance and a short bench in limited time; write one file for an issue
    #[command(long_about = CHECK)]
    Check(CheckArguments),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(CompletionsArguments),
    /// Print the manual page, or write the pages of all subcommands to a folder
    #[command(hide = true)]
    Man(ManArguments),
}

const CHECK: &str = "\
Run info, grow, conformance and a short bench in limited time, and write one file that holds all that a report about a \
machine needs.

The command first says what it will run and what it will write. Each step is a process of its own: if a driver crashes \
or hangs, the file says so, and the other steps still run. The file is written after each step, so that it is there even \
if the machine goes down. Nothing is sent, and nothing needs to be installed.

The file is JSON: how each step ended, their reports, the versions of the library, the driver, the runtime and the \
kernel, the kernel's messages about the GPU if they can be read, and a summary of ten lines, which is also printed. Host \
name, user name, home and working folders, hardware addresses, serial numbers and UUIDs are removed. `gpu-vmm \
conformance --compare` reads such files as well as reports of the suite.

The exit status is 0 if each step ended well, and 1 if one did not; the file is written in both cases. 2 is for invalid \
arguments.";

#[derive(Args, Debug)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    pub(crate) on: On,
    /// The time that all steps may take together, such as 90s, 10min or 1h; the soak and the endurance have their own
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) time: Duration,
    /// Also run two million operations on a pool, with failures
    #[arg(long)]
    pub(crate) soak: bool,
    /// Also run programs that allocate for this long on a pool, with work on several streams, and compare what the pool uses
    /// with its bound [default without a time: 1min]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1min", value_parser = some_time)]
    pub(crate) endurance: Option<Duration>,
    /// Say what would be done and written, and do nothing
    #[arg(long)]
    pub(crate) plan: bool,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "gpu-vmm-check.json")]
    pub(crate) out: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// Write the page of each subcommand to a file in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
}

const GROW: &str = "\
Grow memory in steps, fill and check it, and compare with growth by copying.

Each step creates physical memory, maps it after the existing memory and sets its access; the time shown is the time \
of these calls. The output says how each step grew: `within` the reserved addresses, `extended` by addresses right \
after them, or `remapped` to a larger range elsewhere, where the same physical memory is mapped and no byte is \
copied. After each step the device fills the new part with a pattern; at the end it checks all parts.

Then the command repeats the same sizes without virtual memory management: allocate, copy, free the old memory. On a \
GPU the times include all work of the driver. On host memory the kernel provides pages when an address is first \
touched; neither side counts that time.

Sizes are bytes, or have one of the units B, KiB, MiB, GiB and TiB, as in 1.5GiB (2M and 2MB mean 2MiB). They are \
rounded up to the device's granularity, which is 2 MiB on most devices.";

const CONFORMANCE: &str = "\
Check every rule that gpu-vmm promises and that the driver's documentation states, and report the results.

The library layer tests gpu-vmm's public API: its cases pass on every backend, or are skipped with a reason if the \
hardware or the version lacks a feature. The driver layer makes raw calls, right and wrong ones: the driver does as \
documented, is more lenient, or deviates. A deviation that gpu-vmm knows is reported with the name of its quirk; any \
other is NEW. Cases that may crash run in processes of their own.

The group `endurance` runs random programs and double buffers on a pool, and compares the memory and addresses that the \
pool uses with its bound. In a run of all cases it takes 2 seconds; `--filter endurance` runs it alone, for a minute or \
as long as `--endurance` says.

The exit status is 0 if no case failed and 1 if one did; 2 for invalid arguments. A deviation, also a new one, is the \
driver's behaviour and not a failure of gpu-vmm: the summary counts it, and the status stays 0.

The JSON report is one object with `environment`, `summary` and `cases`; with `--backend all` it is an array of such \
objects, one per backend. It contains no user or host name, and no path but that of the driver's library, so it can \
be attached to an issue.";

const SNAPSHOT: &str = "\
List the contents of a snapshot and verify its checksums. No driver is opened.

The output lists the regions with their tags, addresses and sizes, their mapped ranges and the access to them. It \
counts the blocks that are in the file, those that are left out because they are zeros, and those that are in an \
earlier snapshot. The earlier snapshot must be in the same folder; its blocks are checked as well.

The exit status is 0 if all contents match their checksums, and 1 if they do not or the file is not a snapshot.";

const REPLAY: &str = "\
Replay a program's recorded allocations on a gpu-vmm pool or directly on the driver, and report the memory held, the \
number of driver calls, and the time. The memory itself is not used.

A trace is text, optionally compressed by gzip, with one event per line: `a ID BYTES STREAM` allocates, `f ID` frees, \
and `r ID` means that the block may be reused, because the streams that used it are done. Each allocation has its own \
ID, 0 is the default stream, and the other numbers become streams of the device. Lines that begin with `#` are \
comments. If the `r` of a block does not directly follow its `f`, the block is freed at `f` with a fence that is done \
at `r`; without an `r`, the fence is never done. If the trace has no `r` at all, every block is reusable at once.

A trace is also a memory snapshot of PyTorch (the pickle of torch.cuda.memory._dump_snapshot, after \
torch.cuda.memory._record_memory_history), or a log of RMM's logging_resource_adaptor. A pickle is read as data: nothing \
in it is executed, and a pickle that refers to code is an error. Blocks that existed before the first recorded event are \
allocated first. For PyTorch the pool has pages of 16 MiB, as gpu_vmm.torch has; a freed block of a private pool, such as a \
CUDA graph's, serves that pool alone.

`pool` is a gpu-vmm pool. `driver` calls cuMemAlloc and cuMemFree, hipMalloc and hipFree, or mmap and munmap, for \
every allocation; it frees at `f`, whatever `r` says, because these calls wait for the device themselves.

Requested memory is that of blocks between their `a` and `f`. Held memory is the memory taken from the driver: for a \
pool by its own statistics; for the driver's allocations by the decrease of the device's free memory, which includes other \
programs on the device.

The trace is read before anything is timed, and replayed several times (`--rounds`) on the same pool: the first round \
is cold, the last one is warm. Single calls are not timed in these rounds. One more round times each call, minus the cost of \
reading the clock, which is reported as well. Memory that a round has not freed is freed outside of the measured \
time.

With `--threads` each thread replays the whole trace on the one pool, so that N threads request N times the memory. \
How much of it is requested at one time depends on the progress of each thread, and is counted to 1 part in 2000.

The exit status is 1 if an allocation fails, or if the device has less memory than the trace requests.";

#[derive(Args, Debug)]
pub(crate) struct ReplayArguments {
    /// The trace, optionally compressed by gzip; `-` is standard input
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// The device of the recorded program, if a memory snapshot has entries of several
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) recorded_device: Option<u32>,
    #[command(flatten)]
    pub(crate) on: On,
    /// The allocator to test
    #[arg(long, value_enum, default_value_t)]
    pub(crate) allocator: AllocatorChoice,
    /// The size of the pool's pages, a power of two [default: the pool's own, 2MiB or 8MiB; 16MiB for PyTorch]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) page: Option<Bytes>,
    /// The number of threads, each of which replays the whole trace
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: u32,
    /// The number of rounds that are timed as a whole; one more round times each call
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000), allow_negative_numbers = true)]
    pub(crate) rounds: u32,
    /// The memory size of the host device; it may exceed the machine's memory, because none of it is used
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) host_memory: Option<Bytes>,
    /// Begin even if the device has less memory than the trace requests
    #[arg(long)]
    pub(crate) force: bool,
    /// Write the pool's snapshot at the peak of requested memory, and its memory over the whole trace, to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const BENCH: &str = "\
Compare the cost of gpu-vmm with raw driver calls and with solutions without it, on this machine.

Each figure is a ratio: gpu-vmm's figure divided by that of a baseline that does the same work. Both are sampled \
alternately in one run, so that changes on the machine affect both. The ratio is that of the medians, with the \
interquartile range of the samples' ratios. On GPUs some ratios have a target, which was set for an NVIDIA H200: the report lists \
missed targets.

Without --filter all pairs are measured, which takes some minutes and most of the device's memory; pairs that need \
more memory than is free are skipped with a message. Nothing else should run on the device meanwhile. On host memory \
the baselines are the backend's own operations, and malloc.

With --torch the pool is also compared with PyTorch's caching allocator, called through its C interface: the folder is \
that of its libraries, `python3 -c 'import torch; print(torch.__path__[0] + \"/lib\")'`.

The exit status is 0, even if targets are missed, and 1 if something failed.";

#[derive(Args, Debug)]
pub(crate) struct BenchArguments {
    #[command(flatten)]
    pub(crate) on: On,
    /// Only pairs whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Print the names of the pairs and measure nothing; opens no driver
    #[arg(long, conflicts_with_all = ["backend", "device", "samples", "torch", "json", "markdown", "out", "plot", "show"])]
    pub(crate) list: bool,
    /// The number of samples of each side [default: depends on the pair]
    #[arg(long, alias = "turns", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), allow_negative_numbers = true)]
    pub(crate) samples: Option<u32>,
    /// The folder of PyTorch's libraries, to compare the pool with PyTorch's allocator
    #[arg(long, value_name = "FOLDER")]
    pub(crate) torch: Option<PathBuf>,
    /// Also write the JSON object to a file, and update it after each pair
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Show a report that --out or --json wrote, and measure nothing; with --markdown, several of them side by side
    #[arg(long, value_name = "FILE", conflicts_with_all = ["backend", "device", "filter", "samples", "torch", "out"])]
    pub(crate) show: Vec<PathBuf>,
    /// Draw the time of growth against its size, as an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print Markdown tables
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// The allocator that serves a trace.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum AllocatorChoice {
    /// A gpu-vmm pool
    #[default]
    Pool,
    /// The driver, once per allocation
    Driver,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotArguments {
    /// The snapshot
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const REPORT: &str = "\
Show the memory of a pool: as numbers, or as a page with its addresses and physical memory. No driver is opened.

FILE is a pool's snapshot as JSON. With --html the command draws it: for each tag its blocks, the pages that hold them \
and the physical memory behind each page, all physical memory with its users, how live, pending and held memory \
changed over time, small blocks by size, and the largest blocks. The page is one file that needs no network; zoom and pan it \
with the mouse or the keyboard.

The exit status is 0, and 1 if FILE is not a pool snapshot or OUT cannot be written; then OUT is unchanged.";

#[derive(Args, Debug)]
pub(crate) struct ReportArguments {
    /// A pool's snapshot, as JSON
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Draw it as an HTML page; `-` is standard output
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
    /// Write its history as a trace for Perfetto (ui.perfetto.dev); `-` is standard output
    #[arg(long, value_name = "OUT", conflicts_with = "html")]
    pub(crate) perfetto: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct InfoArguments {
    /// The backend; `any` is every one
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: BackendChoice,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GrowArguments {
    #[command(flatten)]
    pub(crate) on: On,
    /// The size of the first step
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) from: Bytes,
    /// The size of the last step
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) to: Bytes,
    /// The size of each step: `double` the existing memory, or a size to add
    #[arg(long, value_name = "double|SIZE", default_value = "double", allow_hyphen_values = true)]
    pub(crate) by: Increment,
    /// Fail instead of moving to another address
    #[arg(long)]
    pub(crate) fixed: bool,
    /// The size of the first reservation [default: the device's memory]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) reserve: Option<Bytes>,
    /// The size of the reservation to try first after a full one; else just what is needed [default: the size reserved so far]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) extend_by: Option<Bytes>,
    /// The first address, such as 0x100000000000; fail if it is taken [default: the driver's choice]
    #[arg(long, value_name = "ADDRESS", value_parser = address, allow_hyphen_values = true)]
    pub(crate) at: Option<Address>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ConformanceArguments {
    /// The backend; `any` is the one that GPU_VMM_BACKEND names, else a GPU's, else host memory; `all` is every
    /// available one
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: TargetChoice,
    /// The device's ordinal in its backend [default: the first usable one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..), allow_negative_numbers = true)]
    pub(crate) device: Option<u32>,
    /// Only cases whose name contains this text; names begin with the layer, as in `library::grow::within`
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Run no further case after this time, such as 90s or 10min, and the driver layer first; the report counts the
    /// others as skipped
    #[arg(long, value_name = "TIME", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) time: Option<Duration>,
    /// The time of the group `endurance`, such as 10min [default: 2s, or 1min if --filter names the group]
    #[arg(long, value_name = "TIME", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) endurance: Option<Duration>,
    /// Print the names and rules of the cases and run nothing; opens no driver
    #[arg(long, conflicts_with_all = ["backend", "device", "time", "endurance", "format", "out", "compare", "verbose"])]
    pub(crate) list: bool,
    /// The format of the report; `markdown` is for `--compare`
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Write the report to a file when it is complete; with `json` and `junit` the text is printed as well
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Compare reports that `--format json` or `gpu-vmm check` wrote, side by side, and run nothing
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["backend", "device", "time", "endurance"])]
    pub(crate) compare: Vec<PathBuf>,
    /// Show every case, not only remarkable or differing ones
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// The targets of the conformance suite.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum TargetChoice {
    #[default]
    Any,
    Cuda,
    Hip,
    Host,
    All,
}

impl TargetChoice {
    /// Returns the vendor, if one is named.
    pub(crate) const fn vendor(self) -> Option<Vendor> {
        match self {
            Self::Any | Self::All => None,
            Self::Cuda => Some(Vendor::Cuda),
            Self::Hip => Some(Vendor::Hip),
            Self::Host => Some(Vendor::Host),
        }
    }
}

/// The format of a report.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Format {
    /// Plain text
    #[default]
    Text,
    /// JSON, for programs and for issues
    Json,
    /// JUnit XML, for tools that read test results
    Junit,
    /// Markdown tables
    Markdown,
}

/// The backend and device to work on.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct On {
    /// The backend; `any` is the one that GPU_VMM_BACKEND names, else a GPU's, else host memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: BackendChoice,
    /// The device's ordinal in its backend [default: the first usable one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..), allow_negative_numbers = true)]
    pub(crate) device: Option<u32>,
}

/// The backend to work on.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum BackendChoice {
    #[default]
    Any,
    Cuda,
    Hip,
    Host,
}

impl BackendChoice {
    /// Returns the vendor, if one is named.
    pub(crate) const fn vendor(self) -> Option<Vendor> {
        match self {
            Self::Any => None,
            Self::Cuda => Some(Vendor::Cuda),
            Self::Hip => Some(Vendor::Hip),
            Self::Host => Some(Vendor::Host),
        }
    }
}

impl Arguments {
    /// Returns the arguments of this process.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let arguments = Self::try_parse()?;
        let (subcommand, contradiction) = match &arguments.command {
            Command::Grow(options) => ("grow", options.contradiction()),
            Command::Conformance(options) => ("conformance", options.contradiction()),
            Command::Replay(options) => ("replay", options.contradiction()),
            _ => return Ok(arguments),
        };
        match contradiction {
            Some(text) => Err(refusal(subcommand, text)),
            None => Ok(arguments),
        }
    }
}

impl GrowArguments {
    /// Checks that clap cannot express.
    fn contradiction(&self) -> Option<String> {
        let Self { from, to, reserve, extend_by, .. } = self;
        if from > to {
            return Some(format!("--from {from} is more than --to {to}"));
        }
        match (extend_by, reserve) {
            (Some(_), None) => Some(
                "--extend-by has no effect: without --reserve the first reservation is large enough for all steps"
                    .to_owned(),
            ),
            (Some(_), Some(size)) if size >= to => {
                Some(format!("--extend-by has no effect: --reserve {size} is large enough for --to {to}"))
            }
            _ => None,
        }
    }
}

impl ReplayArguments {
    /// Checks that clap cannot express.
    fn contradiction(&self) -> Option<String> {
        if self.host_memory.is_some() && self.on.backend != BackendChoice::Host {
            return Some("--host-memory is for --backend host".to_owned());
        }
        if self.allocator == AllocatorChoice::Pool {
            return None;
        }
        let pools = [
            (self.snapshot.is_some(), "--snapshot", "the driver has no snapshot of its allocations"),
            (self.page.is_some(), "--page", "the driver chooses its own"),
        ];
        let given = pools.into_iter().find(|(is_given, ..)| *is_given);
        given.map(|(_, option, why)| format!("{option} is for --allocator pool: {why}"))
    }
}

impl ConformanceArguments {
    /// Checks that clap cannot express.
    fn contradiction(&self) -> Option<String> {
        match (self.compare.is_empty(), self.format) {
            (true, Format::Markdown) => Some("--format markdown is for --compare".to_owned()),
            (false, Format::Json | Format::Junit) => {
                Some("--compare reads JSON and writes text or markdown".to_owned())
            }
            (true, Format::Json | Format::Junit) if self.verbose && self.out.is_none() => {
                Some("--verbose has no effect: it is for the text, which --format json and junit print only with --out".to_owned())
            }
            _ => None,
        }
    }
}

/// Returns an error of a subcommand's arguments in clap's format.
pub(crate) fn refusal(subcommand: &str, text: String) -> clap::Error {
    let mut command = Arguments::command();
    command.build();
    match command.find_subcommand_mut(subcommand) {
        Some(found) => found.error(ErrorKind::ValueValidation, text),
        None => command.error(ErrorKind::ValueValidation, text),
    }
}

fn address(text: &str) -> Result<Address, String> {
    negative(text, "an address is a number below 2^64, as in 0x100000000000")?;
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map(Address).map_err(|_| "an address is a number below 2^64, as in 0x100000000000".to_owned())
}

#[cfg(test)]
mod tests;
