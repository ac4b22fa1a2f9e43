//! A step of growth that was foreseen, beside one of the same size that was not: a region that a thread maps ahead, and a
//! plain one, which grow in turn, with some other work of the caller's between two steps.
//!
//! `cargo bench --bench ahead` on a machine with an NVIDIA GPU; on another it says so. `cargo bench --bench ahead -- host`
//! runs on host memory anywhere. The waits are what a caller does between two steps of growth: where there are none, the
//! driver is slower than the growth, and steps are not foreseen any more. After 1.2 s the thread sleeps.

use gpu_vmm::host::HostConfig;
use gpu_vmm::pool::{Ahead, AheadThread, Foreseen, GrowingRegion};
use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, Done, Region, Result, Vendor};
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);
/// As much as a region grows to before it is emptied.
const SPACE: Bytes = Bytes::gib(2);
/// How many steps are mapped ahead.
const AHEAD: u64 = 8;

fn main() {
    let backend = if std::env::args().any(|argument| argument == "host") {
        HostConfig::new().devices(1).memory(Bytes::gib(8)).open().map(AnyBackend::from)
    } else {
        AnyBackend::open(Vendor::Cuda)
    };
    let backend = match backend {
        Ok(backend) => backend,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    if let Err(error) = run(&backend) {
        println!("failed: {error}");
        std::process::exit(1);
    }
}

fn run(backend: &AnyBackend) -> Result<()> {
    println!("{}, driver {}", backend.device("measure", DEVICE)?.name, backend.driver().version);
    println!("a step of growth on the caller's thread, {AHEAD} steps mapped ahead; µs, median and 99 %");
    println!(
        "{:>7} {:>8} {:>6} {:>9} {:>20} {:>20} {:>8} {:>8}",
        "step", "wait", "steps", "foreseen", "unforeseen", "mapped ahead", "median", "99 %"
    );
    make_context(backend)?;
    for step in [Bytes::mib(2), Bytes::mib(32)] {
        for (wait, steps) in [(0, 1000), (300, 1000), (2_000, 1000), (20_000, 200), (1_200_000, 10)] {
            measure(backend, step, Duration::from_micros(wait), steps)?;
        }
    }
    Ok(())
}

/// The first use of a region's memory makes the device's primary context.
fn make_context(backend: &AnyBackend) -> Result<()> {
    let mut region = Region::builder(backend).reserve(Bytes::mib(2)).build()?;
    region.grow_to(Bytes::mib(2))?;
    region.fill(Bytes::ZERO, Bytes::mib(2), 0)
}

fn measure(backend: &AnyBackend, step: Bytes, wait: Duration, steps: usize) -> Result<()> {
    let space = || Region::builder(backend).reserve(SPACE + SPACE).build();
    let by = Bytes(step.0 * AHEAD);
    let thread = AheadThread::start(by)?;
    let (mut plain, growing) = (space()?, GrowingRegion::new(space()?, Ahead { by, step }, &thread));
    let [mut unforeseen, mut ahead] = [Vec::new(), Vec::new()];
    let mut foreseen = 0;
    begin(&mut plain, &growing, step)?;
    for _ in 0..steps {
        if plain.end() >= SPACE {
            begin(&mut plain, &growing, step)?;
        }
        let target = plain.end() + step;
        let start = Instant::now();
        plain.grow_to(target)?;
        unforeseen.push(start.elapsed());
        work(wait);
        let start = Instant::now();
        let grown = growing.grow_to(target)?;
        ahead.push(start.elapsed());
        foreseen += usize::from(matches!(grown.foreseen, Foreseen::Ready));
        work(wait);
    }
    let [unforeseen, ahead] = [unforeseen, ahead].map(Times::of);
    let show = |times: &Times| format!("{:.2} {:.2}", micros(times.median), micros(times.most));
    let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
    println!(
        "{step:>7} {:>8} {steps:>6} {foreseen:>9} {:>20} {:>20} {:>8.4} {:>8.4}",
        format!("{wait:?}"),
        show(&unforeseen),
        show(&ahead),
        ratio(ahead.median, unforeseen.median),
        ratio(ahead.most, unforeseen.most)
    );
    Ok(())
}

/// Empties both, and lets the thread map ahead of a first step.
fn begin(plain: &mut Region<AnyBackend>, growing: &GrowingRegion<AnyBackend>, step: Bytes) -> Result<()> {
    plain.shrink_to(Bytes::ZERO, Done::when_devices_idle())?;
    growing.shrink_to(Bytes::ZERO, Done::when_devices_idle())?;
    plain.grow_to(step)?;
    growing.grow_to(step)?;
    while growing.mapped_ahead() < growing.ahead().by {
        std::thread::yield_now();
    }
    Ok(())
}

/// What the caller does between two steps: it computes, or waits for a device.
fn work(wait: Duration) {
    if wait > Duration::from_millis(5) {
        std::thread::sleep(wait);
        return;
    }
    let start = Instant::now();
    while start.elapsed() < wait {
        std::hint::spin_loop();
    }
}

/// The middle of many times, and what all but a hundredth of them stay below.
struct Times {
    median: Duration,
    most: Duration,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |hundredths: usize| times.get(times.len() * hundredths / 100).copied().unwrap_or_default();
        Self { median: at(50), most: at(99) }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
