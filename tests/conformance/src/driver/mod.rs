//! The driver layer: raw calls, right and wrong, each beside what the vendor's documentation says.

use crate::outcome::{Outcome, Verdict};
use gpu_vmm_core::{DeviceId, Quirk, Vendor};

/// One documented rule of the drivers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The group and the rule, such as `reserve::size_zero`.
    pub(crate) name: &'static str,
    /// What the documentation says.
    pub(crate) about: &'static str,
}

/// All rules.
pub(crate) fn rules() -> Vec<Rule> {
    Vec::new()
}

/// The raw driver of a working process.
#[derive(Debug)]
pub(crate) struct Drivers {
    vendor: Vendor,
}

impl Drivers {
    pub(crate) fn new(vendor: Vendor, _device: DeviceId, _quirks: Vec<Quirk>) -> Self {
        Self { vendor }
    }

    /// Looks what the driver does.
    pub(crate) fn look(&mut self, _rule: &Rule) -> Outcome {
        Outcome::new(Verdict::Skipped, format!("{} has no raw calls", self.vendor))
    }
}
