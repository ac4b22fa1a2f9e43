//! What some versions of a driver do differently from what their documentation says, as data.

/// A driver's known misbehaviour: which versions, what happens, what gpu-vmm does about it, where it was seen.
///
/// Each backend has its list in its `quirks.rs`, one entry a quirk.
#[derive(Clone, Copy, Debug)]
pub struct Quirk {
    /// A short name, stable, for reports.
    pub id: &'static str,
    /// The first version number that has it, as the driver answers it.
    pub from: u32,
    /// The first later version number that has it no more; `u32::MAX` where none is known.
    pub below: u32,
    /// What the driver does.
    pub effect: &'static str,
    /// What is done about it.
    pub handling: &'static str,
    /// Where it was seen.
    pub evidence: &'static str,
}

impl Quirk {
    /// True where the driver of this version number has the quirk.
    #[must_use]
    pub const fn is_in(&self, version: u32) -> bool {
        self.from <= version && version < self.below
    }
}
