//! What came of a replay.

use serde::Serialize;

/// What came of a replay. Sizes are bytes, times nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// How many threads replayed the trace, each for itself.
    pub threads: usize,
    /// How many rounds there were, without the one for the time of each call.
    pub rounds: u32,
    /// Allocations of each thread in each round.
    pub allocations: u64,
    /// How many of them were freed in the round.
    pub frees: u64,
    /// How many of these were to be used again only later.
    pub freed_for_later: u64,
    /// Streams, the default one among them.
    pub streams: usize,
    /// The most that was asked for at one time.
    pub peak_asked: u64,
    /// The most that was taken from the driver at one time, in any round: by the pool's account; for the driver's own
    /// allocations [`device_took`](Self::device_took).
    pub peak_held: u64,
    /// `peak_held` over `peak_asked`.
    pub ratio: f64,
    /// By how much the device's free memory had become less when most was asked for, in the round for the time of each
    /// call. Other programs on the device are in it.
    pub device_took: u64,
    /// Calls of the driver in the first round.
    pub driver_calls: u64,
    /// The time of each allocation, warm.
    pub alloc_ns: Option<CallTimes>,
    /// The time of each free, warm; none where there is no free.
    pub free_ns: Option<CallTimes>,
    /// What asking for the time costs, which these times are without.
    pub timer_ns: u64,
    /// The first round.
    pub cold: Round,
    /// The last one, where there are several.
    pub warm: Option<Round>,
    /// Allocations and frees in a second, of all threads together, in the last round.
    pub operations_per_second: f64,
}

impl Outcome {
    /// The last round, whichever that is.
    #[must_use]
    pub fn last(&self) -> &Round {
        self.warm.as_ref().unwrap_or(&self.cold)
    }
}

/// The time of calls, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CallTimes {
    /// Half of them took no longer.
    pub median: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
    /// All of them over how many they are.
    pub mean: f64,
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Round {
    /// From the first event of the first thread to the last one of the last thread, in nanoseconds.
    pub total_ns: u64,
    /// Calls of the driver in it.
    pub driver_calls: u64,
    /// What was held after it; none where nobody keeps account.
    pub held: Option<u64>,
    /// The most that was held until its end.
    pub peak_held: Option<u64>,
}
