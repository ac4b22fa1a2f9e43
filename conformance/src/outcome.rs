//! What a case came to.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What is said of a rule. The first three are the library layer's, the last three the driver layer's; either can be
/// skipped, and a driver's case fails where it could not find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The rule holds.
    Passed,
    /// It does not.
    Failed,
    /// It could not be looked at here.
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

/// A verdict with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What is said of the rule.
    pub verdict: Verdict,
    /// Why it was skipped, how it failed, or what was seen; empty where there is nothing to say.
    pub note: String,
    /// The quirk that explains a deviation; a deviation without one is new.
    pub quirk: Option<String>,
}

impl Outcome {
    /// A verdict and what there is to say.
    pub fn new(verdict: Verdict, note: impl Into<String>) -> Self {
        Self { verdict, note: note.into(), quirk: None }
    }

    /// The rule holds, and there is nothing to say.
    #[must_use]
    pub fn passed() -> Self {
        Self::new(Verdict::Passed, "")
    }

    /// The rule does not hold.
    pub fn failed(how: impl Into<String>) -> Self {
        Self::new(Verdict::Failed, how)
    }

    /// True for a deviation that no quirk explains.
    #[must_use]
    pub fn is_new_deviation(&self) -> bool {
        self.verdict == Verdict::Deviates && self.quirk.is_none()
    }
}
