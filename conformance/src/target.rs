//! What the suite is run on.

use gpu_vmm_testkit::TestKit;
use std::fmt::Debug;

/// A backend under test, not opened yet: cases run in several processes, and each opens it for itself.
pub trait Target<B: TestKit>: Debug + Send + Sync {
    /// What reports and test names call it: `cuda`, `hip`, `host`.
    fn name(&self) -> &str;

    /// The backend for one case: one of its own where that is cheap, so that cases can run side by side; else the
    /// process's one.
    ///
    /// # Errors
    ///
    /// Why it cannot be had, in a text for people.
    fn open(&self) -> Result<B, String>;

    /// True where each [`open`](Target::open) gives a backend that shares nothing with the last.
    fn is_fresh(&self) -> bool;

    /// Another backend of any vendor, whose memory the first cannot map.
    fn foreign(&self) -> Option<B>;

    /// Gives back what the backend keeps for later, so that what is left can be counted.
    ///
    /// # Errors
    ///
    /// What the driver answers.
    fn settle(&self, _backend: &B) -> gpu_vmm_core::Result<()> {
        Ok(())
    }
}
