//! The results of a replay.

use serde::Serialize;

/// The results of a replay. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The number of threads, each of which replayed the whole trace.
    pub threads: usize,
    /// The number of rounds, without the one for the time of each call.
    pub rounds: u32,
    /// The number of allocations of each thread in each round.
    pub allocations: u64,
    /// The number of these that were freed in the round.
    pub frees: u64,
    /// The number of these that could be reused only some time after they were freed.
    pub freed_for_later: u64,
    /// The number of streams, including the default one.
    pub streams: usize,
    /// The most memory that was requested at one time.
    pub peak_asked: u64,
    /// The most memory held from the driver at one time, in any round: by the pool's account, or, for the driver's own
    /// allocations, [`device_took`](Self::device_took).
    pub peak_held: u64,
    /// `peak_held` over `peak_asked`.
    pub ratio: f64,
    /// By how much the device's free memory had dropped at the peak of the requests, in the round for the time of each call.
    /// Includes other programs on the device.
    pub device_took: u64,
    /// The number of driver calls in the first round.
    pub driver_calls: u64,
    /// The times of the allocations, warm.
    pub alloc_ns: Option<CallTimes>,
    /// The times of the frees, warm; `None` if there is no free.
    pub free_ns: Option<CallTimes>,
    /// The cost of reading the clock, already subtracted from these times.
    pub timer_ns: u64,
    /// The first round.
    pub cold: Round,
    /// The last round, if there are several.
    pub warm: Option<Round>,
    /// Allocations and frees per second, of all threads together, in the last round.
    pub operations_per_second: f64,
}

impl Outcome {
    /// Returns the last round.
    #[must_use]
    pub fn last(&self) -> &Round {
        self.warm.as_ref().unwrap_or(&self.cold)
    }
}

/// The times of calls, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CallTimes {
    /// Half of them took no longer.
    pub median: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// 999 of 1000 took no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// The sum of all divided by their number.
    pub mean: f64,
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Round {
    /// From the first event of the first thread to the last one of the last thread, in nanoseconds.
    pub total_ns: u64,
    /// The number of driver calls in it.
    pub driver_calls: u64,
    /// The memory held after it; `None` if the allocator keeps no account.
    pub held: Option<u64>,
    /// The most memory held until its end.
    pub peak_held: Option<u64>,
}
