//! Generated traces with the sizes and lifetimes of training, serving and several streams, always the same from the same
//! seed.

use std::collections::BTreeMap;
use std::io::{Result, Write};

/// The kind of program that a generated trace imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Steps of different size: the forward pass keeps its results, which are freed in the opposite order.
    Training,
    /// Requests that come and go. Their caches grow: each allocates the next size and frees the previous one.
    Serving,
    /// Buffers of all sizes on four streams. Another stream uses a third of them as well.
    Streams,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Training, Self::Serving, Self::Streams];

    /// Writes a trace of about `allocations` allocations.
    ///
    /// # Errors
    ///
    /// The error of the writer.
    pub fn write(self, seed: u64, allocations: u64, to: impl Write) -> Result<()> {
        let mut made = Made { to, random: Random(seed), next: 1, later: BTreeMap::new() };
        writeln!(made.to, "# made: {self:?}, seed {seed}, about {allocations} allocations")?;
        match self {
            Self::Training => training(&mut made, allocations)?,
            Self::Serving => serving(&mut made, allocations)?,
            Self::Streams => streams(&mut made, allocations)?,
        }
        made.to.flush()
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `least` to below `end`.
    fn between(&mut self, least: u64, end: u64) -> u64 {
        least + self.next() % (end - least)
    }

    /// Returns a size from 2^`least` to 2^`end`, small ones as often as large ones.
    fn size(&mut self, least: u64, end: u64) -> u64 {
        let power = self.between(least, end);
        (1 << power) + self.between(0, 1 << power)
    }
}

/// A trace that is being generated.
struct Made<W> {
    to: W,
    random: Random,
    next: u64,
    /// Lines that must precede an allocation: that a block is freed, or may be reused.
    later: BTreeMap<u64, Vec<String>>,
}

impl<W: Write> Made<W> {
    fn allocate(&mut self, bytes: u64, stream: u64) -> Result<u64> {
        let id = self.next;
        while let Some(entry) = self.later.first_entry().filter(|entry| *entry.key() <= id) {
            for line in entry.remove() {
                writeln!(self.to, "{line}")?;
            }
        }
        self.next += 1;
        writeln!(self.to, "a {id} {bytes} {stream}")?;
        Ok(id)
    }

    fn free(&mut self, id: u64) -> Result<()> {
        writeln!(self.to, "f {id}\nr {id}")
    }

    /// Allocates a block that is freed before one of the next `within` allocations.
    fn passing(&mut self, bytes: u64, within: u64) -> Result<()> {
        let id = self.allocate(bytes, 0)?;
        let after = self.next + self.random.between(0, within);
        self.say_before(after, format!("f {id}\nr {id}"));
        Ok(())
    }

    fn say_before(&mut self, allocation: u64, line: String) {
        self.later.entry(allocation).or_default().push(line);
    }
}

fn training<W: Write>(made: &mut Made<W>, allocations: u64) -> Result<()> {
    const LAYERS: u64 = 12;
    for layer in 0..LAYERS {
        for bytes in [(layer + 1) << 18, 3072, 1 << 20] {
            made.allocate(bytes, 0)?;
        }
    }
    while made.next <= allocations {
        // The unit of a step: its batch size times its length.
        let unit = made.random.between(1, 9) * made.random.between(64, 1025) * 64;
        let mut kept = Vec::new();
        for _ in 0..LAYERS {
            for factor in [4, 12, 1, 16] {
                kept.push(made.allocate(unit * factor, 0)?);
                made.passing(unit * factor, 3)?;
                let small = made.random.size(6, 12);
                made.passing(small, 9)?;
            }
        }
        while let Some(id) = kept.pop() {
            made.passing(unit * 4, 2)?;
            made.free(id)?;
        }
    }
    Ok(())
}

fn serving<W: Write>(made: &mut Made<W>, allocations: u64) -> Result<()> {
    const LAYERS: usize = 4;
    const ROW: u64 = 2048;
    for _ in 0..24 {
        made.allocate(4 << 20, 0)?;
    }
    // The tokens so far, the tokens in all, and the cache of each layer.
    let mut requests: Vec<(u64, u64, Vec<u64>)> = Vec::new();
    while made.next <= allocations {
        while requests.len() < 6 {
            let prompt = made.random.between(32, 513);
            let end = prompt + made.random.between(16, 129);
            let caches = (0..LAYERS).map(|_| made.allocate(prompt * ROW, 0)).collect::<Result<_>>()?;
            requests.push((prompt, end, caches));
        }
        for (tokens, _, caches) in &mut requests {
            *tokens += 1;
            for cache in caches {
                let larger = made.allocate(*tokens * ROW, 0)?;
                made.free(std::mem::replace(cache, larger))?;
                for _ in 0..8 {
                    let small = made.random.size(2, 14);
                    made.passing(small, 14)?;
                }
            }
        }
        let (ended, on): (Vec<_>, Vec<_>) = requests.into_iter().partition(|(tokens, end, _)| tokens >= end);
        requests = on;
        for cache in ended.into_iter().flat_map(|(_, _, caches)| caches) {
            made.free(cache)?;
        }
    }
    Ok(())
}

fn streams<W: Write>(made: &mut Made<W>, allocations: u64) -> Result<()> {
    while made.next <= allocations {
        let (bytes, stream) = (made.random.size(9, 24), made.random.between(0, 4));
        let id = made.allocate(bytes, stream)?;
        let freed = made.next + made.random.between(1, 150);
        if made.random.between(0, 3) == 0 {
            made.say_before(freed, format!("f {id}"));
            let ready = freed + made.random.between(0, 20);
            made.say_before(ready, format!("r {id}"));
        } else {
            made.say_before(freed, format!("f {id}\nr {id}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trace;

    fn made(workload: Workload, seed: u64) -> Vec<u8> {
        let mut text = Vec::new();
        workload.write(seed, 3000, &mut text).unwrap();
        text
    }

    #[test]
    fn seed_decides_the_trace() {
        for workload in Workload::ALL {
            assert_eq!(made(workload, 7), made(workload, 7));
            assert_ne!(made(workload, 7), made(workload, 8));
        }
    }

    #[test]
    fn each_workload_makes_a_valid_trace() {
        for workload in Workload::ALL {
            let trace = Trace::read("made", None, &made(workload, 1)[..]).unwrap();
            assert!((3000..4000).contains(&trace.allocations()), "{workload:?}: {}", trace.allocations());
            assert!(trace.frees() > 2500, "{workload:?}: {}", trace.frees());
            let several = workload == Workload::Streams;
            assert_eq!(trace.streams(), if several { 4 } else { 1 });
            assert_eq!(trace.freed_for_later() > 500, several, "{}", trace.freed_for_later());
            let peak = trace.peak_asked() >> 20;
            assert!((100..1024).contains(&peak), "{workload:?}: {peak} MiB");
        }
    }
}
