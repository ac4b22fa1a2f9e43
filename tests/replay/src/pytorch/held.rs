//! The memory that PyTorch's allocator held over time. The snapshot has the amount at its end, and the entries have each change.

use super::Segment;
use super::entries::{Action, Entry};
use crate::recording::Recording;

/// The amount, entry by entry.
pub(super) struct Held {
    now: u64,
}

impl Held {
    /// Begins before the first entry. Returns `None` if the snapshot says nothing about the allocator's memory.
    pub(super) fn before(entries: &[Entry], segments: &[Segment], recording: &mut Recording) -> Option<Self> {
        let change = |entry: &Entry| match entry.action {
            Action::Took => i128::from(entry.bytes),
            Action::Returned => -i128::from(entry.bytes),
            _ => 0,
        };
        if segments.is_empty() && entries.iter().all(|entry| change(entry) == 0) {
            return None;
        }
        let end: i128 = segments.iter().map(|segment| i128::from(segment.total)).sum();
        let all: i128 = entries.iter().map(change).sum();
        // Less than nothing is the sign of a ring whose entries do not fit its segments, as after `clear_history`.
        let now = u64::try_from((end - all).max(0)).unwrap_or(u64::MAX);
        recording.held.push((0, now));
        recording.peak_held = Some(now);
        Some(Self { now })
    }

    /// Follows an entry that comes before the operation with this number.
    pub(super) fn follow(&mut self, entry: &Entry, operation: u64, recording: &mut Recording) {
        self.now = match entry.action {
            Action::Took => self.now.saturating_add(entry.bytes),
            Action::Returned => self.now.saturating_sub(entry.bytes),
            _ => return,
        };
        recording.held.push((operation, self.now));
        recording.peak_held = recording.peak_held.max(Some(self.now));
    }
}
