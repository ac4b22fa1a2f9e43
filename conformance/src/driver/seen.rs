//! The observations of a rule, and its verdict: all verdicts of the driver layer are decided here.

use super::Rule;
use super::lab::CallResult;
use crate::outcome::{Outcome, Verdict};
use crate::report::unseen;
use gpu_vmm_testkit::raw::abi::Code;

/// The text before a call's name on the error stream. If the process dies, the output shows the last call.
const CALLS: &str = "calls ";

/// Prints the name of a call that is about to be made.
pub(super) fn calls(name: &'static str) {
    eprintln!("{CALLS}{name}");
}

/// The errors that every function's documentation lists for unsupported arguments.
pub(super) const REFUSAL: &[Code] = &[Code::INVALID_VALUE, Code::NOT_SUPPORTED];
/// The same for a device.
pub(super) const NO_DEVICE: &[Code] = &[Code::INVALID_VALUE, Code::INVALID_DEVICE, Code::NOT_SUPPORTED];
/// The same for a size: HIP's guide lists out-of-memory for a size that is not a multiple of the granularity.
pub(super) const BAD_SIZE: &[Code] = &[Code::INVALID_VALUE, Code::NOT_SUPPORTED, Code::OUT_OF_MEMORY];

/// The observations of a rule so far. The initial verdict is as documented.
#[derive(Debug)]
pub(super) struct Seen {
    verdict: Verdict,
    notes: Vec<String>,
    shows: bool,
    /// The number of calls that have been judged.
    looked_at: usize,
}

impl Seen {
    pub(super) const fn new() -> Self {
        Self { verdict: Verdict::AsDocumented, notes: Vec::new(), shows: false, looked_at: 0 }
    }

    /// Records something worth knowing that is as documented.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Records a quirk's effect that is as documented, such as a hint that the driver did not follow.
    pub(super) fn shows(&mut self, note: impl Into<String>) {
        self.shows = true;
        self.note(note);
    }

    /// Records that the driver accepts more than is documented.
    pub(super) fn lenient(&mut self, what: impl Into<String>) {
        let what = what.into();
        // Printed in case the next call ends the process.
        eprintln!("{what}");
        if self.verdict == Verdict::AsDocumented {
            self.verdict = Verdict::MoreLenient;
        }
        self.note(what);
    }

    /// Records that the driver does something other than documented.
    pub(super) fn deviates(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("{what}");
        self.verdict = Verdict::Deviates;
        self.note(what);
    }

    /// Records a deviation unless the documented condition holds.
    pub(super) fn holds(&mut self, holds: bool, else_what: impl FnOnce() -> String) {
        self.looked_at += 1;
        if !holds {
            self.deviates(else_what());
        }
    }

    /// Checks a call that is documented to be refused. Returns true if it was refused, with any error.
    pub(super) fn refused<T>(&mut self, what: &str, answer: CallResult<T>, documented: &[Code]) -> bool {
        self.looked_at += 1;
        match answer {
            Ok(_) => self.lenient(format!("{what}: success")),
            Err(refusal) if documented.contains(&refusal.code) => return true,
            Err(refusal) => {
                self.deviates(format!("{what}: {refusal}, which is not among the documented answers"));
                return true;
            }
        }
        false
    }

    /// Checks a call that is documented to succeed.
    pub(super) fn accepted<T>(&mut self, what: &str, answer: CallResult<T>) -> Option<T> {
        self.looked_at += 1;
        answer.map_err(|refusal| self.deviates(format!("{what}: {refusal}"))).ok()
    }

    /// Notes that the rest of the rule could not be checked. Returns true if some of it was.
    pub(super) fn cut_short(&mut self, reason: &str) -> bool {
        if self.looked_at > 0 {
            self.note(format!("the rest was not looked at: {reason}"));
        }
        self.looked_at > 0
    }

    pub(super) fn is_deviation(&self) -> bool {
        self.verdict == Verdict::Deviates
    }

    /// Returns the verdict on the rule, with the quirk of this version that explains it.
    pub(super) fn outcome(mut self, rule: &Rule, quirks: &[String]) -> Outcome {
        let listed = listed(rule, quirks);
        if self.verdict == Verdict::AsDocumented && !self.shows {
            for id in &listed {
                self.notes.push(unseen(id));
            }
        }
        let explained = self.verdict != Verdict::AsDocumented;
        let quirk = listed.first().filter(|_| explained).map(|id| (*id).to_owned());
        Outcome { quirk, ..Outcome::new(self.verdict, self.notes.join("; ")) }
    }
}

/// Returns the rule's quirks that are listed for this version.
fn listed(rule: &Rule, quirks: &[String]) -> Vec<&'static str> {
    rule.quirks.iter().copied().filter(|id| quirks.iter().any(|known| known == id)).collect()
}

/// Returns the outcome of a rule at which the process died or hung; `printed` is the process's output.
pub(crate) fn died(rule: &Rule, ended: &str, printed: &str, quirks: &[String]) -> Outcome {
    let (calls, notes): (Vec<&str>, Vec<&str>) = printed.lines().partition(|line| line.starts_with(CALLS));
    let place = match calls.last() {
        Some(call) => format!(" in or after {}", &call[CALLS.len()..]),
        None => String::new(),
    };
    let mut seen = Seen::new();
    notes.iter().for_each(|line| seen.note(*line));
    seen.verdict = Verdict::Deviates;
    seen.note(format!("the process that made the calls: {ended}{place}"));
    seen.outcome(rule, quirks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::lab::Refusal;

    const RULE: Rule = Rule { name: "a::rule", about: "", quirks: &["old", "new"], look: |_, _| {} };

    fn refusal(code: Code) -> CallResult<()> {
        Err(Refusal { call: "cuMemMap".to_owned(), code, name: "A_NAME".to_owned() })
    }

    #[test]
    fn deviation_names_its_quirk_or_is_new() {
        let outcome = |quirks: &[&str]| {
            let mut seen = Seen::new();
            seen.refused("a size of 0", refusal(Code(999)), REFUSAL);
            seen.outcome(&RULE, &quirks.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(outcome(&["new"]).quirk.as_deref(), Some("new"));
        assert!(outcome(&["other"]).is_new_deviation());
        assert!(outcome(&[]).note.starts_with("a size of 0: cuMemMap answered A_NAME (999)"));
    }

    #[test]
    fn worst_observation_decides_the_verdict() {
        let mut seen = Seen::new();
        assert!(seen.refused("one", refusal(Code::INVALID_VALUE), REFUSAL));
        assert_eq!(seen.verdict, Verdict::AsDocumented);
        assert!(!seen.refused("two", Ok(()), REFUSAL));
        assert_eq!(seen.verdict, Verdict::MoreLenient);
        assert!(seen.accepted("three", refusal(Code::INVALID_VALUE)).is_none());
        assert!(!seen.refused("four", Ok(()), REFUSAL));
        assert!(seen.is_deviation());
    }

    #[test]
    fn unseen_quirk_is_noted() {
        let quirks = ["old".to_owned()];
        let outcome = Seen::new().outcome(&RULE, &quirks);
        assert_eq!(outcome.note, "quirk old is listed for this version and was not seen");
        assert_eq!(outcome.quirk, None);
        let mut seen = Seen::new();
        seen.shows("moved");
        assert_eq!(seen.outcome(&RULE, &quirks).note, "moved");
    }

    #[test]
    fn a_death_is_a_deviation() {
        let printed = "calls hipMemMap\nhalf of it: success\ncalls hipMemUnmap";
        let died = died(&RULE, "it was ended by SIGSEGV", printed, &["old".to_owned()]);
        assert_eq!((died.verdict, died.quirk.as_deref()), (Verdict::Deviates, Some("old")));
        let note = "half of it: success; the process that made the calls: it was ended by SIGSEGV in or after hipMemUnmap";
        assert_eq!(died.note, note);
    }
}
