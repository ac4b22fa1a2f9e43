//! The expected state: every byte that was written, every mapping with its access, and the memory in use. It gives the
//! expected result of each operation.

use super::step::Part;
use gpu_vmm_core::Access;
use gpu_vmm_testkit::pattern_word;
use std::collections::BTreeMap;

/// Success, or the name of the expected kind of error.
pub(super) type ExpectedResult = Result<(), &'static str>;

const WORD: u64 = size_of::<u64>() as u64;

/// The contents of one granule of memory.
#[derive(Clone, Debug, Default)]
struct Content {
    base: Base,
    /// Bytes that were written since.
    bytes: BTreeMap<u64, u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Base {
    /// Never written.
    #[default]
    Unknown,
    /// The pattern, with this seed for the granule's first word.
    Pattern(u64),
    /// The same byte everywhere.
    Fill(u8),
}

impl Content {
    fn byte(&self, at: u64) -> Option<u8> {
        let base = || match self.base {
            Base::Unknown => None,
            Base::Fill(value) => Some(value),
            Base::Pattern(seed) => Some(pattern_word(seed, at / WORD).to_ne_bytes()[(at % WORD) as usize]),
        };
        self.bytes.get(&at).copied().or_else(base)
    }

    /// The seed of the pattern, and the number of words that must differ from it.
    fn pattern(&self) -> Option<(u64, u64)> {
        let Base::Pattern(seed) = self.base else { return None };
        let mut changed: Vec<u64> = self.bytes.keys().map(|at| at / WORD).collect();
        changed.dedup();
        let differs = |word: &u64| {
            let right = pattern_word(seed, *word).to_ne_bytes();
            (0..WORD).any(|byte| self.byte(word * WORD + byte) != Some(right[byte as usize]))
        };
        Some((seed, changed.iter().filter(|word| differs(word)).count() as u64))
    }
}

/// A piece of physical memory.
#[derive(Clone, Debug)]
pub(super) struct ModelMemory {
    /// The index of its device in the list of devices.
    pub(super) device: usize,
    contents: Vec<Content>,
}

/// One mapping.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) piece: usize,
    /// The access of each device.
    pub(super) access: [Access; 2],
}

/// One region; offsets are in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Range {
    /// The length of each of its reservations.
    pub(super) reservations: Vec<u64>,
    pub(super) mapped: BTreeMap<u64, Placed>,
    /// Whether the second device gets access to memory that the region grows by, whichever device owns it.
    pub(super) for_peer: bool,
}

/// The whole expected state.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) granule: u64,
    pieces: Vec<ModelMemory>,
}

/// One granule as the model knows it.
pub(super) struct Known {
    pub(super) offset: u64,
    pub(super) piece_device: usize,
    pub(super) access: [Access; 2],
    pub(super) pattern: Option<(u64, u64)>,
    /// The offset of the bytes to check, and their expected values.
    pub(super) bytes: Option<(u64, Vec<Option<u8>>)>,
}

impl Range {
    pub(super) fn reserved(&self) -> u64 {
        self.reservations.iter().sum()
    }

    /// The borders between its reservations, and its end.
    pub(super) fn borders(&self) -> impl Iterator<Item = u64> {
        self.reservations.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        })
    }
}

impl Model {
    pub(super) const fn new(granule: u64) -> Self {
        Self { granule, pieces: Vec::new() }
    }

    pub(super) fn create(&mut self, device: usize, size: u64) -> usize {
        let contents = vec![Content::default(); (size / self.granule) as usize];
        self.pieces.push(ModelMemory { device, contents });
        self.pieces.len() - 1
    }

    pub(super) fn piece(&self, piece: usize) -> &ModelMemory {
        &self.pieces[piece]
    }

    pub(super) fn size(&self, piece: usize) -> u64 {
        self.pieces[piece].contents.len() as u64 * self.granule
    }

    /// The offset and the length of a part. A part of whole mappings is empty if nothing is mapped.
    pub(super) fn resolve(&self, range: &Range, part: Part) -> (u64, u64) {
        match part {
            Part::Any { at, skew, granules } => (at * self.granule + skew, granules * self.granule),
            Part::Whole { first, count } => {
                let first = first.checked_rem(range.mapped.len()).unwrap_or(0);
                let chosen = range.mapped.iter().skip(first).take(count);
                let lengths = chosen.clone().map(|(_, placed)| self.size(placed.piece));
                let offset = chosen.clone().next().map_or(0, |(start, _)| *start);
                (offset, lengths.sum())
            }
        }
    }

    /// An offset for a mapping of this size: one of those at which it fits, or else the region's start.
    pub(super) fn free_place(&self, range: &Range, size: u64, number: usize) -> u64 {
        let granules = (0..range.reserved()).step_by(self.granule as usize);
        let fits = |offset: &u64| {
            self.part(range, *offset, size).and_then(|()| self.free(range, *offset, size)).is_ok()
        };
        let places: Vec<u64> = granules.filter(fits).collect();
        number.checked_rem(places.len()).map_or(0, |number| places[number])
    }

    pub(super) fn end(&self, range: &Range) -> u64 {
        range.mapped.last_key_value().map_or(0, |(start, placed)| start + self.size(placed.piece))
    }

    /// The mappings that have a byte in a part.
    pub(super) fn touching<'a>(
        &'a self,
        range: &'a Range,
        offset: u64,
        length: u64,
    ) -> impl Iterator<Item = (u64, &'a Placed)> {
        let all = range.mapped.iter().map(|(start, placed)| (*start, placed));
        all.filter(move |(start, placed)| {
            *start < offset + length && offset < start + self.size(placed.piece)
        })
    }

    /// The expected result for a part that is mapped, unmapped or protected.
    pub(super) fn part(&self, range: &Range, offset: u64, length: u64) -> ExpectedResult {
        self.inside(range, offset, length)?;
        let aligned = offset.is_multiple_of(self.granule) && length.is_multiple_of(self.granule);
        if aligned { Ok(()) } else { Err("Unaligned") }
    }

    pub(super) fn inside(&self, range: &Range, offset: u64, length: u64) -> ExpectedResult {
        match offset + length {
            _ if length == 0 => Err("ZeroSize"),
            end if end > range.reserved() => Err("OutOfRange"),
            _ => Ok(()),
        }
    }

    pub(super) fn free(&self, range: &Range, offset: u64, length: u64) -> ExpectedResult {
        if self.touching(range, offset, length).next().is_some() {
            return Err("AlreadyMapped");
        }
        Self::in_one(range, offset, length)
    }

    /// Whether a part is inside of one reservation.
    pub(super) fn in_one(range: &Range, offset: u64, length: u64) -> ExpectedResult {
        let crosses = range.borders().any(|border| offset < border && border < offset + length);
        if crosses { Err("CrossesReservation") } else { Ok(()) }
    }

    pub(super) fn mapped(&self, range: &Range, offset: u64, length: u64) -> ExpectedResult {
        let mut next = offset;
        for (start, placed) in self.touching(range, offset, length) {
            if start > next {
                break;
            }
            next = start + self.size(placed.piece);
        }
        if next >= offset + length { Ok(()) } else { Err("NotMapped") }
    }

    pub(super) fn whole(&self, range: &Range, offset: u64, length: u64) -> ExpectedResult {
        self.mapped(range, offset, length)?;
        let end = offset + length;
        let cut = self
            .touching(range, offset, length)
            .any(|(start, placed)| start < offset || end < start + self.size(placed.piece));
        if cut { Err("PartialMapping") } else { Ok(()) }
    }

    /// Whether a part may be read or written, by its owners or by the given device.
    pub(super) fn open(
        &self,
        range: &Range,
        offset: u64,
        length: u64,
        device: Option<usize>,
        need: Access,
    ) -> ExpectedResult {
        self.inside(range, offset, length)?;
        self.mapped(range, offset, length)?;
        let denied = self.touching(range, offset, length).any(|(_, placed)| {
            let device = device.unwrap_or(self.piece(placed.piece).device);
            !need.is_within(placed.access[device])
        });
        if denied { Err("NoAccess") } else { Ok(()) }
    }

    /// The content of the granule at a mapped offset, and the offset in the granule.
    fn content(&mut self, range: &Range, offset: u64) -> (&mut Content, u64) {
        let (start, placed) = range.mapped.range(..=offset).next_back().expect("a mapping");
        let inside = offset - start;
        let content = &mut self.pieces[placed.piece].contents[(inside / self.granule) as usize];
        (content, inside % self.granule)
    }

    pub(super) fn write(&mut self, range: &Range, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            let (content, inside) = self.content(range, at);
            content.bytes.insert(inside, *byte);
        }
    }

    pub(super) fn write_pattern(&mut self, range: &Range, offset: u64, length: u64, seed: u64) {
        for at in (offset..offset + length).step_by(self.granule as usize) {
            let seed = seed + (at - offset) / WORD;
            *self.content(range, at).0 = Content { base: Base::Pattern(seed), bytes: BTreeMap::new() };
        }
    }

    pub(super) fn fill(&mut self, range: &Range, offset: u64, length: u64, value: u8) {
        for at in (offset..offset + length).step_by(self.granule as usize) {
            *self.content(range, at).0 = Content { base: Base::Fill(value), bytes: BTreeMap::new() };
        }
    }

    /// All mapped granules of a region.
    pub(super) fn known<'a>(&'a self, range: &'a Range) -> impl Iterator<Item = Known> {
        /// The number of bytes that are checked, from the first one on that was written individually.
        const WINDOW: u64 = 64;
        range.mapped.iter().flat_map(move |(start, placed)| {
            let piece = self.piece(placed.piece);
            (*start..).step_by(self.granule as usize).zip(&piece.contents).map(move |(offset, content)| {
                let first = content.bytes.first_key_value().map_or(0, |(first, _)| *first);
                let last = (first + WINDOW).min(self.granule);
                let bytes: Vec<Option<u8>> = (first..last).map(|at| content.byte(at)).collect();
                Known {
                    offset,
                    piece_device: piece.device,
                    access: placed.access,
                    pattern: content.pattern(),
                    bytes: bytes.iter().any(Option::is_some).then_some((offset + first, bytes)),
                }
            })
        })
    }

    /// The bytes of each device's memory in use: held and mapped pieces, each counted once.
    pub(super) fn in_use<'a>(
        &self,
        held: impl Iterator<Item = usize>,
        ranges: impl Iterator<Item = &'a Range>,
    ) -> [u64; 2] {
        let mapped = ranges.flat_map(|range| range.mapped.values().map(|placed| placed.piece));
        let mut pieces: Vec<usize> = held.chain(mapped).collect();
        pieces.sort_unstable();
        pieces.dedup();
        let mut in_use = [0; 2];
        for piece in pieces {
            in_use[self.piece(piece).device] += self.size(piece);
        }
        in_use
    }
}
