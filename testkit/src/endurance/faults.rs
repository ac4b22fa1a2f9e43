//! Programs for which a pool did not keep its bound.

use super::{Order, Program, Sizes};

const MIB: u64 = 1 << 20;

/// A double buffer of 3 million bytes, on the streams by turns.
const BUFFER: Program = Program::plain(1, Sizes::One(3_000_000), Order::Turns);

/// Programs that used up addresses or memory when free ranges had the order of their pages.
pub const FAULTS: [(&str, Program); 10] = [
    ("a double buffer on two streams", Program { streams: 2, shared: 50, ..BUFFER }),
    ("a double buffer on four streams", Program { streams: 4, behind: 16, ..BUFFER }),
    (
        "blocks of four sizes, aligned to 32 MiB",
        Program {
            alignment: 25,
            aligned: true,
            ..Program::plain(1, Sizes::Steps { first: 3 * MIB, step: MIB, count: 4 }, Order::Turns)
        },
    ),
    (
        "even sizes in a ring",
        Program { behind: 64, ..Program::plain(1, Sizes::Even { from: 2 * MIB, to: 24 * MIB }, Order::Fifo) },
    ),
    ("a stack on six streams", Program { streams: 6, ..Program::plain(1, Sizes::Bits(24), Order::Lifo) }),
    (
        "small blocks and captures",
        Program { streams: 2, behind: 64, captures: true, ..Program::plain(4, Sizes::Bits(9), Order::Lifo) },
    ),
    ("tags that end", Program { tags_end: true, ..Program::plain(1, Sizes::One(3_000_000), Order::Fifo) }),
    ("three tags", Program { tags: 3, ..Program::plain(1, Sizes::One(28 * MIB), Order::Random) }),
    (
        "forgotten streams",
        Program {
            trims: true,
            blocks: 2,
            behind: 64,
            ..Program::plain(61, Sizes::One(11 * MIB), Order::Sawtooth)
        },
    ),
    (
        "four threads",
        Program { threads: 4, ..Program::plain(1, Sizes::Even { from: 2 * MIB, to: 20 * MIB }, Order::Fifo) },
    ),
];
