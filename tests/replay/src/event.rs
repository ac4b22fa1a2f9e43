//! A trace, ready to be replayed.

/// What happens next. Blocks lie in slots that are used again, so that those of a long trace stay in the CPU's cache, as
/// they do with the program that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A block is allocated, for the stream of that number.
    Allocate { slot: u32, stream: u16, bytes: u64 },
    /// A block is freed, and may be used again at once.
    Free { slot: u32 },
    /// A block is freed, and may be used again when the fence is done.
    FreeAfter { slot: u32, fence: u32 },
    /// A fence is done.
    Done { fence: u32 },
}

/// What a program has allocated and freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub(crate) events: Vec<Event>,
    pub(crate) slots: u32,
    pub(crate) fences: u32,
    pub(crate) streams: Vec<u64>,
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) peak: u64,
}

impl Trace {
    /// How many allocations there are.
    #[must_use]
    pub const fn allocations(&self) -> u64 {
        self.allocations
    }

    /// How many of them are freed.
    #[must_use]
    pub const fn frees(&self) -> u64 {
        self.frees
    }

    /// How many may be used again only later than they are freed.
    #[must_use]
    pub const fn freed_for_later(&self) -> u64 {
        self.fences as u64
    }

    /// How many steps a replay of it has: allocations, frees, and fences that are done.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events.len() as u64
    }

    /// How many streams there are, the default one among them whether it is used or not.
    #[must_use]
    pub const fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The most bytes between allocation and free at one time.
    #[must_use]
    pub const fn peak_asked(&self) -> u64 {
        self.peak
    }
}
