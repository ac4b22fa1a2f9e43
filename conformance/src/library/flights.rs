//! Work that runs on a device while a case goes on: one pattern after the other is written to a unit of a region, the last
//! one with the seed that is asked for, so that memory which is looked at too early has not that pattern.
#![allow(unsafe_code)] // starts work that goes on behind the caller's back

use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Backend, Bytes, DeviceId, Region, Vendor};
use gpu_vmm_pool::{Pool, PoolStream};
use gpu_vmm_testkit::{TestKit, WorkStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least that work takes, alone on the device: many times what the calls take that are made meanwhile.
const LONG: Duration = Duration::from_millis(60);

/// Starts work on the unit at `offset` that goes on for a while, so many times as long as the least of it.
pub(crate) fn start_longer<B: TestKit>(
    subject: &Subject<B>,
    region: &Region<B>,
    offset: Bytes,
    seed: u64,
    times: u32,
) -> Box<dyn WorkStream> {
    let own = own(subject);
    start_on(subject, &*own, (region, offset), seed, times);
    own
}

/// The same on a stream that has nothing to do yet.
pub(crate) fn start_on<B: TestKit>(
    subject: &Subject<B>,
    own: &dyn WorkStream,
    to: (&Region<B>, Bytes),
    seed: u64,
    times: u32,
) {
    let mut rounds = rounds(subject) * times;
    for _ in 0..TRIES {
        queue(subject, own, to, seed, rounds);
        if !own.is_done().unwrap() {
            return;
        }
        // This thread may have been kept from running meanwhile.
        rounds *= 2;
    }
    panic!("{rounds} rounds are done at once, so that nothing can be seen")
}

/// Starts work on the unit at `offset` that goes on for a while.
pub(crate) fn start<B: TestKit>(
    subject: &Subject<B>,
    region: &Region<B>,
    offset: Bytes,
    seed: u64,
) -> Box<dyn WorkStream> {
    start_longer(subject, region, offset, seed, 1)
}

/// How often what depends on time is tried.
const TRIES: u32 = 4;

/// Looks at calls that must not wait for work: they are made beside work that is so many times as long as the least, and
/// tell whether it was still going on when they returned. Calls that wait do so however long the work is; calls that were
/// slow, on a machine that has other things to do, are not when it is longer.
///
/// AMD's runtime puts streams on few queues of the device, and what two streams have on one queue waits for each other.
/// Streams without work are held meanwhile, one more each time, so that the work gets a queue of its own. Where that does
/// not help, since queues are given to streams when they have work (its variable DEBUG_HIP_DYNAMIC_QUEUES), the case
/// cannot be seen.
pub(crate) fn goes_on<B: TestKit>(subject: &Subject<B>, mut beside: impl FnMut(u32) -> bool) {
    let mut held = Vec::new();
    let lengths = (1..=TRIES).chain(1..=TRIES);
    let went_on = lengths.map(|tried| 1 << tried).any(|times| {
        let went_on = beside(times);
        held.push(own(subject));
        went_on
    });
    // Which streams share one changes from one to the next.
    if !went_on && (0..TRIES).any(|_| share_a_queue(subject)) {
        skip("the runtime has two streams on one queue of the device, whichever they are");
    }
    assert!(went_on, "the work was waited for, however long it took");
}

/// True where what two streams have waits for each other, though nobody says so.
fn share_a_queue<B: TestKit>(subject: &Subject<B>) -> bool {
    let regions = [(); 2].map(|()| one_unit(subject));
    let long = start_longer(subject, &regions[0], Bytes(0), 0, 1 << TRIES);
    let short = start(subject, &regions[1], Bytes(0), 0);
    finish(subject, &*short);
    let shared = long.is_done().unwrap();
    finish(subject, &*long);
    shared
}

/// A region with one unit of the chosen device's memory.
fn one_unit<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    region
}

/// A stream of the chosen device, without work.
pub(crate) fn own<B: TestKit>(subject: &Subject<B>) -> Box<dyn WorkStream> {
    subject.backend.own_stream(subject.device).unwrap()
}

/// Registers a stream with a pool.
pub(crate) fn registered<B: Backend>(pool: &Pool<B>, own: &dyn WorkStream) -> PoolStream<B> {
    // SAFETY: cases drop registrations before their streams.
    unsafe { pool.register_stream(own.stream()) }.unwrap()
}

/// Waits for work in the way that drivers have for it.
pub(crate) fn finish<B: TestKit>(subject: &Subject<B>, flight: &dyn WorkStream) {
    subject.backend.synchronize_stream(subject.device, flight.stream()).unwrap();
    assert!(flight.is_done().unwrap(), "its stream was waited for");
}

/// How many rounds over a unit take [`LONG`], measured once for a device. Ends the case where there is no such work.
pub(crate) fn rounds<B: TestKit>(subject: &Subject<B>) -> u32 {
    static MEASURED: Mutex<Vec<((Vendor, DeviceId), u32)>> = Mutex::new(Vec::new());
    /// As many as a stream takes in any case without making the caller wait.
    const MAX: u32 = 1 << 10;
    let key = (subject.backend.vendor(), subject.device);
    // A case that was skipped here leaves nothing half done.
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, rounds)) = measured.iter().find(|(known, _)| *known == key) {
        return *rounds;
    }
    let (region, own) = (one_unit(subject), own(subject));
    let takes = |rounds| {
        let began = Instant::now();
        queue(subject, &*own, (&region, Bytes(0)), 0, rounds);
        finish(subject, &*own);
        began.elapsed()
    };
    // The first may compile the kernel. Of two the quicker one counts, since another process can be in the way of one.
    takes(1);
    let mut rounds = 8;
    while takes(rounds).min(takes(rounds)) < LONG {
        rounds *= 2;
        assert!(rounds < MAX, "{rounds} rounds over {} are not enough for {LONG:?}", subject.unit());
    }
    measured.push((key, rounds));
    rounds
}

/// Queues work of so many rounds on the unit at an offset. Ends the case where there is no such work.
pub(crate) fn queue<B: TestKit>(
    subject: &Subject<B>,
    own: &dyn WorkStream,
    (region, offset): (&Region<B>, Bytes),
    seed: u64,
    rounds: u32,
) {
    let (device, at) = (subject.device, region.address() + offset);
    // SAFETY: cases start work on a unit that is mapped for the device, and take it away by calls that have to wait for
    // the work, or not before it is done; the stream is the device's.
    or_skip(unsafe {
        subject.backend.start_pattern_on(device, own.stream(), at, subject.unit(), seed, rounds)
    })
}
