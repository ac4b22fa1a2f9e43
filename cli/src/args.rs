//! The arguments, their help, and what can be said against them before any driver is asked.

use crate::numbers::{negative, some_bytes};
use crate::steps::Increment;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use gpu_vmm::{Address, Bytes, Vendor};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gpu-vmm info                            what works on this machine, and why the rest does not
  gpu-vmm grow                            grow from 2 MiB to 1 GiB on the best device there is
  gpu-vmm grow --to 64GiB --fixed         fail rather than move to another address
  gpu-vmm grow --by 64MiB --reserve 64MiB run out of addresses, to see memory extended and remapped
  gpu-vmm grow --backend host --json      on host memory, for a program to read
  gpu-vmm conformance                     what the driver really does, and what gpu-vmm makes of it
  gpu-vmm snapshot model.snap             what is in a snapshot, and whether all of it is as it was written
  gpu-vmm report pool.json --html p.html  what a pool looked like, as a page to look around in
  gpu-vmm replay run.trace.gz             what a recorded program's allocations cost on a pool
  gpu-vmm bench --filter growth           what growing costs, compared with raw calls and with copying";

/// Shows what GPU drivers can do with virtual memory, and grows memory in place.
#[derive(Parser, Debug)]
#[command(name = "gpu-vmm", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Say which backends and devices there are, what each can do, and why not where it cannot
    Info(InfoArguments),
    /// Grow memory in steps, fill and check all of it, and compare with allocating, copying and freeing
    #[command(long_about = GROW)]
    Grow(GrowArguments),
    /// Try every rule that gpu-vmm promises and that the driver's documentation states
    #[command(long_about = CONFORMANCE)]
    Conformance(ConformanceArguments),
    /// Say what is in a snapshot, and hold all of it against its checksums; no driver is opened
    #[command(long_about = SNAPSHOT)]
    Snapshot(SnapshotArguments),
    /// Show what a pool looked like: in numbers, or as a page with its addresses and its physical memory
    #[command(long_about = REPORT)]
    Report(ReportArguments),
    /// Replay a program's allocations on a pool or the driver: memory held, driver calls, times
    #[command(long_about = REPLAY)]
    Replay(ReplayArguments),
    /// Measure what gpu-vmm costs, compared with the driver's own calls and what a program can do without it
    #[command(long_about = BENCH)]
    Bench(BenchArguments),
}

const GROW: &str = "\
Grow memory in steps, fill and check all of it, and compare with allocating, copying and freeing.

Each step creates physical memory, maps it behind what is there and sets its access; that is the time which is \
shown. The step tells how it grew: `within` the addresses that were reserved, `extended` by addresses right behind \
them, or `remapped` to a larger range elsewhere, where the same physical memory is mapped and no byte is copied. The \
device fills the new part with a pattern after each step and checks all parts at the end.

Then the same sizes are gone through without virtual memory management: allocate, copy, free the old. On a GPU the \
times hold all that the driver does. On host memory the kernel gives pages when an address is first touched: for \
memory that is new or remapped that is counted on neither side, for the target of a copy it is part of copying.

Sizes are bytes, or have one of the units B, KiB, MiB, GiB and TiB, as in 1.5GiB (2M and 2MB mean 2MiB). They are \
rounded up to the device's granularity, which is 2 MiB on most.";

const CONFORMANCE: &str = "\
Try every rule that gpu-vmm promises and that the driver's documentation states, and report what was seen.

The library layer goes through gpu-vmm's public API: its cases pass on every backend, or are skipped with the reason \
where hardware or version lacks something. The driver layer makes raw calls, right and wrong ones: the driver does as \
documented, is more lenient, or deviates. A deviation that gpu-vmm knows is told by the name of its quirk; one that it \
does not know is NEW. Cases that may end their process have one of their own.

The exit status is 0 when no case failed and 1 when one did; 2 for arguments that make no sense. A deviation, a new \
one too, is what the driver does and no failure of gpu-vmm: it is counted in the summary, and the status stays 0.

The report as JSON is one object with `environment`, `summary` and `cases`; with `--backend all` it is an array of \
such objects, one for each backend. It names no user and no host, of files only the driver's library, and can be \
attached to an issue.";

const SNAPSHOT: &str = "\
Say what is in a snapshot, and hold all of it against its checksums. No driver is opened.

It tells which regions there are, with their tags, addresses and sizes, what is mapped in them and who has access; \
which blocks of the contents are in the file, which are left out since they are zeros, and which since they are in an \
earlier snapshot. That one has to be beside the file, and its blocks are checked as well.

The exit status is 0 when all of it is as it was written, and 1 when it is not, or when the file is no snapshot.";

const REPLAY: &str = "\
Replay what a program has allocated and freed, on a pool of gpu-vmm or on the driver itself, and say how much memory \
that holds, how often it calls the driver, and how long it takes. The memory is not used for anything.

A trace is text, compressed by gzip or not, with one event in a line: `a ID BYTES STREAM` allocates, `f ID` frees, and \
`r ID` says that the block may be used again, since the streams that used it are done. Each allocation has an ID of its \
own, 0 is the default stream, and the other numbers become streams of the device's. Lines that begin with `#` say \
nothing. A block whose `r` does not follow its `f` at once is freed at `f` with a fence that is done at `r`, or never \
where it has no `r`. In a trace without any `r` all is used again at once.

`pool` is gpu-vmm's. `driver` is cuMemAlloc and cuMemFree, hipMalloc and hipFree, or mmap and munmap, for each single \
allocation; it frees at `f`, whatever `r` says, since these wait for the device by themselves.

Asked for is what lies between `a` and `f`. Held is what was taken from the driver: by the pool's own account; of the \
driver's allocations by how much the device's free memory became less, other programs on the device included.

The trace is read before anything is timed, and replayed so many times in a row (`--rounds`) on the same pool: the \
first round is cold, the last one is warm. No single call is timed in these. One more round takes the time of each \
call, without what asking for the time costs, which is told as well. What a round has not freed in the end is freed \
outside of its time.

With `--threads` each thread replays the whole trace for itself, all on the one pool: that many times the memory is \
asked for. How much of it at one time depends on how far each of them is, and is counted to 1 part in 2000.

The exit status is 1 where an allocation fails, or where the device has not as much memory as is asked for.";

#[derive(Args, Debug)]
pub(crate) struct ReplayArguments {
    /// The trace, compressed by gzip or not; `-` is standard input
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) on: On,
    /// Who serves the allocations
    #[arg(long, value_enum, default_value_t)]
    pub(crate) allocator: AllocatorChoice,
    /// How many threads replay the trace, each all of it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: u32,
    /// How often it is replayed for the time of all of it; once more for the time of each call
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000), allow_negative_numbers = true)]
    pub(crate) rounds: u32,
    /// How much memory the host is to have; it may be more than it has, since none of it is used
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) host_memory: Option<Bytes>,
    /// Begin even where the device has not as much memory as is asked for
    #[arg(long)]
    pub(crate) force: bool,
    /// Write what the pool looks like when most is asked for to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const BENCH: &str = "\
Measure what gpu-vmm costs on this machine, compared with the driver's own calls and what a program can do without it.

Each figure is a ratio: gpu-vmm's over that of a baseline, which does the same. Both are sampled alternately in one run, so \
that whatever changes on the machine meets both. The ratio is the median of the samples' ratios, with their interquartile \
range. On GPUs some ratios have a target, which was set for an NVIDIA H200: the report says which are missed.

Without --filter all pairs are measured, which takes some minutes and most of the device's memory; what needs more than \
there is says so and is left out. Nothing else should run on the device meanwhile. On host memory the driver's side are \
the backend's own operations, and malloc.

With --torch the pool is compared with PyTorch's caching allocator as well, called by its own entry for C: the folder is \
that of its libraries, `python3 -c 'import torch; print(torch.__path__[0] + \"/lib\")'`.

The exit status is 0, missed targets or not, and 1 where something failed.";

#[derive(Args, Debug)]
pub(crate) struct BenchArguments {
    #[command(flatten)]
    pub(crate) on: On,
    /// Only pairs that have this in their name
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Print the names of the pairs and measure nothing; no driver is opened
    #[arg(long, conflicts_with_all = ["backend", "device", "samples", "torch", "json", "markdown", "out", "plot", "show"])]
    pub(crate) list: bool,
    /// The number of samples of each side [default: as each pair needs]
    #[arg(long, alias = "turns", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), allow_negative_numbers = true)]
    pub(crate) samples: Option<u32>,
    /// The folder with PyTorch's libraries, with whose allocator the pool is compared
    #[arg(long, value_name = "FOLDER")]
    pub(crate) torch: Option<PathBuf>,
    /// Write the JSON object to a file as well, anew after each pair
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Show a report that was written with --out or --json, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["backend", "device", "filter", "samples", "torch", "out"])]
    pub(crate) show: Option<PathBuf>,
    /// Draw growth, time against size, to a file as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print tables for a page
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// Who serves the allocations of a trace.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum AllocatorChoice {
    /// A pool of gpu-vmm
    #[default]
    Pool,
    /// The driver, once for each allocation
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
Show what a pool looked like: in numbers, or as a page with its addresses and its physical memory. No driver is opened.

FILE is what a pool's `snapshot` gives, as JSON. With --html it is drawn: for each tag its blocks, the pages that they \
lie in and the physical memory behind each, all physical memory with who uses it, how live, pending and held memory \
came to be, small blocks by size, and the largest blocks. The page is one file that needs no network; it is zoomed and \
moved with the mouse or the keyboard.

The exit status is 0, and 1 where the file is no such thing or OUT cannot be written; then OUT stays as it was.";

#[derive(Args, Debug)]
pub(crate) struct ReportArguments {
    /// What `snapshot` of a pool gave, as JSON
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Draw it as a page; `-` is standard output
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct InfoArguments {
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
    /// How much a step adds: `double` what is there, or a size
    #[arg(long, value_name = "double|SIZE", default_value = "double", allow_hyphen_values = true)]
    pub(crate) by: Increment,
    /// Fail rather than move to another address
    #[arg(long)]
    pub(crate) fixed: bool,
    /// How many addresses to reserve at first [default: as much as the device has memory]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) reserve: Option<Bytes>,
    /// The least size of a reservation that is added behind a full one [default: as much as there is]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) extend_by: Option<Bytes>,
    /// The first address, such as 0x100000000000; fail where it is taken [default: the driver's choice]
    #[arg(long, value_name = "ADDRESS", value_parser = address, allow_hyphen_values = true)]
    pub(crate) at: Option<Address>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ConformanceArguments {
    /// Whose driver; `any` is the one that GPU_VMM_BACKEND names, else a GPU's, else host memory; `all` is every one that can be had
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: TargetChoice,
    /// The device's ordinal in its backend [default: the first that is usable]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..), allow_negative_numbers = true)]
    pub(crate) device: Option<u32>,
    /// Only cases that have this in their name, with the layer in front as in `library::grow::within`
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Print the names and rules of the cases and run nothing; no driver is opened
    #[arg(long, conflicts_with_all = ["backend", "device", "format", "out", "compare", "verbose"])]
    pub(crate) list: bool,
    /// How the report is written; `markdown` is for `--compare`
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Write the report to a file when it is complete; with `json` and `junit` the text is printed as well
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Show reports side by side that were written with `--format json`, and run nothing
    #[arg(long, value_name = "FILE", num_args = 2.., conflicts_with_all = ["backend", "device"])]
    pub(crate) compare: Vec<PathBuf>,
    /// Show every case, not only what is out of the ordinary or differs
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Which targets of the conformance suite are asked for.
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
    /// The vendor, where one is named.
    pub(crate) const fn vendor(self) -> Option<Vendor> {
        match self {
            Self::Any | Self::All => None,
            Self::Cuda => Some(Vendor::Cuda),
            Self::Hip => Some(Vendor::Hip),
            Self::Host => Some(Vendor::Host),
        }
    }
}

/// How a report is written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs, and for issues
    Json,
    /// For programs that read the results of tests
    Junit,
    /// For a page
    Markdown,
}

/// On what the work is done.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct On {
    /// Whose driver; `any` is the one that GPU_VMM_BACKEND names, else a GPU's, else host memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: BackendChoice,
    /// The device's ordinal in its backend [default: the first that is usable]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..), allow_negative_numbers = true)]
    pub(crate) device: Option<u32>,
}

/// Which backend is asked for.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum BackendChoice {
    #[default]
    Any,
    Cuda,
    Hip,
    Host,
}

impl BackendChoice {
    /// The vendor, where one is named.
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
    /// The arguments of this process.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let arguments = Self::try_parse()?;
        let (subcommand, contradiction) = match &arguments.command {
            Command::Grow(asked) => ("grow", asked.contradiction()),
            Command::Conformance(asked) => ("conformance", asked.contradiction()),
            Command::Replay(asked) => ("replay", asked.contradiction()),
            _ => return Ok(arguments),
        };
        match contradiction {
            Some(text) => Err(refusal(subcommand, text)),
            None => Ok(arguments),
        }
    }
}

impl GrowArguments {
    /// What clap does not see.
    fn contradiction(&self) -> Option<String> {
        let Self { from, to, reserve, extend_by, .. } = self;
        if from > to {
            return Some(format!("--from {from} is more than --to {to}"));
        }
        match (extend_by, reserve) {
            (Some(_), None) => Some(
                "--extend-by has no effect: without --reserve the first reservation has room for all"
                    .to_owned(),
            ),
            (Some(_), Some(size)) if size >= to => {
                Some(format!("--extend-by has no effect: --reserve {size} has room for --to {to}"))
            }
            _ => None,
        }
    }
}

impl ReplayArguments {
    /// What clap does not see.
    fn contradiction(&self) -> Option<String> {
        if self.host_memory.is_some() && self.on.backend != BackendChoice::Host {
            return Some("--host-memory is for --backend host".to_owned());
        }
        (self.snapshot.is_some() && self.allocator == AllocatorChoice::Driver).then(|| {
            "--snapshot is for --allocator pool: nobody knows what the driver's looks like".to_owned()
        })
    }
}

impl ConformanceArguments {
    /// What clap does not see.
    fn contradiction(&self) -> Option<String> {
        match (self.compare.is_empty(), self.format) {
            (true, Format::Markdown) => Some("--format markdown is for --compare".to_owned()),
            (false, Format::Json | Format::Junit) => {
                Some("--compare writes text or markdown, and reads JSON".to_owned())
            }
            (true, Format::Json | Format::Junit) if self.verbose && self.out.is_none() => {
                Some("--verbose has no effect: it is for the text, which --format json and junit print with --out only".to_owned())
            }
            _ => None,
        }
    }
}

/// What clap would say of a subcommand's arguments.
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
mod tests {
    use super::*;

    #[test]
    fn clap_finds_nothing_wrong_with_the_arguments() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn addresses_are_read_in_both_notations() {
        assert_eq!(address("0x1000"), Ok(Address(0x1000)));
        assert_eq!(address("4096"), Ok(Address(0x1000)));
        for bad in ["", "0x", "1000h", "-1", "0x10000000000000000"] {
            assert!(address(bad).is_err(), "{bad:?}");
        }
    }
}
