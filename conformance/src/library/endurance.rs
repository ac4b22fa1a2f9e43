//! Programs that allocate for long, on streams with work, and the bound of what a pool uses meanwhile.
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_VMM_ENDURANCE_SECONDS` | 2 | the time of the group; each case takes a part |
//! | `GPU_VMM_ENDURANCE_SEED` | 1 | the seed of the first random program |

use crate::case::cases;
use crate::library::flights::own;
use crate::library::tools::setting;
use crate::subject::{Subject, note};
use gpu_vmm_core::{Address, Bytes, Stream};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::endurance::{FAULTS, Limit, Program, Violation, Work, memory_of, run};
use gpu_vmm_testkit::{TestKit, WorkStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

cases! { "endurance":
    /// Through random programs, with streams that work, threads, tags and suspends, a pool uses no more than the bound
    /// that follows from the largest load so far.
    @timed random_programs,
    /// Programs for which an earlier pool used more with time, such as double buffers on two and on four streams, stay within the
    /// same bound.
    @timed programs_that_failed,
}

/// The most streams of a program.
const STREAMS: usize = 8;

/// The most bytes of a block that a unit of work writes.
const WRITTEN: u64 = 64 << 10;

/// Streams of the chosen device, with real work. They do not capture: meanwhile most drivers answer no question about other streams, and
/// calls of other threads invalidate the capture. The random programs of gpu-vmm-pool's tests capture.
struct DeviceWork<'a, B: TestKit> {
    subject: &'a Subject<B>,
    streams: Vec<Stream<'static>>,
    counts: Vec<Counts>,
}

/// The units of work of a stream: those that were queued, and those that a wait has shown to be done.
#[derive(Debug, Default)]
struct Counts {
    queued: AtomicU64,
    done: AtomicU64,
}

impl<'a, B: TestKit> DeviceWork<'a, B> {
    /// Uses the default stream and these.
    #[allow(unsafe_code)]
    fn new(subject: &'a Subject<B>, owns: &[Box<dyn WorkStream>]) -> Self {
        // SAFETY: the caller drops pools before the streams.
        let named = owns.iter().map(|own| unsafe { Stream::from_raw(own.stream().as_raw()) });
        let streams: Vec<_> = [Stream::DEFAULT].into_iter().chain(named).collect();
        let counts = streams.iter().map(|_| Counts::default()).collect();
        Self { subject, streams, counts }
    }
}

impl<B: TestKit> Work for DeviceWork<'_, B> {
    fn stream(&self, index: usize) -> Stream<'static> {
        self.streams[index]
    }

    #[allow(unsafe_code)]
    fn queue(&self, stream: usize, address: Address, size: Bytes) {
        let Subject { backend, device, .. } = self.subject;
        let length = Bytes(size.0.min(WRITTEN) / 8 * 8);
        if length.is_zero() {
            return;
        }
        // SAFETY: the block is live and mapped, and the pool keeps its memory until the work that was queued before the free is done.
        let queued =
            unsafe { backend.start_pattern_on(*device, self.streams[stream], address, length, 1, 1) };
        let counts = &self.counts[stream];
        if queued.is_ok() {
            counts.queued.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn queued(&self, stream: usize) -> u64 {
        self.counts[stream].queued.load(Ordering::Acquire)
    }

    fn done(&self, stream: usize) -> u64 {
        self.counts[stream].done.load(Ordering::Acquire)
    }

    /// Waits for all work of the stream.
    fn finish(&self, stream: usize, _: u64) {
        let counts = &self.counts[stream];
        let queued = counts.queued.load(Ordering::Acquire);
        if self.subject.backend.synchronize_stream(self.subject.device, self.streams[stream]).is_ok() {
            counts.done.fetch_max(queued, Ordering::AcqRel);
        }
    }

    fn memory(&self) -> u64 {
        memory_of(&self.subject.backend, self.subject.device)
    }
}

/// Returns the time of the group.
pub(crate) fn endurance_time() -> Duration {
    Duration::from_secs(setting("GPU_VMM_ENDURANCE_SECONDS", 2))
}

/// Returns the time of a case, of two in the group.
fn time<B: TestKit>(subject: &Subject<B>) -> Duration {
    if subject.brief { Duration::from_millis(250) } else { endurance_time() / 2 }
}

/// Runs a program on a pool of its own up to a time.
fn run_on_device<B: TestKit>(
    subject: &Subject<B>,
    program: &Program,
    until: Instant,
) -> Result<u64, Violation> {
    let owns: Vec<_> = (1..STREAMS).map(|_| own(subject)).collect();
    let work = DeviceWork::new(subject, &owns);
    let pool = Pool::builder(&subject.backend).device(subject.device).build().unwrap();
    run(program, &pool, &work, Limit::Until(until)).map(|report| report.steps)
}

fn random_programs<B: TestKit>(subject: &Subject<B>) {
    let time = time(subject);
    let (first, end) = (setting("GPU_VMM_ENDURANCE_SEED", 1), Instant::now() + time);
    // A program runs for a while before the next begins, and a long run has more programs, too.
    let each = (time / 16).clamp(Duration::from_millis(100), Duration::from_secs(10));
    let (mut steps, mut seed) = (0, first);
    while Instant::now() < end {
        let program = limited(subject, Program::random(seed));
        match run_on_device(subject, &program, end.min(Instant::now() + each)) {
            Ok(made) => steps += made,
            Err(violation) => panic!("{violation}\n{program:?}"),
        }
        seed += 1;
    }
    note(format!("{steps} steps of the programs of seeds {first} to {}", seed - 1));
}

/// Returns the program with no more memory than the device has.
fn limited<B: TestKit>(subject: &Subject<B>, program: Program) -> Program {
    let most = subject.free_here().0 / 32 / program.threads.max(1) as u64;
    Program { bytes: program.bytes.min(most), ..program }
}

fn programs_that_failed<B: TestKit>(subject: &Subject<B>) {
    let each = time(subject) / FAULTS.len() as u32;
    let mut steps = 0;
    for (name, program) in FAULTS {
        match run_on_device(subject, &limited(subject, program), Instant::now() + each) {
            Ok(made) => steps += made,
            Err(violation) => panic!("{name}: {violation}"),
        }
    }
    note(format!("{steps} steps of {} programs", FAULTS.len()));
}
