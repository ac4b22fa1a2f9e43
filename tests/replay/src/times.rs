//! The time of each call, and the cost of measuring it.

use crate::report::CallTimes;
use std::time::{Duration, Instant};

/// Returns the cost of reading the clock, which is included in each measured time.
pub(crate) fn cost_of_asking() -> u64 {
    let mut costs: Vec<u64> = (0..10_001)
        .map(|_| {
            let start = Instant::now();
            nanos(start.elapsed())
        })
        .collect();
    *costs.select_nth_unstable(5_000).1
}

/// Converts to nanoseconds. 500 years fit.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Summarizes the times of all calls of a kind; `None` if there was none.
pub(crate) fn summary(mut times: Vec<u64>, cost: u64) -> Option<CallTimes> {
    times.iter_mut().for_each(|time| *time = time.saturating_sub(cost));
    times.sort_unstable();
    // The shortest time within which this many of a thousand calls had ended.
    let within = |part: usize| times.get((times.len() * part).div_ceil(1000).saturating_sub(1)).copied();
    let sum: u64 = times.iter().sum();
    Some(CallTimes {
        median: within(500)?,
        p99: within(990)?,
        p999: within(999)?,
        max: within(1000)?,
        mean: sum as f64 / times.len() as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_taken() {
        let times = (11..=210).rev().collect();
        let expected = CallTimes { median: 100, p99: 198, p999: 200, max: 200, mean: 100.5 };
        assert_eq!(summary(times, 10), Some(expected));
        assert_eq!(summary(vec![3], 10), Some(CallTimes { median: 0, p99: 0, p999: 0, max: 0, mean: 0.0 }));
        assert_eq!(summary(Vec::new(), 10), None);
    }

    #[test]
    fn clock_reading_is_cheap() {
        assert!(cost_of_asking() < 100_000);
    }
}
