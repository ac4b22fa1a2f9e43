//! The results of a pair: figures of two sides, and their ratio.

use serde::{Deserialize, Serialize};

/// A figure of the library compared with the same figure of the other side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation, as in `2 MiB, full cycle`.
    pub what: String,
    /// The library's side.
    pub ours: Side,
    /// The other side.
    #[serde(alias = "beside")]
    pub baseline: Side,
    /// The unit of the figures.
    pub unit: Unit,
    /// The library's figure divided by the other: the medians, and the range of the ratios sample by sample.
    pub ratio: Spread,
    /// The number of samples of each side.
    #[serde(alias = "turns")]
    pub samples: usize,
    /// The target of the ratio.
    #[serde(skip_serializing_if = "Option::is_none", default, alias = "mark")]
    pub target: Option<Target>,
}

impl Row {
    /// Returns whether the ratio meets its target, if it has one.
    #[must_use]
    pub fn meets_its_target(&self) -> Option<bool> {
        self.target.map(|target| match target {
            Target::AtMost(most) => self.ratio.median <= most,
            Target::AtLeast(least) => self.ratio.median >= least,
        })
    }
}

/// One side of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Its name, as in `cuMemAlloc`.
    pub name: String,
    /// Its figures.
    pub took: Spread,
}

/// The median of many figures, and their interquartile range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the figures are below.
    pub median: f64,
    /// A quarter is below.
    pub low: f64,
    /// A quarter is above.
    pub high: f64,
}

impl Spread {
    /// Summarizes figures in any order; zeros if there are none.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| figures.get(figures.len() * part / 4).copied().unwrap_or_default();
        Self { median: at(2), low: at(1), high: at(3) }
    }

    /// Creates a spread of one figure.
    #[must_use]
    pub const fn exact(figure: f64) -> Self {
        Self { median: figure, low: figure, high: figure }
    }
}

/// The unit of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Nanoseconds of one operation.
    Nanoseconds,
    /// Millions of operations per second.
    MillionsPerSecond,
    /// Bytes.
    Bytes,
}

/// The target of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// The times of a growth, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The growth, as in `by doubling`.
    pub what: String,
    /// The side that grows.
    pub who: String,
    /// Sizes in bytes, and the time from the start until each is reached.
    pub points: Vec<(u64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_the_interquartile_range() {
        let spread = Spread::of([9.0, 1.0, 5.0, 3.0, 7.0]);
        assert_eq!(spread, Spread { median: 5.0, low: 3.0, high: 7.0 });
        assert_eq!(Spread::of([4.0]), Spread::exact(4.0));
        assert_eq!(Spread::of([]), Spread::exact(0.0));
    }

    #[test]
    fn targets_are_met_or_missed() {
        let side = |took| Side { name: String::new(), took: Spread::exact(took) };
        let row = |ratio, target| Row {
            what: String::new(),
            ours: side(ratio),
            baseline: side(1.0),
            unit: Unit::Nanoseconds,
            ratio: Spread::exact(ratio),
            samples: 1,
            target,
        };
        assert_eq!(row(1.02, Some(Target::AtMost(1.02))).meets_its_target(), Some(true));
        assert_eq!(row(1.03, Some(Target::AtMost(1.02))).meets_its_target(), Some(false));
        assert_eq!(row(8.0, Some(Target::AtLeast(8.0))).meets_its_target(), Some(true));
        assert_eq!(row(7.0, Some(Target::AtLeast(8.0))).meets_its_target(), Some(false));
        assert_eq!(row(7.0, None).meets_its_target(), None);
    }
}
