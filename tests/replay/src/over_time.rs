//! What a pool holds over the course of a trace, beside what the recorded program's own allocator held.

use crate::event::Event;
use crate::round::{Pass, Signs};
use crate::watch::Watch;
use crate::{Allocator, ReplayError, Trace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The number of parts of a trace. Of each, the largest values are kept.
const PARTS: usize = 1000;

/// A moment of a replay, beside the recorded program at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// The seconds from the recording's begin, or, if it has no times, the number of allocations and frees so far.
    pub at: f64,
    /// The size of all blocks that the program has allocated and not freed.
    pub requested: u64,
    /// The memory that the replay's allocator holds from the driver.
    pub held: u64,
    /// The memory that the recorded program's own allocator held, if the trace tells.
    pub recorded: Option<u64>,
}

/// An allocation of the trace: the number of the operation, and the sums after it.
struct Step {
    operation: u64,
    requested: u64,
    recorded: Option<u64>,
}

/// Replays a trace once, on an allocator that holds nothing yet, and returns up to some thousand moments, each after an allocation. No
/// peak of the requests or of the recorded allocator is left out.
///
/// # Errors
///
/// The error of the allocator.
pub fn over_time<A: Allocator>(trace: &Trace, allocator: &A) -> Result<Vec<Moment>, ReplayError> {
    let steps = steps(trace);
    let chosen: Vec<usize> = chosen(&steps).into_iter().collect();
    let mut sampling = Sampling { allocator, chosen: &chosen, next: 0, allocations: 0, held: Vec::new() };
    Pass::new(trace, allocator, &Signs::default()).run(&mut sampling)?;
    let times = trace.recording().map_or(&[][..], |recording| &recording.times);
    let moments = chosen.iter().zip(sampling.held).filter_map(|(place, held)| {
        let Step { operation, requested, recorded } = *steps.get(*place)?;
        let time = times.get(operation as usize - 1).map(|micros| *micros as f64 / 1e6);
        Some(Moment { at: time.unwrap_or(operation as f64), requested, held, recorded })
    });
    Ok(moments.collect())
}

/// Returns all allocations.
fn steps(trace: &Trace) -> Vec<Step> {
    let mut changes = trace.recording().map_or(&[][..], |recording| &recording.held).iter().peekable();
    let mut bytes_of = vec![0; trace.slots as usize];
    let (mut steps, mut operation, mut requested, mut recorded) = (Vec::new(), 0, 0, None);
    for event in &trace.events {
        match *event {
            Event::Allocate { slot, bytes, .. } => {
                bytes_of[slot as usize] = bytes;
                requested += bytes;
                // A change comes before the operation with its number.
                while let Some((_, now)) = changes.next_if(|(at, _)| *at <= operation) {
                    recorded = Some(*now);
                }
                operation += 1;
                steps.push(Step { operation, requested, recorded });
            }
            Event::Free { slot } | Event::FreeAfter { slot, .. } => {
                requested -= bytes_of[slot as usize];
                operation += 1;
            }
            Event::Done { .. } => {}
        }
    }
    steps
}

/// Returns the places of the first and last step of each part, and of those with the largest values.
fn chosen(steps: &[Step]) -> BTreeSet<usize> {
    let size = steps.len().div_ceil(PARTS).max(1);
    let mut chosen = BTreeSet::new();
    for (part, of_part) in steps.chunks(size).enumerate() {
        let most = |value: fn(&Step) -> u64| (0..of_part.len()).max_by_key(|place| value(&of_part[*place]));
        let places =
            [Some(of_part.len() - 1), most(|step| step.requested), most(|step| step.recorded.unwrap_or(0))];
        chosen.extend(places.into_iter().flatten().map(|place| part * size + place));
    }
    chosen
}

/// Reads what the allocator holds after the chosen allocations.
struct Sampling<'a, A> {
    allocator: &'a A,
    chosen: &'a [usize],
    /// The place of the next one in `chosen`.
    next: usize,
    allocations: usize,
    held: Vec<u64>,
}

impl<A: Allocator> Watch for Sampling<'_, A> {
    fn took(&mut self, _: u32, _: u64) {
        if self.chosen.get(self.next) == Some(&self.allocations) {
            self.held.push(self.allocator.held().map_or(0, |held| held.now.0));
            self.next += 1;
        }
        self.allocations += 1;
    }

    fn gave(&mut self, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Held, TraceFence};
    use gpu_vmm_core::Bytes;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// An allocator that keeps all that it ever had, in units of 1000 bytes.
    #[derive(Default)]
    struct Hoarder(AtomicU64);

    impl Allocator for Hoarder {
        type Block = ();

        fn allocate(&self, bytes: Bytes, _: u16) -> Result<(), ReplayError> {
            self.0.fetch_add(bytes.0.next_multiple_of(1000), Ordering::Relaxed);
            Ok(())
        }

        fn free(&self, (): ()) -> Result<(), ReplayError> {
            Ok(())
        }

        fn free_after(&self, (): (), _: Arc<TraceFence>) -> Result<(), ReplayError> {
            Ok(())
        }

        fn driver_calls(&self) -> u64 {
            0
        }

        fn held(&self) -> Option<Held> {
            let now = Bytes(self.0.load(Ordering::Relaxed));
            Some(Held { now, peak: now })
        }

        fn device_took(&self) -> Result<Bytes, ReplayError> {
            Ok(Bytes(0))
        }
    }

    #[test]
    fn moments_of_a_short_trace_are_all_there() {
        let trace = Trace::read("it", None, &b"a 1 10 0\na 2 20 0\nf 1\na 3 5 0\nf 3\n"[..]).unwrap();
        let moments = over_time(&trace, &Hoarder::default()).unwrap();
        let expected = [(1.0, 10, 1000), (2.0, 30, 2000), (4.0, 25, 3000)]
            .map(|(at, requested, held)| Moment { at, requested, held, recorded: None });
        assert_eq!(moments, expected);
    }

    #[test]
    fn long_trace_keeps_its_peaks() {
        let count = 50_000_u64;
        let size = |id: u64| if id == 31_415 { 1 << 30 } else { 1 + id % 7 };
        let text: String = (1..=count).map(|id| format!("a {id} {} 0\nf {id}\n", size(id))).collect();
        let trace = Trace::read("it", None, text.as_bytes()).unwrap();
        let moments = over_time(&trace, &Hoarder::default()).unwrap();
        assert!((1000..=3000).contains(&moments.len()), "{}", moments.len());
        let peak = moments.iter().find(|moment| moment.requested == 1 << 30).unwrap();
        assert_eq!(peak.at, 2.0 * 31_415.0 - 1.0);
        assert_eq!(moments.last().unwrap().at, 2.0 * count as f64 - 1.0);
        assert!(moments.is_sorted_by(|one, other| one.at < other.at && one.held < other.held));
    }
}
