//! The known kernels: each is a function here with the kernel's name. All parameters are 64 bits wide.
//!
//! | kernel | parameters | action |
//! |---|---|---|
//! | `gpu_vmm_write_pattern` | words, count, seed | writes the test kit's pattern (`pattern_word` in vmm-core) |
//! | `gpu_vmm_count_wrong` | words, count, seed, counted | adds the number of checked words to `counted[0]`, and the number that differ from the pattern to `counted[1]`; does not touch a counter to add 0 |
//! | `gpu_vmm_walk_list` | node, most, nodes, sum | follows a list for up to `most` nodes; writes the number of visited nodes to `*nodes` and the sum of their values to `*sum` |
//! | `squares` | words, count | writes the square of each word's index, as in `examples/with_cudarc.rs` |
//!
//! They process all words in order, for any grid. A kernel that faults has thus finished all words before the fault; a real
//! one has no order.

use crate::code::{Answer, Code};
use crate::violation::{say, stop};
use crate::walk::{Need, Piece, Who, each, reach};
use std::sync::atomic::Ordering::Relaxed;

struct Known {
    name: &'static str,
    parameters: usize,
    run: fn(device: usize, parameters: &[u64]) -> Answer,
}

const KNOWN: &[Known] = &[
    Known { name: "gpu_vmm_write_pattern", parameters: 3, run: write_pattern },
    Known { name: "gpu_vmm_count_wrong", parameters: 4, run: count_wrong },
    Known { name: "gpu_vmm_walk_list", parameters: 4, run: walk_list },
    Known { name: "squares", parameters: 2, run: squares },
];

/// Returns a kernel with its parameters, to be run by a device. Ends the process for an unknown kernel: doing nothing instead
/// would hide the error.
pub(crate) fn find(name: &str, parameters: Vec<u64>) -> impl Fn(usize) -> Answer + Send + Sync + 'static {
    let Some(known) = KNOWN.iter().find(|known| known.name == name) else {
        stop(format_args!("kernel {name} is not known here"));
    };
    if known.parameters != parameters.len() {
        stop(format_args!("kernel {name} has {} parameters", known.parameters));
    }
    move |device| (known.run)(device, &parameters)
}

/// Calls `work` for the words of a range, piece by piece, with the index of each piece's first word.
fn words(device: usize, at: u64, count: u64, need: Need, mut work: impl FnMut(u64, &Piece)) -> Answer {
    if !at.is_multiple_of(8) {
        say(format_args!("device {device} faults at {at:#x}: words are at multiples of 8 bytes"));
        return Err(Code::MISALIGNED_ADDRESS);
    }
    let mut first = 0;
    let size = count.checked_mul(8).ok_or(Code::ILLEGAL_ADDRESS)?;
    each(Who::Kernel(device), at, size, need, |piece| {
        work(first, piece);
        first += piece.size / 8;
    })
}

/// Returns the pattern's word at `index` for a seed.
const fn pattern_word(seed: u64, index: u64) -> u64 {
    let mixed = seed.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 32)
}

fn write(device: usize, at: u64, count: u64, word: impl Fn(u64) -> u64) -> Answer {
    words(device, at, count, Need::Write, |first, piece| {
        for (index, place) in (first..).zip(piece.words()) {
            place.store(word(index), Relaxed);
        }
    })
}

fn write_pattern(device: usize, parameters: &[u64]) -> Answer {
    let [at, count, seed] = *parameters else { return Err(Code::INVALID_VALUE) };
    write(device, at, count, |index| pattern_word(seed, index))
}

fn count_wrong(device: usize, parameters: &[u64]) -> Answer {
    let [at, count, seed, counters] = *parameters else { return Err(Code::INVALID_VALUE) };
    let (mut looked_at, mut wrong) = (0, 0);
    words(device, at, count, Need::Read, |first, piece| {
        for (index, place) in (first..).zip(piece.words()) {
            looked_at += 1;
            wrong += u64::from(load(place) != pattern_word(seed, index));
        }
    })?;
    for (offset, counted) in [(0, looked_at), (8, wrong)].into_iter().filter(|(_, counted)| *counted > 0) {
        let counter = reach(Who::Kernel(device), counters.wrapping_add(offset), 8, Need::Write)?;
        counter.words()[0].fetch_add(counted, Relaxed);
    }
    Ok(())
}

/// A node has two words: the address of the next node, 0 in the last one, and its value.
fn walk_list(device: usize, parameters: &[u64]) -> Answer {
    let [mut node, most, nodes, sum] = *parameters else { return Err(Code::INVALID_VALUE) };
    let (mut met, mut total) = (0, 0u64);
    while node != 0 && met < most {
        let value = read(device, node.wrapping_add(8))?;
        node = read(device, node)?;
        total = total.wrapping_add(value);
        met += 1;
    }
    write(device, nodes, 1, |_| met)?;
    write(device, sum, 1, |_| total)
}

fn read(device: usize, at: u64) -> Answer<u64> {
    let mut word = 0;
    words(device, at, 1, Need::Read, |_, piece| word = load(&piece.words()[0]))?;
    Ok(word)
}

fn load(place: &std::sync::atomic::AtomicU64) -> u64 {
    place.load(Relaxed)
}

fn squares(device: usize, parameters: &[u64]) -> Answer {
    let [at, count] = *parameters else { return Err(Code::INVALID_VALUE) };
    write(device, at, count, |index| index.wrapping_mul(index))
}
