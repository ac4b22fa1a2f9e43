//! The runs of each condition, and the reasons for cells without one.

/// A run of the command.
pub(super) struct Row {
    pub(super) condition: &'static str,
    pub(super) way: Way,
    /// The arguments, separated by spaces. `\xff` stands for that byte, which is not UTF-8.
    pub(super) arguments: &'static str,
}

/// How the command is run.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Plain,
    /// Standard input is this file.
    From(&'static str),
    /// Standard output is this file.
    To(&'static str),
    /// Standard output is appended to this file.
    Onto(&'static str),
    /// Standard output is a pipe without a reader.
    Closed,
    /// The folder `disk` is on a disk that is full.
    FullDisk,
    /// The folder `disk` is on a disk that is read-only.
    ReadOnly,
    /// SIGINT while it waits in a write to standard output, a full pipe.
    InterruptedOutput,
    /// SIGINT while it works, after its first line.
    InterruptedWork,
    /// SIGINT while it reads from the named pipe `pipe`.
    InterruptedInput,
    /// On a terminal of this many columns.
    Columns(u16),
    /// With 2 GiB of address space, so that endless reading ends.
    Little,
}

/// Why a cell has no run.
pub(super) struct Reason {
    pub(super) condition: &'static str,
    pub(super) subcommands: &'static [&'static str],
    pub(super) why: &'static str,
}

impl Row {
    pub(super) fn subcommand(&self) -> &'static str {
        self.arguments.split(' ').next().unwrap_or_default()
    }

    /// Formats the run as a shell command, if possible.
    pub(super) fn shown(&self) -> String {
        let arguments = self.arguments;
        match self.way {
            Way::Plain | Way::FullDisk | Way::ReadOnly => arguments.to_owned(),
            Way::From(file) => format!("{arguments} < {file}"),
            Way::To(file) => format!("{arguments} > {file}"),
            Way::Onto(file) => format!("{arguments} >> {file}"),
            Way::Closed => format!("{arguments} | true"),
            Way::InterruptedOutput => format!("{arguments}  # ^C while it writes to a pipe"),
            Way::InterruptedWork => format!("{arguments}  # ^C while it works"),
            Way::InterruptedInput => format!("{arguments}  # ^C while it reads"),
            Way::Columns(columns) => format!("{arguments}  # on {columns} columns"),
            Way::Little => format!("ulimit -v 2097152; {arguments}"),
        }
    }
}

const fn row(condition: &'static str, way: Way, arguments: &'static str) -> Row {
    Row { condition, way, arguments }
}

const MISSING: &str = "missing file";
const FOLDER: &str = "directory";
const SAME: &str = "output equals input";
const FULL: &str = "full disk";
const READ_ONLY: &str = "read-only disk";
const CLOSED: &str = "closed pipe";
const INTERRUPT: &str = "interrupt";
const NARROW: &str = "narrow terminal";
const SIZES: &str = "huge and negative sizes";
const NAMES: &str = "names that are not UTF-8";

use Way::{
    Closed, Columns, From, FullDisk, InterruptedInput, InterruptedOutput, InterruptedWork, Little, Onto,
    Plain, ReadOnly, To,
};

/// The rows in the order of the table. `files` has the files.
pub(super) const ROWS: &[Row] = &[
    row(MISSING, Plain, "conformance --compare none report.json"),
    row(MISSING, Plain, "conformance --compare report.json report.json --out none/out"),
    row(MISSING, Plain, "conformance --backend host --filter library::unmap:: --out none/out"),
    row(MISSING, Plain, "conformance --backend host --filter library::unmap:: --format json --out none/out"),
    row(MISSING, Plain, "snapshot none"),
    row(MISSING, Plain, "report none"),
    row(MISSING, Plain, "report none --html out"),
    row(MISSING, Plain, "report pool.json --html none/out"),
    row(MISSING, Plain, "report pool.json --html dangling"),
    row(MISSING, Plain, "replay --backend host none"),
    row(MISSING, Plain, "replay --backend host run.trace --snapshot none/out"),
    row(MISSING, Plain, "bench --show none"),
    row(MISSING, Plain, "bench --show bench.json --plot none/out"),
    row(MISSING, Plain, "bench --backend host --out none/out"),
    row(MISSING, Plain, "bench --backend host --plot none/out"),
    row(MISSING, Plain, "check --backend host --out none/out"),
    row(MISSING, Plain, "serve --backend host --socket none/socket"),
    row(MISSING, Plain, "serve --backend host --socket socket --store none"),
    row(MISSING, Plain, "serve status --socket none"),
    row(FOLDER, Plain, "conformance --compare folder report.json"),
    row(FOLDER, Plain, "conformance --compare report.json report.json --out folder"),
    row(FOLDER, Plain, "conformance --backend host --filter library::unmap:: --format json --out folder"),
    row(FOLDER, Plain, "snapshot folder"),
    row(FOLDER, Plain, "report folder"),
    row(FOLDER, Plain, "report pool.json --html folder"),
    row(FOLDER, Plain, "report pool.json --html pool.json/out"),
    row(FOLDER, Plain, "replay --backend host folder"),
    row(FOLDER, Plain, "replay --backend host run.trace --snapshot folder"),
    row(FOLDER, Plain, "bench --show folder"),
    row(FOLDER, Plain, "bench --show bench.json --plot folder"),
    row(FOLDER, Plain, "bench --backend host --out folder"),
    row(FOLDER, Plain, "bench --backend host --plot folder"),
    row(FOLDER, Plain, "check --backend host --out folder"),
    row(FOLDER, Plain, "serve --backend host --socket folder"),
    row(FOLDER, Plain, "serve --backend host --socket socket --store pool.json"),
    row(FOLDER, Plain, "serve status --socket folder"),
    row(SAME, Plain, "conformance --compare report.json report.json --out report.json"),
    row(SAME, Plain, "conformance --compare report.json report.json --out report.link"),
    row(SAME, Plain, "conformance --compare report.json report.json --out report.hard"),
    row(SAME, Plain, "report pool.json --html pool.json"),
    row(SAME, Plain, "report pool.json --html folder/../pool.json"),
    row(SAME, Plain, "report pool.json --html pool.link"),
    row(SAME, Plain, "report pool.json --html pool.hard"),
    row(SAME, Plain, "report pool.link --html pool.hard"),
    row(SAME, Onto("pool.json"), "report pool.json --html -"),
    row(SAME, Onto("pool.json"), "report pool.json --html /dev/stdout"),
    row(SAME, To("out"), "report pool.json --html /dev/stdout"),
    row(SAME, Plain, "replay --backend host run.trace --snapshot run.trace"),
    row(SAME, Plain, "replay --backend host run.trace --snapshot run.link"),
    row(SAME, Plain, "replay --backend host run.trace --snapshot run.hard"),
    row(SAME, From("run.trace"), "replay --backend host - --snapshot run.trace"),
    row(SAME, Plain, "bench --show bench.json --plot bench.json"),
    row(SAME, Plain, "bench --show bench.json --plot bench.link"),
    row(SAME, Plain, "bench --backend host --out out --plot ./out"),
    row(SAME, Plain, "bench --backend host --out new --plot folder/../new"),
    row(FULL, To("/dev/full"), "--help"),
    row(FULL, To("/dev/full"), "info"),
    row(FULL, To("/dev/full"), "grow --backend host --to 4MiB"),
    row(FULL, To("/dev/full"), "conformance --list"),
    row(FULL, To("/dev/full"), "conformance --compare report.json report.json"),
    row(FULL, Plain, "conformance --compare report.json report.json --out /dev/full"),
    row(FULL, FullDisk, "conformance --compare report.json report.json --out disk/out"),
    row(FULL, FullDisk, "conformance --backend host --filter library::unmap:: --out disk/out"),
    row(FULL, FullDisk, "conformance --backend host --filter library::unmap:: --format json --out disk/out"),
    row(FULL, To("/dev/full"), "snapshot regions.snap"),
    row(FULL, To("/dev/full"), "report pool.json"),
    row(FULL, Plain, "report pool.json --html /dev/full"),
    row(FULL, FullDisk, "report pool.json --html disk/out"),
    row(FULL, FullDisk, "report pool.json --html disk/new"),
    row(FULL, To("/dev/full"), "replay --backend host run.trace"),
    row(FULL, Plain, "replay --backend host run.trace --snapshot /dev/full"),
    row(FULL, FullDisk, "replay --backend host run.trace --snapshot disk/out"),
    row(FULL, To("/dev/full"), "bench --list"),
    row(FULL, FullDisk, "bench --show bench.json --plot disk/out"),
    row(FULL, FullDisk, "bench --backend host --filter calls --samples 1 --out disk/out"),
    row(FULL, FullDisk, "check --backend host --time 1s --out disk/out"),
    row(FULL, To("/dev/full"), "check --backend host --plan"),
    row(READ_ONLY, ReadOnly, "conformance --compare report.json report.json --out disk/out"),
    row(READ_ONLY, ReadOnly, "conformance --backend host --filter library::unmap:: --out disk/new"),
    row(READ_ONLY, ReadOnly, "report pool.json --html disk/out"),
    row(READ_ONLY, ReadOnly, "report pool.json --html disk/new"),
    row(READ_ONLY, ReadOnly, "replay --backend host run.trace --snapshot disk/out"),
    row(READ_ONLY, ReadOnly, "bench --backend host --out disk/out"),
    row(READ_ONLY, ReadOnly, "bench --backend host --plot disk/new"),
    row(READ_ONLY, ReadOnly, "check --backend host --out disk/out"),
    row(CLOSED, Closed, "--help"),
    row(CLOSED, Closed, "info"),
    row(CLOSED, Closed, "info --json"),
    row(CLOSED, Closed, "grow --backend host --to 4MiB"),
    row(CLOSED, Closed, "conformance --list"),
    row(CLOSED, Closed, "conformance --backend host --filter library::unmap::"),
    row(CLOSED, Closed, "conformance --backend host --filter library::unmap:: --format json --out out"),
    row(CLOSED, Closed, "snapshot regions.snap"),
    row(CLOSED, Closed, "report pool.json"),
    row(CLOSED, Closed, "report pool.json --html -"),
    row(CLOSED, Closed, "report pool.json --html /dev/stdout"),
    row(CLOSED, Closed, "replay --backend host run.trace --snapshot out"),
    row(CLOSED, Closed, "bench --show bench.json --plot out"),
    row(CLOSED, Closed, "bench --backend host --filter calls --samples 1 --out out"),
    row(CLOSED, Closed, "check --backend host --time 1s --out out"),
    row(INTERRUPT, InterruptedOutput, "info"),
    row(INTERRUPT, InterruptedOutput, "grow --backend host --to 4MiB"),
    row(INTERRUPT, InterruptedWork, "conformance --backend host --out out --format json"),
    row(INTERRUPT, InterruptedOutput, "conformance --backend host --out out --format json"),
    row(INTERRUPT, InterruptedOutput, "snapshot regions.snap"),
    row(INTERRUPT, InterruptedOutput, "report pool.json"),
    row(INTERRUPT, InterruptedInput, "report pipe --html out"),
    row(INTERRUPT, InterruptedInput, "replay --backend host pipe --snapshot out"),
    row(INTERRUPT, InterruptedWork, "bench --backend host --filter calls --samples 100000 --out out"),
    row(INTERRUPT, InterruptedWork, "check --backend host --out -"),
    row(NARROW, Columns(20), "--help"),
    row(NARROW, Columns(1), "info"),
    row(NARROW, Columns(20), "info"),
    row(NARROW, Columns(40), "info"),
    row(NARROW, Columns(79), "info"),
    row(NARROW, Columns(20), "grow --backend host --to 64MiB"),
    row(NARROW, Columns(20), "conformance --backend host --filter library::unmap::"),
    row(NARROW, Columns(20), "conformance --compare report.json report.json"),
    row(NARROW, Columns(20), "snapshot regions.snap"),
    row(NARROW, Columns(20), "report pool.json"),
    row(NARROW, Columns(20), "replay --backend host run.trace"),
    row(NARROW, Columns(20), "bench --backend host --filter calls --samples 1"),
    row(NARROW, Columns(20), "check --backend host --plan"),
    row(SIZES, Plain, "grow --to -5"),
    row(SIZES, Plain, "grow --from -5GiB"),
    row(SIZES, Plain, "grow --by -1"),
    row(SIZES, Plain, "grow --reserve -1KiB"),
    row(SIZES, Plain, "grow --at -1"),
    row(SIZES, Plain, "grow --device -1"),
    row(SIZES, Plain, "grow --to --json"),
    row(SIZES, Plain, "grow --to 17179869184GiB"),
    row(SIZES, Plain, "grow --backend host --reserve 16777215TiB"),
    row(SIZES, Plain, "grow --backend host --to 4MiB --reserve 4MiB --at 0xffffffffffe00000"),
    row(SIZES, Plain, "grow --backend host --device 4294967295"),
    row(SIZES, Plain, "conformance --device -1"),
    row(SIZES, Plain, "conformance --backend host --device 4294967295 --filter library::unmap::"),
    row(SIZES, Little, "conformance --compare /dev/zero report.json"),
    row(SIZES, Plain, "snapshot /dev/zero"),
    row(SIZES, Little, "report /dev/zero"),
    row(SIZES, Plain, "report huge.json"),
    row(SIZES, Little, "replay --backend host /dev/zero"),
    row(SIZES, Plain, "replay --backend host huge.trace"),
    row(SIZES, Plain, "replay --backend host run.trace --host-memory -1"),
    row(SIZES, Plain, "replay --backend host run.trace --host-memory 16777215TiB"),
    row(SIZES, Plain, "replay --backend host run.trace --threads -1"),
    row(SIZES, Plain, "replay --backend host run.trace --rounds 10001"),
    row(SIZES, Plain, "replay --backend host run.trace --recorded-device -1"),
    row(SIZES, Plain, "replay --backend host run.trace --recorded-device 4294967295"),
    row(SIZES, Little, "bench --show /dev/zero"),
    row(SIZES, Plain, "bench --samples -1"),
    row(SIZES, Plain, "bench --samples 4294967296"),
    row(SIZES, Plain, "serve --budget -1"),
    row(SIZES, Plain, "serve --clients -1"),
    row(SIZES, Plain, "serve --mode 999"),
    row(SIZES, Plain, "serve load run.trace --mode 700"),
    row(SIZES, Plain, "check --time -1s"),
    row(SIZES, Plain, "check --time 99999999999999999999s"),
    row(SIZES, Plain, "check --device -1"),
    row(NAMES, Plain, "info \\xff"),
    row(NAMES, Plain, "grow --to \\xff"),
    row(NAMES, Plain, "conformance --compare report.json \\xff.json"),
    row(NAMES, Plain, "conformance --compare report.json report.json --out \\xff.new"),
    row(NAMES, Plain, "snapshot \\xff.json"),
    row(NAMES, Plain, "report \\xff.json"),
    row(NAMES, Plain, "report pool.json --html \\xff.json"),
    row(NAMES, Plain, "report \\xff.json --html \\xff.json"),
    row(NAMES, Plain, "replay --backend host \\xff.json"),
    row(NAMES, Plain, "replay --backend host run.trace --snapshot \\xff.json"),
    row(NAMES, Plain, "bench --show \\xff.json"),
    row(NAMES, Plain, "bench --show bench.json --plot \\xff.new"),
    row(NAMES, Plain, "serve status --socket \\xff"),
    row(NAMES, Plain, "check --backend host --time 1s --out \\xff.new"),
];

const NO_FILES: &str = "it reads and writes no file";
const NO_OUTPUT: &str = "it writes no file";
const NEEDS_SERVER: &str = "it needs a server, as in serve.rs";

pub(super) const REASONS: &[Reason] = &[
    Reason { condition: MISSING, subcommands: &["info", "grow", "--help"], why: NO_FILES },
    Reason { condition: FOLDER, subcommands: &["info", "grow", "--help"], why: NO_FILES },
    Reason { condition: SAME, subcommands: &["info", "grow", "--help"], why: NO_FILES },
    Reason { condition: SAME, subcommands: &["snapshot"], why: NO_OUTPUT },
    Reason { condition: SAME, subcommands: &["check"], why: "it reads no file" },
    Reason { condition: READ_ONLY, subcommands: &["info", "grow", "--help"], why: NO_FILES },
    Reason { condition: READ_ONLY, subcommands: &["snapshot"], why: NO_OUTPUT },
    Reason { condition: SAME, subcommands: &["serve"], why: NEEDS_SERVER },
    Reason { condition: FULL, subcommands: &["serve"], why: NEEDS_SERVER },
    Reason { condition: READ_ONLY, subcommands: &["serve"], why: NEEDS_SERVER },
    Reason { condition: CLOSED, subcommands: &["serve"], why: NEEDS_SERVER },
    Reason { condition: INTERRUPT, subcommands: &["serve"], why: NEEDS_SERVER },
    Reason { condition: NARROW, subcommands: &["serve"], why: NEEDS_SERVER },
    Reason { condition: INTERRUPT, subcommands: &["--help"], why: "it does no work" },
    Reason { condition: SIZES, subcommands: &["info", "--help"], why: "it takes no number" },
    Reason { condition: NAMES, subcommands: &["--help"], why: "it takes no name" },
];
