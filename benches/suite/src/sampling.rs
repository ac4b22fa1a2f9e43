//! Measures two sides alternately, in changing order, since one side's remains may slow the other one down.

use crate::row::Spread;
use crate::stop::StepResult;
use std::time::{Duration, Instant};

/// The times of the parts of one sample of one side, and a value that is kept until it may be freed.
pub(crate) type Sample<T, const PARTS: usize> = ([Duration; PARTS], T);

/// When the value of a sample is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep {
    /// When the sample has been timed.
    Nothing,
    /// After this number of samples of both sides; then, and before the first one, the device settles. Memory that has just
    /// been freed is cheaper to allocate again in the same process, and slows the device down while it is cleared.
    Samples(usize),
    /// When the sample has been timed; the device settles before each sample.
    Settled,
}

/// The nanoseconds of both sides, for each part.
pub(crate) struct Times<const PARTS: usize> {
    pub(crate) ours: [Vec<f64>; PARTS],
    pub(crate) baseline: [Vec<f64>; PARTS],
}

/// The number of samples of both sides, and the actions between them.
pub(crate) struct Sampling<'a> {
    pub(crate) samples: usize,
    pub(crate) keep: Keep,
    /// Waits until the device has finished all work, and is awake.
    pub(crate) settle: &'a mut dyn FnMut() -> StepResult,
}

impl Sampling<'_> {
    /// Measures both sides alternately. A tenth of the number of samples comes first, to warm up.
    pub(crate) fn take<T, U, const PARTS: usize>(
        self,
        mut ours: impl FnMut() -> StepResult<Sample<T, PARTS>>,
        mut baseline: impl FnMut() -> StepResult<Sample<U, PARTS>>,
    ) -> StepResult<Times<PARTS>> {
        let mut times =
            Times { ours: [const { Vec::new() }; PARTS], baseline: [const { Vec::new() }; PARTS] };
        let (mut kept, mut others_kept) = (Vec::new(), Vec::new());
        let warm = self.samples.div_ceil(10);
        for sample in 0..warm + self.samples {
            if let Keep::Samples(most) = self.keep
                && sample % most.max(1) == 0
            {
                kept.clear();
                others_kept.clear();
                (self.settle)()?;
            }
            for side in 0..2 {
                if let Keep::Settled = self.keep {
                    (self.settle)()?;
                }
                let (took, into) = if (sample + side) % 2 == 0 {
                    let (took, made) = baseline()?;
                    others_kept.push(made);
                    (took, &mut times.baseline)
                } else {
                    let (took, made) = ours()?;
                    kept.push(made);
                    (took, &mut times.ours)
                };
                if sample >= warm {
                    into.iter_mut().zip(took).for_each(|(times, took)| times.push(took.as_nanos() as f64));
                }
                if !matches!(self.keep, Keep::Samples(_)) {
                    kept.clear();
                    others_kept.clear();
                }
            }
        }
        Ok(times)
    }
}

/// Returns the ratio of two sides' medians, and the range of the ratios sample by sample. Of few samples, the median of those ratios
/// can differ from the ratio of the medians that stand beside it.
pub(crate) fn ratios(ours: &[f64], baseline: &[f64]) -> Spread {
    let of_samples = Spread::of(ours.iter().zip(baseline).map(|(ours, baseline)| ours / baseline));
    let [ours, baseline] = [ours, baseline].map(|figures| Spread::of(figures.iter().copied()).median);
    let median = ours / baseline;
    Spread { median, low: of_samples.low.min(median), high: of_samples.high.max(median) }
}

/// Measures the time of `work`.
pub(crate) fn timed<T>(work: impl FnOnce() -> StepResult<T>) -> StepResult<Sample<T, 1>> {
    let start = Instant::now();
    let made = work()?;
    Ok(([start.elapsed()], made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Counts its live instances.
    struct Made<'a>(&'a Cell<usize>);

    impl Drop for Made<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    fn run(samples: usize, keep: Keep) -> (String, Vec<usize>, Times<1>) {
        let (order, alive, most) = (RefCell::new(String::new()), Cell::new(0), RefCell::new(Vec::new()));
        let side = |name, millis| {
            order.borrow_mut().push(name);
            alive.set(alive.get() + 1);
            most.borrow_mut().push(alive.get());
            Ok(([Duration::from_millis(millis)], Made(&alive)))
        };
        let mut settle = || {
            order.borrow_mut().push('.');
            Ok(())
        };
        let times =
            Sampling { samples, keep, settle: &mut settle }.take(|| side('o', 3), || side('b', 2)).unwrap();
        assert_eq!(alive.get(), 0);
        (order.into_inner(), most.into_inner(), times)
    }

    #[test]
    fn samples_alternate_after_a_warmup() {
        let (order, alive, times) = run(4, Keep::Nothing);
        assert_eq!(order, "boobboobbo");
        assert!(alive.iter().all(|alive| *alive == 1));
        assert_eq!((times.ours[0].len(), times.baseline[0].len()), (4, 4));
        assert_eq!(ratios(&times.ours[0], &times.baseline[0]), Spread::exact(1.5));
    }

    #[test]
    fn a_ratio_agrees_with_its_medians() {
        let (ours, baseline) = ([2.0, 3.0, 10.0], [4.0, 1.0, 1.0]);
        assert_eq!(ratios(&ours, &baseline), Spread { median: 3.0, low: 0.5, high: 10.0 });
        assert_eq!(ratios(&[1.0, 3.0, 8.0], &[4.0, 1.0, 2.0]).median, 1.5, "of the samples it is 3");
    }

    #[test]
    fn results_are_kept_for_some_samples() {
        let (order, alive, _) = run(4, Keep::Samples(2));
        assert_eq!(order, ".boob.boob.bo");
        assert_eq!(alive, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]);
        assert_eq!(run(1, Keep::Settled).0, ".b.o.o.b");
    }
}
