//! Programs: what a program allocates, in which order it frees, and what else it does.

use crate::Random;

/// The sizes of a program's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// One size.
    One(u64),
    /// The size for a number `n` of a block, `first + n % count * step`.
    Steps {
        /// The smallest size.
        first: u64,
        /// The difference of two sizes.
        step: u64,
        /// The number of sizes.
        count: u64,
    },
    /// Any size in a range, all with the same probability.
    Even {
        /// The smallest size.
        from: u64,
        /// The largest size.
        to: u64,
    },
    /// Sizes from 1 byte up to a number of bits; each number of bits has the same probability.
    Bits(u32),
}

/// The order in which a program frees its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The newest block first.
    Lifo,
    /// The oldest block first, once as many are live as the program keeps.
    Fifo,
    /// As [`Fifo`](Order::Fifo), with as many blocks as the streams.
    Turns,
    /// All blocks, once as many are live as the program keeps.
    Sawtooth,
    /// Any block.
    Random,
}

/// A program that a seed determines, or that a test spells out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The seed of all choices.
    pub seed: u64,
    /// The sizes of blocks.
    pub sizes: Sizes,
    /// The exponent of the largest alignment; 8 for none. A third of the blocks have an alignment, or all if `aligned` is true.
    pub alignment: u32,
    /// True if each block has the largest alignment.
    pub aligned: bool,
    /// The order of frees.
    pub order: Order,
    /// The most live blocks of a thread.
    pub blocks: usize,
    /// The most live bytes of a thread.
    pub bytes: u64,
    /// The number of streams.
    pub streams: usize,
    /// The number of units of work that a stream is behind at most.
    pub behind: u64,
    /// The percentage of blocks that a second stream uses.
    pub shared: usize,
    /// The number of tags of each thread.
    pub tags: usize,
    /// True if every other tag has host memory, and the others have device memory.
    pub kinds: bool,
    /// True if tags end, and others begin.
    pub tags_end: bool,
    /// True if tags are suspended and resumed.
    pub suspends: bool,
    /// True if streams capture.
    pub captures: bool,
    /// True if the budget changes.
    pub budgets: bool,
    /// The budget of the pool, which the caller has set.
    pub budget: u64,
    /// True if the program trims the pool and forgets streams.
    pub trims: bool,
    /// The number of threads.
    pub threads: usize,
    /// The number of steps from one check to the next. Several threads are checked every 1,000 steps.
    pub check: u64,
}

impl Program {
    /// Returns a program without streams of its own, alignments, further tags, threads, and rare calls.
    #[must_use]
    pub const fn plain(seed: u64, sizes: Sizes, order: Order) -> Self {
        Self {
            seed,
            sizes,
            alignment: 8,
            aligned: false,
            order,
            blocks: 64,
            bytes: 256 << 20,
            streams: 1,
            behind: 4,
            shared: 0,
            tags: 1,
            kinds: false,
            tags_end: false,
            suspends: false,
            captures: false,
            budgets: false,
            budget: u64::MAX,
            trims: false,
            threads: 1,
            check: 32,
        }
    }

    /// Returns the program of a seed, which may have anything that a program can have.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut one_in = |count: usize| random.below(count) == 0;
        let (suspends, captures, budgets, trims) = (one_in(4), one_in(4), one_in(4), one_in(3));
        let (has_alignments, aligned, tags_end) = (one_in(2), one_in(3), one_in(4));
        let threads = if one_in(4) { 1 + random.below(8) } else { 1 };
        let sizes = match random.below(5) {
            0 => Sizes::One(1 + random.next() % (32 << 20)),
            1 => Sizes::Steps {
                first: 1 + random.next() % (8 << 20),
                step: 1 + random.next() % (2 << 20),
                count: 2 + random.next() % 8,
            },
            2 => {
                let to = 1 + random.next() % (24 << 20);
                Sizes::Even { from: 1 + random.next() % to, to }
            }
            _ => Sizes::Bits(8 + random.below(18) as u32),
        };
        let order = match random.below(5) {
            0 => Order::Lifo,
            1 => Order::Fifo,
            2 => Order::Turns,
            3 => Order::Sawtooth,
            _ => Order::Random,
        };
        Self {
            alignment: if has_alignments { 9 + random.below(17) as u32 } else { 8 },
            aligned: has_alignments && aligned,
            blocks: 1 << random.below(9),
            bytes: (16 << 20) << random.below(5),
            streams: 1 + random.below(8),
            behind: [0, 1, 4, 16, 64][random.below(5)],
            shared: [0, 0, 10, 50][random.below(4)],
            tags: 1 + random.below(3),
            tags_end,
            suspends,
            captures,
            budgets,
            trims,
            threads,
            check: [1, 16, 64, 100][random.below(4)],
            ..Self::plain(seed, sizes, order)
        }
    }

    /// Returns the size of a block.
    pub(super) fn size(&self, random: &mut Random, number: u64) -> u64 {
        match self.sizes {
            Sizes::One(size) => size,
            Sizes::Steps { first, step, count } => first + number % count * step,
            Sizes::Even { from, to } => from + random.next() % (to - from + 1),
            Sizes::Bits(most) => {
                let bits = 1 + random.below(most as usize) as u32;
                1 + random.next() % (1 << bits)
            }
        }
    }

    /// Returns the alignment of a block.
    pub(super) fn alignment(&self, random: &mut Random) -> u64 {
        if self.aligned {
            return 1 << self.alignment;
        }
        if self.alignment > 8 && random.below(3) == 0 {
            return 1 << (9 + random.below(self.alignment as usize - 8));
        }
        256
    }
}
