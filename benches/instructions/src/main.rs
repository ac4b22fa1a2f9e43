//! Counts the instructions of the library's own part of a call, and compares them with those in `baseline.toml`. The numbers
//! hardly differ from run to run, so that a slow-down is visible even on a busy machine.
//!
//! ```sh
//! cargo run --release --package gpu-vmm-instructions               # compares all; fails if an operation takes more
//! cargo run --release --package gpu-vmm-instructions -- region     # those with `region` in their names
//! cargo run --release --package gpu-vmm-instructions -- accept     # writes a new baseline, to be committed
//! ```
//!
//! On Linux with `valgrind`. Each scenario is a process of its own under Callgrind. The program starts itself with `run
//! NAME`, which prepares and repeats the operation to warm up. Then it repeats the operation as often in the function
//! [`counted_from_here`], the only one in which Callgrind counts. The number is the count of one operation: all instructions
//! that it executes in the process, and a few for the loop, which the scenario `nothing` measures. **The kernel's part is not
//! counted**, nor is waiting, nor are cache misses: a system call is one instruction. Memory is the host's.
//!
//! More than 2 % above the baseline fails. More than 5 % below fails as well and requires a lower baseline, since the next
//! slow-down would hide in the difference. `accept` refuses a count that differs by more than one in a thousand when it is
//! repeated.
//!
//! # Dependencies of the numbers
//!
//! | dependency | measure |
//! |---|---|
//! | the compiler, the C library and the architecture | they are in the baseline; if they differ, the comparison reports it and is skipped |
//! | the profile, features, and versions of dependencies | `release`, those in `Cargo.toml`, and `Cargo.lock` |
//! | the C library's functions for copying and searching on this CPU | `GLIBC_TUNABLES` selects the variants that every x86-64 has |
//! | the number of CPUs, which determines a pool's number of thread caches | the process restricts itself to one |
//! | addresses, which are hashed | Valgrind chooses them, the same each time; the environment, which is on the stack, has little more than `PATH` |
//! | random seeds | the counted code has none: the library hashes with FxHash there |
//!
//! Functions move between codegen units when code is added elsewhere, which changes inlining. So an unrelated change can cost
//! some instructions: look at the ratio, and accept a small difference.
//!
//! Work of the kernel, of other threads and of GPU drivers is not counted: contended locks, blocks that move between threads,
//! growth ahead of need, and the CUDA and HIP backends.

mod baseline;
mod scenarios;

use baseline::{Baseline, Made, Verdict};
use scenarios::{SCENARIOS, Scenario, Work};
use std::collections::BTreeMap;
use std::error::Error;
use std::process::{Command, ExitCode};

/// The command that writes the baseline.
const ACCEPT: &str = "cargo run --release --package gpu-vmm-instructions -- accept";

type Failed = Box<dyn Error>;

/// Selects variants that need no more than SSE2. The C library ignores names that its version does not know.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX2,-AVX,-AVX512F,-AVX512VL,-AVX512BW,-EVEX,-ERMS,-FSRM,-FSRS,\
    -SSSE3,-SSE4_1,-SSE4_2,-BMI1,-BMI2,-LZCNT,-MOVBE,-RTM,-AVX_Fast_Unaligned_Load,-Prefer_No_VZEROUPPER";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["run", name] => run(name).map(|()| true),
        ["accept"] => accept().map(|()| true),
        [] => compare(""),
        [part] => compare(part),
        _ => Err("expects no argument, `accept`, or a part of the names".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts those with `part` in their names. Returns false if a count differs from the baseline.
fn compare(part: &str) -> Result<bool, Failed> {
    let (baseline, made) = (Baseline::read()?, Made::here()?);
    if baseline.made != made {
        println!("SKIPPED: the baseline is of {}, and here is {made}", baseline.made);
        println!("`{ACCEPT}` writes one for this machine; review its changes");
        return Ok(true);
    }
    println!("{:<56} {:>10} {:>10} {:>7}", "instructions of", "baseline", "now", "ratio");
    let mut good = true;
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(part)) {
        let mut now = count(scenario)?;
        let Some(old) = baseline.instructions.get(scenario.name).copied() else {
            println!("{:<56} {:>10} {now:>10.1} {:>7} FAILED: not in the baseline", scenario.name, "-", "-");
            good = false;
            continue;
        };
        if Verdict::of(old, now) != Verdict::Same {
            // No known cause makes a second count differ, but a false alarm costs more than another count.
            now = now.min(count(scenario)?);
        }
        let verdict = Verdict::of(old, now);
        println!("{:<56} {old:>10.1} {now:>10.1} {:>7.3} {verdict}", scenario.name, now / old);
        good &= verdict == Verdict::Same;
    }
    let is_known = |name: &&String| SCENARIOS.iter().any(|scenario| scenario.name == name.as_str());
    for gone in baseline.instructions.keys().filter(|name| !is_known(name)) {
        println!("{gone:<56} FAILED: in the baseline, but there is no such scenario");
        good = false;
    }
    if !good {
        println!("if the change is intended: `{ACCEPT}`, and commit the baseline");
    }
    Ok(good)
}

/// Writes a new baseline.
fn accept() -> Result<(), Failed> {
    let made = Made::here()?;
    let mut instructions = BTreeMap::new();
    for scenario in SCENARIOS {
        let (one, two) = (count(scenario)?, count(scenario)?);
        println!("{:<56} {one:>10.1} {two:>10.1}", scenario.name);
        if (one - two).abs() > one / 1000.0 {
            return Err(format!("{} differs from run to run: {one} and {two}", scenario.name).into());
        }
        instructions.insert(scenario.name.to_owned(), one.min(two));
    }
    Baseline { made, instructions }.write()
}

/// Returns the instructions of one operation.
fn count(scenario: &Scenario) -> Result<f64, Failed> {
    let program = std::env::current_exe()?;
    let out = program.with_extension(format!("{}.callgrind", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--quiet", "--tool=callgrind", "--toggle-collect=*counted_from_here*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .args(["run", scenario.name])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GLIBC_TUNABLES", TUNABLES);
    let ended = valgrind.output().map_err(|error| format!("valgrind cannot be started: {error}"))?;
    let text = std::fs::read_to_string(&out);
    // If valgrind failed early, there is no file.
    let _ = std::fs::remove_file(&out);
    if !ended.status.success() {
        let [stdout, stderr] = [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        return Err(format!("{}: {}: {stdout}{stderr}", scenario.name, ended.status).into());
    }
    let text = text?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total: u64 = total.ok_or("callgrind's output has no `totals:`")?.trim().parse()?;
    if total == 0 {
        return Err("callgrind counted nothing: it did not find the function".into());
    }
    Ok(total as f64 / scenario.operations as f64)
}

/// Runs a scenario, in a process of its own.
fn run(name: &str) -> Result<(), Failed> {
    let scenario =
        SCENARIOS.iter().find(|scenario| scenario.name == name).ok_or("there is no such scenario")?;
    on_one_cpu()?;
    let mut work = (scenario.prepare)()?;
    for _ in 0..scenario.operations {
        work()?;
    }
    counted_from_here(&mut work, scenario.operations)
}

/// Callgrind identifies it by its name. No other function's name may contain it, including closures.
#[inline(never)]
fn counted_from_here(work: &mut Work, operations: u64) -> Result<(), Failed> {
    for _ in 0..operations {
        work()?;
    }
    Ok(())
}

/// Restricts the process to the first CPU that it may use.
fn on_one_cpu() -> Result<(), Failed> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).ok_or("there is no CPU")?;
    let mut one = CpuSet::new();
    one.set(first);
    Ok(sched_setaffinity(None, &one)?)
}
