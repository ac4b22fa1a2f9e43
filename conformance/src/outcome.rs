//! The result of a case.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The verdict on a rule. The library layer uses the first three, and the driver layer the last three. Both can skip a rule,
/// and a rule of the driver layer fails if it could not find out what the driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The rule holds.
    Passed,
    /// The rule does not hold.
    Failed,
    /// The rule could not be checked here.
    Skipped,
    /// The driver does what its documentation says.
    AsDocumented,
    /// The driver accepts more than its documentation says.
    MoreLenient,
    /// The driver does something else.
    Deviates,
}

impl Verdict {
    /// The verdict in words, as reports print it.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
            Self::AsDocumented => "as documented",
            Self::MoreLenient => "more lenient",
            Self::Deviates => "deviates",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

/// A verdict with its details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The verdict on the rule.
    pub verdict: Verdict,
    /// Why the rule was skipped, how it failed, or the observation. Empty if there is nothing to add.
    pub note: String,
    /// The quirk that explains a deviation; a deviation without one is new.
    pub quirk: Option<String>,
}

impl Outcome {
    /// Creates an outcome from a verdict and a note.
    pub fn new(verdict: Verdict, note: impl Into<String>) -> Self {
        Self { verdict, note: note.into(), quirk: None }
    }

    /// Creates the outcome of a rule that holds, without a note.
    #[must_use]
    pub fn passed() -> Self {
        Self::new(Verdict::Passed, "")
    }

    /// Creates the outcome of a rule that does not hold.
    pub fn failed(how: impl Into<String>) -> Self {
        Self::new(Verdict::Failed, how)
    }

    /// Returns true for a deviation that no quirk explains.
    #[must_use]
    pub fn is_new_deviation(&self) -> bool {
        self.verdict == Verdict::Deviates && self.quirk.is_none()
    }
}
