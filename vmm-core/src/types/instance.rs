//! The identity of an opened backend.

use std::sync::atomic::{AtomicU64, Ordering};

/// An identifier of a backend instance, unique within the process.
///
/// A handle can be mapped only by the instance that created it: two simulated hosts share nothing. All backends that are
/// opened on one vendor's driver have the same identifier, because a process has one driver of each vendor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InstanceId(u64);

impl InstanceId {
    /// Returns an identifier that was not used before in this process.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the identifier as a number, for messages.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}
