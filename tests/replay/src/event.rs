//! A trace, ready to be replayed.

use crate::Recording;

/// An event of a trace. Blocks are in slots that are reused, so that the blocks of a long trace stay in the CPU's cache, as in the
/// recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A block is allocated, for the stream with this number.
    Allocate { slot: u32, stream: u16, bytes: u64 },
    /// A block is freed, and may be reused at once.
    Free { slot: u32 },
    /// A block is freed, and may be reused once the fence is complete.
    FreeAfter { slot: u32, fence: u32 },
    /// A fence completes.
    Done { fence: u32 },
}

/// The allocations and frees of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub(crate) events: Vec<Event>,
    pub(crate) slots: u32,
    pub(crate) fences: u32,
    pub(crate) streams: Vec<u64>,
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) peak: u64,
    pub(crate) recording: Option<Recording>,
}

impl Trace {
    /// Returns the number of allocations.
    #[must_use]
    pub const fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Returns how many of them are freed.
    #[must_use]
    pub const fn frees(&self) -> u64 {
        self.frees
    }

    /// Returns how many of them may be reused only some time after they are freed.
    #[must_use]
    pub const fn freed_for_later(&self) -> u64 {
        self.fences as u64
    }

    /// Returns the number of steps of a replay: allocations, frees, and fences that complete.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events.len() as u64
    }

    /// Returns the number of streams. The default stream counts even if it is unused.
    #[must_use]
    pub const fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the most bytes between allocation and free at one time.
    #[must_use]
    pub const fn peak_asked(&self) -> u64 {
        self.peak
    }

    /// Returns what the recorder of another program says beside the allocations; `None` for a trace in the text format.
    #[must_use]
    pub const fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }
}
