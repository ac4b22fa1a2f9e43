//! What came of a pair: figures of two sides, and their ratio.

use serde::{Deserialize, Serialize};

/// A figure of the library compared with the same of something else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What is done, as in `2 MiB, full cycle`.
    pub what: String,
    /// The library's side.
    pub ours: Side,
    /// What is compared with it.
    #[serde(alias = "beside")]
    pub baseline: Side,
    /// Of what the figures are.
    pub unit: Unit,
    /// The library's figure over the other, sample by sample.
    pub ratio: Spread,
    /// The number of samples of each side.
    #[serde(alias = "turns")]
    pub samples: usize,
    /// What the ratio is to be.
    #[serde(skip_serializing_if = "Option::is_none", default, alias = "mark")]
    pub target: Option<Target>,
}

impl Row {
    /// Whether the ratio is what it is to be, where that was said.
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
    /// Who it is, as in `cuMemAlloc`.
    pub name: String,
    /// What it took.
    pub took: Spread,
}

/// The median of many figures, and their interquartile range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// As many are below as above.
    pub median: f64,
    /// A quarter is below.
    pub low: f64,
    /// A quarter is above.
    pub high: f64,
}

impl Spread {
    /// Of figures in any order; zeros where there are none.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| figures.get(figures.len() * part / 4).copied().unwrap_or_default();
        Self { median: at(2), low: at(1), high: at(3) }
    }

    /// Of one figure.
    #[must_use]
    pub const fn exact(figure: f64) -> Self {
        Self { median: figure, low: figure, high: figure }
    }
}

/// Of what figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Nanoseconds of one operation.
    Nanoseconds,
    /// Operations a second, in millions.
    MillionsPerSecond,
    /// Bytes.
    Bytes,
}

/// What a ratio is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

/// What it takes to come to a size, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Which growth, as in `by doubling`.
    pub what: String,
    /// Who grows.
    pub who: String,
    /// Sizes in bytes, and the time from the beginning on until it is reached.
    pub points: Vec<(u64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_interquartile_range_of_the_figures() {
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
