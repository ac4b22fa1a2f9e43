//! The driver layer: raw calls, right and wrong, each compared with the vendor's documentation.
//!
//! `gpu-vmm-raw` makes the calls.

mod lab;
mod rules;
mod seen;

use crate::counts::Counts;
use crate::outcome::{Outcome, Verdict};
use crate::panics;
use gpu_vmm_core::DeviceId;
use gpu_vmm_testkit::TestKit;
use lab::Lab;
pub(crate) use rules::all as rules;
use seen::Seen;
pub(crate) use seen::died;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One documented rule of the drivers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The group and the rule, such as `reserve::size_zero`.
    pub(crate) name: &'static str,
    /// The documented rule.
    pub(crate) about: &'static str,
    /// The quirks, of any vendor, whose effect this rule observes.
    quirks: &'static [&'static str],
    look: fn(&Lab, &mut Seen),
}

/// The raw driver of a worker process.
pub(crate) struct Drivers {
    lab: Result<Lab, String>,
    quirks: Vec<String>,
    is_spoiled: bool,
}

impl Drivers {
    pub(crate) fn new<B: TestKit>(backend: &B, device: DeviceId) -> Self {
        let quirks: Vec<String> = backend.quirks().iter().map(|quirk| quirk.id.to_owned()).collect();
        let open = || {
            gpu_vmm_testkit::raw::below(backend, device, Some(seen::calls))
                .and_then(|driver| Lab::new(driver, device, &quirks))
        };
        let lab =
            catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|panic| Err(panics::ended_by(panic).note));
        Self { lab, quirks, is_spoiled: false }
    }

    /// Returns true if no further rule should run in this process: a driver's wrong behavior may affect the next rule.
    pub(crate) const fn is_spoiled(&self) -> bool {
        self.is_spoiled
    }

    /// Observes what the driver does.
    pub(crate) fn look(&mut self, rule: &Rule) -> Outcome {
        let outcome = match &self.lab {
            Ok(lab) => self.look_in(lab, rule),
            Err(reason) => Outcome::failed(reason.clone()),
        };
        let is_wrong = matches!(outcome.verdict, Verdict::Deviates | Verdict::Failed);
        self.is_spoiled |= is_wrong || self.lab.as_ref().is_ok_and(Lab::is_spoiled);
        outcome
    }

    fn look_in(&self, lab: &Lab, rule: &Rule) -> Outcome {
        let before = Counts::now();
        lab.begin();
        let mut seen = Seen::new();
        let looked = catch_unwind(AssertUnwindSafe(|| (rule.look)(lab, &mut seen)));
        if let Err(panic) = looked {
            let ended = panics::ended_by(panic);
            // A deviation seen before a missing call ended the rule matters more than the skip.
            let goes_on = match ended.verdict {
                Verdict::Skipped => seen.cut_short(&ended.note),
                _ => seen.is_deviation(),
            };
            if !goes_on {
                return ended;
            }
        }
        let outcome = seen.outcome(rule, &self.quirks);
        let is_known = |id: &str| self.quirks.iter().any(|quirk| quirk == id);
        match Counts::check(before, lab.imports(), is_known) {
            Err(left) if outcome.verdict != Verdict::Deviates => {
                Outcome::failed(format!("{left}; {}", outcome.note))
            }
            _ => outcome,
        }
    }
}
