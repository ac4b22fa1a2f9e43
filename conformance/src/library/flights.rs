//! Work that runs on a device while a case continues: it writes one pattern after the other to a unit of a region. Only the
//! last pattern has the requested seed, so memory that is read too early does not contain it.
#![allow(unsafe_code)] // starts work that continues after the call has returned

use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Backend, Bytes, DeviceId, Region, Vendor};
use gpu_vmm_pool::{Pool, PoolStream};
use gpu_vmm_testkit::{TestKit, WorkStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time of the work, alone on the device: many times longer than the calls that are made meanwhile.
const LONG: Duration = Duration::from_millis(60);

/// Starts work on the unit at `offset` that takes `times` times the minimum time.
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

/// Starts the work on a stream that has no other work.
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
        // The system may have suspended this thread meanwhile.
        rounds *= 2;
    }
    panic!("{rounds} rounds end at once, which is too short for the case")
}

/// Starts work on the unit at `offset` that takes the minimum time.
pub(crate) fn start<B: TestKit>(
    subject: &Subject<B>,
    region: &Region<B>,
    offset: Bytes,
    seed: u64,
) -> Box<dyn WorkStream> {
    start_longer(subject, region, offset, seed, 1)
}

/// How often a check that depends on time is tried.
const TRIES: u32 = 4;

/// Checks that calls do not wait for work. `beside` makes the calls while work of the given multiple of the minimum time runs,
/// and returns whether the work was still running afterwards. Calls that wait return late however long the work is. Calls that
/// are slow only on a busy machine return before longer work ends.
///
/// AMD's runtime maps streams to few queues of the device, and work of two streams on one queue runs in order. So idle streams
/// are kept, one more with each try, until the work gets a queue of its own. If the runtime assigns queues only when streams
/// have work (its variable DEBUG_HIP_DYNAMIC_QUEUES), this does not help, and the case is skipped.
pub(crate) fn goes_on<B: TestKit>(subject: &Subject<B>, mut beside: impl FnMut(u32) -> bool) {
    let mut held = Vec::new();
    let lengths = (0..3).flat_map(|_| 1..=TRIES);
    let went_on = lengths.map(|tried| 1 << tried).any(|times| {
        let went_on = beside(times);
        held.push(own(subject));
        went_on
    });
    // The streams that share a queue change with each new stream.
    if !went_on && (0..TRIES).any(|_| share_a_queue(subject)) {
        skip("the runtime maps any two streams to one queue of the device");
    }
    assert!(went_on, "the calls waited for the work, however long it took");
}

/// Returns true if work of two streams runs in order although no event requires it.
fn share_a_queue<B: TestKit>(subject: &Subject<B>) -> bool {
    let regions = [(); 2].map(|()| one_unit(subject));
    let long = start_longer(subject, &regions[0], Bytes(0), 0, 1 << TRIES);
    let short = start(subject, &regions[1], Bytes(0), 0);
    finish(subject, &*short);
    let shared = long.is_done().unwrap();
    finish(subject, &*long);
    shared
}

/// Creates a region with one unit of the chosen device's memory.
fn one_unit<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    region
}

/// Creates a stream of the chosen device, without work.
pub(crate) fn own<B: TestKit>(subject: &Subject<B>) -> Box<dyn WorkStream> {
    subject.backend.own_stream(subject.device).unwrap()
}

/// Registers a stream with a pool.
pub(crate) fn registered<B: Backend>(pool: &Pool<B>, own: &dyn WorkStream) -> PoolStream<B> {
    // SAFETY: cases drop registrations before their streams.
    unsafe { pool.register_stream(own.stream()) }.unwrap()
}

/// Waits for work with the driver's call.
pub(crate) fn finish<B: TestKit>(subject: &Subject<B>, flight: &dyn WorkStream) {
    subject.backend.synchronize_stream(subject.device, flight.stream()).unwrap();
    assert!(flight.is_done().unwrap(), "the stream was waited for");
}

/// Returns the number of rounds over a unit that take [`LONG`], or as long as the driver's queue allows, measured once per device.
/// Skips the case if the backend has no such work.
pub(crate) fn rounds<B: TestKit>(subject: &Subject<B>) -> u32 {
    static MEASURED: Mutex<Vec<((Vendor, DeviceId), u32)>> = Mutex::new(Vec::new());
    /// Up to this number of rounds a stream never makes the caller wait.
    const MAX: u32 = 1 << 10;
    let key = (subject.backend.vendor(), subject.device);
    // A case that is skipped here leaves no partial update.
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
    // The first run may compile the kernel. The faster of two runs counts, because another process can delay one of them.
    takes(1);
    let mut rounds = 8;
    loop {
        let time = takes(rounds).min(takes(rounds));
        if time >= LONG {
            break;
        }
        if rounds * 2 >= MAX {
            assert!(time >= LONG / 4, "{rounds} rounds over {} take {time:?}", subject.unit());
            break;
        }
        rounds *= 2;
    }
    measured.push((key, rounds));
    rounds
}

/// Queues `rounds` rounds of work on the unit at an offset. Skips the case if the backend has no such work.
pub(crate) fn queue<B: TestKit>(
    subject: &Subject<B>,
    own: &dyn WorkStream,
    (region, offset): (&Region<B>, Bytes),
    seed: u64,
    rounds: u32,
) {
    let (device, at) = (subject.device, region.address() + offset);
    // SAFETY: cases start work on a unit that is mapped for the device. They unmap it only after the work or with calls that
    // must wait for the work. The stream belongs to the device.
    or_skip(unsafe {
        subject.backend.start_pattern_on(device, own.stream(), at, subject.unit(), seed, rounds)
    })
}
