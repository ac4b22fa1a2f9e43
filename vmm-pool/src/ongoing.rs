//! The number of things that threads do without the core, and after which it has more free memory.

#[derive(Debug, Default)]
pub(crate) struct Ongoing {
    begun: u64,
    ended: u64,
}

impl Ongoing {
    pub(crate) const fn begin(&mut self) {
        self.begun += 1;
    }

    pub(crate) const fn end(&mut self) {
        self.ended += 1;
    }

    /// Returns the number of those that have ended.
    pub(crate) const fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns the number of those that have ended; none if all have.
    pub(crate) fn ended_before_others(&self) -> Option<u64> {
        (self.ended < self.begun).then_some(self.ended)
    }

    /// Returns true if more than `ended` have ended.
    pub(crate) const fn has_passed(&self, ended: u64) -> bool {
        self.ended > ended
    }
}
