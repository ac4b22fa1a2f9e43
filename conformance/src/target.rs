//! The backends that the suite runs on.

use gpu_vmm_testkit::TestKit;
use std::fmt::Debug;

/// A backend under test that is not open yet: cases run in several processes, and each process opens it for itself.
pub trait Target<B: TestKit>: Debug + Send + Sync {
    /// The name in reports and tests: `cuda`, `hip`, `host`.
    fn name(&self) -> &str;

    /// Opens the backend for one case. If opening is cheap, each case gets a backend of its own and cases can run in
    /// parallel. Otherwise the process has one backend.
    ///
    /// # Errors
    ///
    /// Returns why the backend is unavailable, as a text for people.
    fn open(&self) -> Result<B, String>;

    /// Returns true if each [`open`](Target::open) returns a backend that shares nothing with the previous one.
    fn is_fresh(&self) -> bool;

    /// Returns true if the backend implements every optional call: then a case in which it refuses one fails.
    ///
    /// By default false: such a case is skipped, with the backend's reason.
    fn is_complete(&self) -> bool {
        false
    }

    /// Returns another backend of any vendor, whose memory the first one cannot map.
    fn foreign(&self) -> Option<B>;

    /// Releases what the backend keeps for reuse, so that leaks can be counted.
    ///
    /// # Errors
    ///
    /// Returns the driver's error.
    fn settle(&self, _backend: &B) -> gpu_vmm_core::Result<()> {
        Ok(())
    }
}
