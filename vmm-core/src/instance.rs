//! Which opened backend something belongs to.

use crate::{Backend, Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other opened backend of this process has.
///
/// Handles of one instance cannot be mapped by another: two simulated hosts share nothing. All that is opened on
/// one vendor's driver has the same number, since the driver is one for the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InstanceId(u64);

impl InstanceId {
    /// A number that was not given out before.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number, for messages.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Refuses what another backend, or another instance of this one, has made.
pub(crate) fn check_same<B: Backend>(operation: &'static str, theirs: &B, ours: &B) -> Result<()> {
    if theirs.instance() == ours.instance() {
        return Ok(());
    }
    let label = |backend: &B| format!("{} backend {}", backend.vendor(), backend.instance().number());
    Err(Error::ForeignHandle { operation, theirs: label(theirs), ours: label(ours) })
}
