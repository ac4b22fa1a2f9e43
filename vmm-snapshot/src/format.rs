//! The parts of the file that have a fixed size: the header, the footer, and the entry of each block.
//!
//! ```text
//! header | blocks, one behind the other | head: description and needed files | an entry for each block | footer
//! ```
//!
//! All numbers are little-endian. `docs/guide/snapshot-format.md` is the reference; a test compares it with this module.

use crate::{SnapshotId, SnapshotStats};
use gpu_vmm_core::Bytes;

/// The newest format version that is read. It increases with every change of a byte's meaning.
pub const VERSION: u32 = LIMITS;

/// The version of snapshots of regions alone.
pub(crate) const REGIONS: u32 = 1;

/// The version of snapshots of pools: the head has the table of the pool's blocks.
pub(crate) const POOLS: u32 = 2;

/// The version of snapshots in which a region has a limit of addresses: after the pool, which may be missing, the head has the limits.
pub(crate) const LIMITS: u32 = 3;

/// The first bytes of every snapshot.
pub(crate) const MAGIC: [u8; 12] = *b"gpu-vmm snap";

/// The first bytes of the footer.
pub(crate) const END_MAGIC: [u8; 12] = *b"gpu-vmm done";

/// The minimum, maximum and default size of a block.
pub(crate) const MIN_BLOCK: Bytes = Bytes::kib(4);
pub(crate) const MAX_BLOCK: Bytes = Bytes::mib(64);
pub(crate) const DEFAULT_BLOCK: Bytes = Bytes::mib(1);

/// Limits the memory that a forged file can cost: 2^24 entries take 896 MiB, for 16 TiB in blocks of 1 MiB.
pub(crate) const MAX_BLOCKS: u64 = 1 << 24;

/// The maximum size of a head.
pub(crate) const MAX_HEAD: u64 = 32 << 20;

/// The maximum number of files that one snapshot needs.
pub(crate) const MAX_NEEDED: usize = 1024;

/// The hash that identifies and verifies the contents of a block.
pub(crate) type Hash = [u8; 32];

pub(crate) fn hash(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// The problem found in a file, and its offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    Bad { at: u64, what: String },
    Newer { version: u32 },
}

impl Wrong {
    pub(crate) fn at<T>(at: u64, what: impl Into<String>) -> Result<T, Self> {
        Err(Self::Bad { at, what: what.into() })
    }
}

/// Takes the next bytes of a buffer; the types guarantee that it is long enough.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, others) = rest.split_first_chunk().map_or(([0; N], &[][..]), |(first, rest)| (*first, rest));
    *rest = others;
    first
}

/// The first bytes of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) id: SnapshotId,
}

impl Header {
    /// Magic, version, id, hash of those.
    pub(crate) const BYTES: usize = 12 + 4 + 16 + 32;

    pub(crate) fn write(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (first, sum) = bytes.split_at_mut(32);
        first[..12].copy_from_slice(&MAGIC);
        first[12..16].copy_from_slice(&self.version.to_le_bytes());
        first[16..].copy_from_slice(&self.id.0);
        sum.copy_from_slice(&hash(first));
        bytes
    }

    pub(crate) fn read(bytes: &[u8; Self::BYTES]) -> Result<Self, Wrong> {
        let mut rest = &bytes[..];
        if take(&mut rest) != MAGIC {
            return Wrong::at(0, "it does not begin like a snapshot");
        }
        let version = u32::from_le_bytes(take(&mut rest));
        if version > VERSION {
            return Err(Wrong::Newer { version });
        }
        let id = SnapshotId(take(&mut rest));
        if take(&mut rest) != hash(&bytes[..32]) {
            return Wrong::at(32, "the checksum of its header is wrong");
        }
        if version == 0 {
            return Wrong::at(12, "there is no version 0");
        }
        Ok(Self { version, id })
    }
}

/// The last bytes of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footer {
    pub(crate) version: u32,
    pub(crate) id: SnapshotId,
    /// The offset at which the head begins and the blocks end.
    pub(crate) index: u64,
    /// The size of the head.
    pub(crate) head: u64,
    /// The number of entries after the head.
    pub(crate) entries: u64,
    /// The size of the file.
    pub(crate) file: u64,
    /// The hash of the head and the entries.
    pub(crate) hash: Hash,
}

impl Footer {
    /// Magic, version, four numbers, id, hash of the index, hash of those.
    pub(crate) const BYTES: usize = 12 + 4 + 4 * 8 + 16 + 32 + 32;

    pub(crate) fn write(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (first, sum) = bytes.split_at_mut(96);
        first[..12].copy_from_slice(&END_MAGIC);
        first[12..16].copy_from_slice(&self.version.to_le_bytes());
        let numbers = [self.index, self.head, self.entries, self.file];
        for (place, number) in first[16..48].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        first[48..64].copy_from_slice(&self.id.0);
        first[64..].copy_from_slice(&self.hash);
        sum.copy_from_slice(&hash(first));
        bytes
    }

    /// Returns the size of the head and the entries. The footer must have been [read](Self::read).
    pub(crate) const fn index_bytes(&self) -> u64 {
        self.head + self.entries * Entry::BYTES as u64
    }

    /// Reads the footer of a file of `size` bytes, and checks that the parts fill the file.
    pub(crate) fn read(bytes: &[u8; Self::BYTES], header: Header, size: u64) -> Result<Self, Wrong> {
        let at = size.saturating_sub(Self::BYTES as u64);
        let mut rest = &bytes[..];
        if take(&mut rest) != END_MAGIC {
            return Wrong::at(
                at,
                "it does not end like a snapshot: it is truncated, or bytes follow its end",
            );
        }
        let version = u32::from_le_bytes(take(&mut rest));
        let [index, head, entries, file] = [(); 4].map(|()| u64::from_le_bytes(take(&mut rest)));
        let footer = Self {
            version,
            id: SnapshotId(take(&mut rest)),
            index,
            head,
            entries,
            file,
            hash: take(&mut rest),
        };
        if take(&mut rest) != hash(&bytes[..96]) {
            return Wrong::at(at + 96, "the checksum of its footer is wrong");
        }
        if version != header.version || footer.id != header.id {
            return Wrong::at(at, "its footer belongs to another snapshot");
        }
        if footer.file != size {
            return Wrong::at(at, format!("it has {size} bytes, but had {file} when it was written"));
        }
        if entries > MAX_BLOCKS || head > MAX_HEAD {
            return Wrong::at(
                at,
                format!("an index of {entries} blocks and {head} bytes of head is too large"),
            );
        }
        let end = index.checked_add(footer.index_bytes());
        if index < Header::BYTES as u64 || end != Some(at) {
            return Wrong::at(at, "the sizes of its parts do not add up to its size");
        }
        Ok(footer)
    }
}

/// The location of a block's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// In no file: the block consists of zeros.
    Zero,
    /// In a file.
    Stored(Stored),
}

/// A block in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    /// The hash of the uncompressed contents.
    pub(crate) hash: Hash,
    /// The offset of the block in the file.
    pub(crate) offset: u64,
    /// The number of bytes in the file.
    pub(crate) length: u32,
    /// The file: 0 for this one, else the index in the list of needed files plus one.
    pub(crate) file: u16,
    /// For a compressed block, the beginning of the hash of its bytes in the file: two compressed forms can have the same contents,
    /// and a change from one to the other must be detected too.
    pub(crate) compressed: Option<[u8; 8]>,
}

impl Stored {
    /// Returns whether it can be a block of `length` bytes: a compressed block must be smaller.
    pub(crate) fn fits(&self, length: u64) -> bool {
        let has = u64::from(self.length);
        if self.compressed.is_some() { 0 < has && has < length } else { has == length }
    }

    /// Returns whether it lies in the blocks of this file, which end at `end`. For another file only the beginning is checked.
    pub(crate) fn is_inside(&self, end: u64) -> bool {
        let own = self.file == 0;
        let ends = self.offset.checked_add(u64::from(self.length));
        self.offset >= Header::BYTES as u64 && ends.is_some_and(|ends| !own || ends <= end)
    }
}

const ZERO: u8 = 0;
const PLAIN: u8 = 1;
const LZ4: u8 = 2;

impl Entry {
    /// Hash, offset, check, length, file, kind, and a zero.
    pub(crate) const BYTES: usize = 32 + 8 + 8 + 4 + 2 + 1 + 1;

    pub(crate) fn write(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let Self::Stored(stored) = self else { return bytes };
        bytes[..32].copy_from_slice(&stored.hash);
        bytes[32..40].copy_from_slice(&stored.offset.to_le_bytes());
        bytes[40..48].copy_from_slice(&stored.compressed.unwrap_or_default());
        bytes[48..52].copy_from_slice(&stored.length.to_le_bytes());
        bytes[52..54].copy_from_slice(&stored.file.to_le_bytes());
        bytes[54] = if stored.compressed.is_some() { LZ4 } else { PLAIN };
        bytes
    }

    /// Reads the entry at an offset of the file. The caller checks that it fits its block.
    pub(crate) fn read(bytes: &[u8; Self::BYTES], at: u64) -> Result<Self, Wrong> {
        let mut rest = &bytes[..];
        let (hash, offset, check) =
            (take(&mut rest), u64::from_le_bytes(take(&mut rest)), take::<8>(&mut rest));
        let (length, file) = (u32::from_le_bytes(take(&mut rest)), u16::from_le_bytes(take(&mut rest)));
        let [kind, end] = take(&mut rest);
        let compressed = (kind == LZ4).then_some(check);
        let entry = match kind {
            ZERO => Self::Zero,
            PLAIN | LZ4 => Self::Stored(Stored { hash, offset, length, file, compressed }),
            _ => return Wrong::at(at + 54, format!("unknown block kind {kind}")),
        };
        if end != 0 || entry.write() != *bytes {
            return Wrong::at(at, "an unused field of a block entry is not zero");
        }
        Ok(entry)
    }
}

impl SnapshotStats {
    /// Adds a block to the counts.
    pub(crate) fn count(&mut self, entry: &Entry) {
        self.blocks += 1;
        match entry {
            Entry::Zero => self.zero += 1,
            Entry::Stored(Stored { file: 0, compressed, .. }) => {
                self.stored += 1;
                self.compressed += u64::from(compressed.is_some());
            }
            Entry::Stored(_) => self.unchanged += 1,
        }
    }
}

/// The division of memory into blocks. Each memory begins a new block, so its last block can be shorter.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) block: Bytes,
    /// The size of each memory, and the number of blocks before it.
    pieces: Vec<(Bytes, u64)>,
    pub(crate) blocks: u64,
}

impl Cut {
    /// Divides memories of unchecked sizes into blocks of a valid size. Returns `None` if there are too many blocks.
    pub(crate) fn new(block: Bytes, sizes: impl Iterator<Item = Bytes>) -> Option<Self> {
        let mut blocks = 0u64;
        let mut pieces = Vec::new();
        for size in sizes {
            pieces.push((size, blocks));
            blocks = blocks.checked_add(size.0.div_ceil(block.0)).filter(|blocks| *blocks <= MAX_BLOCKS)?;
        }
        Some(Self { block, pieces, blocks })
    }

    /// Returns whether a size is valid for blocks.
    pub(crate) fn allows(block: Bytes) -> bool {
        block.0.is_power_of_two() && (MIN_BLOCK..=MAX_BLOCK).contains(&block)
    }

    /// Returns the number of blocks of a memory, or 0 if there is no such memory.
    pub(crate) fn blocks_of(&self, memory: usize) -> u64 {
        self.pieces.get(memory).map_or(0, |(size, _)| size.0.div_ceil(self.block.0))
    }

    /// Returns the size of a memory, or 0 if there is no such memory.
    pub(crate) fn size_of(&self, memory: usize) -> Bytes {
        self.pieces.get(memory).map_or(Bytes::ZERO, |(size, _)| *size)
    }

    /// Returns the index of a block among all blocks, and its size.
    pub(crate) fn place(&self, memory: usize, block: u64) -> Option<(usize, usize)> {
        let (size, first) = *self.pieces.get(memory)?;
        let left = size.0.checked_sub(block.checked_mul(self.block.0)?).filter(|left| *left > 0)?;
        let place = usize::try_from(first.checked_add(block)?).ok()?;
        Some((place, usize::try_from(left.min(self.block.0)).ok()?))
    }

    /// Returns the size of each block, in order.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = u64> {
        self.pieces.iter().flat_map(|(size, _)| {
            let (size, unit) = (size.0, self.block.0);
            (0..size.div_ceil(unit)).map(move |block| (size - block * unit).min(unit))
        })
    }

    /// Returns the memory and the block number in it, for an index among all blocks.
    pub(crate) fn name(&self, place: u64) -> (usize, u64) {
        let memory = self.pieces.partition_point(|(_, first)| *first <= place).saturating_sub(1);
        (memory, place - self.pieces.get(memory).map_or(0, |(_, first)| *first))
    }
}

/// Returns the check for [`Stored::compressed`].
pub(crate) fn check_of(compressed: &[u8]) -> [u8; 8] {
    let mut check = [0; 8];
    check.copy_from_slice(&hash(compressed)[..8]);
    check
}
