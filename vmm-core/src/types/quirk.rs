//! Known deviations of driver versions from their documentation, as data.

/// A known deviation of a driver from its documentation, with the affected versions, gpu-vmm's workaround and the evidence.
///
/// Each backend lists its quirks in its `quirks.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Quirk {
    /// A short, stable name for reports.
    pub id: &'static str,
    /// The first affected version number, as the driver reports it.
    pub from: u32,
    /// The first later version number that is not affected; `u32::MAX` if none is known.
    pub below: u32,
    /// The deviation.
    pub effect: &'static str,
    /// The workaround that gpu-vmm applies.
    pub handling: &'static str,
    /// Where the deviation was observed.
    pub evidence: &'static str,
}

impl Quirk {
    /// Returns true if the driver with this version number has the quirk.
    #[must_use]
    pub const fn is_in(&self, version: u32) -> bool {
        self.from <= version && version < self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quirk_ends_before_first_good_version() {
        let quirk = Quirk { id: "", from: 600, below: 700, effect: "", handling: "", evidence: "" };
        assert_eq!([599, 600, 699, 700].map(|version| quirk.is_in(version)), [false, true, true, false]);
    }
}
