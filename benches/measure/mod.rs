//! What the benchmarks have in common: the backend that they run on, and two ways to the same end, timed in turn in one
//! run.

use cudarc::driver::sys;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{Backend, DeviceId, Error};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Runs a benchmark where CUDA can be opened, and says on what; elsewhere it says that it is skipped. What fails ends the
/// program with an error.
pub(crate) fn on_cuda<E: From<Error> + Display>(run: impl FnOnce(&CudaBackend) -> Result<(), E>) {
    let cuda = match CudaBackend::open() {
        Ok(cuda) => cuda,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let ran = cuda.device("measure", DeviceId(0)).map_err(E::from).and_then(|device| {
        println!("{}, driver {}, {}", device.name, cuda.driver().version, cuda.driver().library);
        run(&cuda)
    });
    if let Err(error) = ran {
        println!("failed: {error}");
        std::process::exit(1);
    }
}

/// Lets both work in turn, so that whatever changes on the machine meets both, and gives the times of each.
///
/// Who goes first changes, since what one leaves behind may slow the other one down. A tenth of the turns goes before, to
/// warm up.
pub(crate) fn in_turn<E>(
    turns: usize,
    mut one: impl FnMut() -> Result<(), E>,
    mut other: impl FnMut() -> Result<(), E>,
) -> Result<[Summary; 2], E> {
    in_turn_timed(turns, || timed(&mut one), || timed(&mut other))
}

/// The same where each says how long it took, without what it prepares and what it clears away.
pub(crate) fn in_turn_timed<E>(
    turns: usize,
    mut one: impl FnMut() -> Result<Duration, E>,
    mut other: impl FnMut() -> Result<Duration, E>,
) -> Result<[Summary; 2], E> {
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..turns + turns.div_ceil(10) {
        for who in 0..2 {
            let which = (turn + who) % 2;
            let took = if which == 0 { one() } else { other() }?;
            if turn >= turns.div_ceil(10) {
                times[which].push(took);
            }
        }
    }
    Ok(times.map(Summary::of))
}

/// How long something takes.
pub(crate) fn timed<E>(work: impl FnOnce() -> Result<(), E>) -> Result<Duration, E> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Ends the benchmark where the driver did not do what it was asked.
pub(crate) fn check(result: sys::CUresult) {
    assert!(result == sys::CUresult::CUDA_SUCCESS, "the driver answered {}", result as u32);
}

/// The middle of many times, and where the middle half of them lies.
pub(crate) struct Summary {
    pub(crate) median: Duration,
    pub(crate) low: Duration,
    pub(crate) high: Duration,
}

impl Summary {
    /// Of times that were taken one by one.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |part: usize| times.get(times.len() * part / 4).copied().unwrap_or_default();
        Self { median: at(2), low: at(1), high: at(3) }
    }

    /// The ratio of the two medians, and of the two lower quartiles.
    pub(crate) fn over(&self, other: &Self) -> [f64; 2] {
        let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
        [ratio(self.median, other.median), ratio(self.low, other.low)]
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        f.pad(&format!("{:.1} [{:.1}, {:.1}]", micros(self.median), micros(self.low), micros(self.high)))
    }
}
