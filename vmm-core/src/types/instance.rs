//! Which opened backend something belongs to.

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
