//! Reading the parts of a file, each validated against the file's size and the other parts before it is used.
//!
//! Files are untrusted. No number in a file allocates more than `format` allows, and nothing is allocated before the file is known
//! to have the bytes for it.

use crate::EarlierSnapshot;
use crate::SnapshotError;
use crate::disk::ReadAt;
use crate::format::{Cut, Entry, Footer, Header, MAX_NEEDED, Stored, VERSION, Wrong, check_of, hash};
use crate::records::Head;
use gpu_vmm_core::extend::files::failed;
use gpu_vmm_core::{Bytes, Detail, Error, OffsetRange, Operation};
use std::io;
use std::path::Path;

/// The number of entries that are read at once.
const AT_ONCE: u64 = 1024;

/// Why a file cannot be read: a system error or invalid contents.
#[derive(Debug)]
pub(crate) enum Why {
    System(&'static str, io::Error),
    Wrong(Wrong),
}

impl From<Wrong> for Why {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl Why {
    fn at<T>(at: u64, what: impl Into<String>) -> Result<T, Self> {
        Ok(Wrong::at(at, what)?)
    }

    pub(crate) fn error(self, operation: Operation, path: &Path) -> Error {
        let shown = path.display().to_string();
        match self {
            Self::System(call, error) => failed(operation, call, path, &error),
            Self::Wrong(Wrong::Bad { at, what }) => {
                Error::of_extension(operation, SnapshotError::Invalid { path: shown, at, what })
            }
            Self::Wrong(Wrong::Newer { version }) => {
                Error::of_extension(operation, SnapshotError::Newer { path: shown, version, newest: VERSION })
            }
        }
    }
}

/// All of a snapshot except the contents of its blocks.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) head: Head,
    pub(crate) cut: Cut,
    pub(crate) entries: Vec<Entry>,
}

/// Reads bytes that lie within the file's checked size.
fn read(source: &dyn ReadAt, bytes: &mut [u8], at: u64) -> Result<(), Why> {
    source.read_exact_at(bytes, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Wrong::Bad { at, what: format!("it ends before the {} bytes from here on", bytes.len()) }.into()
        }
        _ => Why::System("read", error),
    })
}

/// Reads the header of a file of `size` bytes.
pub(crate) fn read_header(source: &dyn ReadAt, size: u64) -> Result<Header, Why> {
    if size < Header::BYTES as u64 {
        return Why::at(size, format!("it has {size} bytes, fewer than a header"));
    }
    let mut bytes = [0; Header::BYTES];
    read(source, &mut bytes, 0)?;
    Ok(Header::read(&bytes)?)
}

impl Parts {
    /// Reads the parts of a file of `size` bytes, whose header has been read.
    pub(crate) fn read(source: &dyn ReadAt, header: Header, size: u64) -> Result<Self, Why> {
        let footer = read_footer(source, header, size)?;
        check_index(source, &footer)?;
        let wrong = |what| Why::Wrong(Wrong::Bad { at: footer.index, what });
        let mut head = vec![0; footer.head as usize];
        read(source, &mut head, footer.index)?;
        let head = Head::read(&head, header.version)
            .map_err(|what| wrong(format!("its description cannot be read: {what}")))?;
        head.description.check().map_err(|what| wrong(format!("its description: {what}")))?;
        head.needed.iter().try_for_each(EarlierSnapshot::check).map_err(wrong)?;
        if head.description.id != header.id || head.needed.len() > MAX_NEEDED {
            return Why::at(
                footer.index,
                "its description belongs to another snapshot, or it needs too many files",
            );
        }
        let sizes = head.description.memories.iter().map(|memory| memory.size);
        let cut =
            Some(head.block).filter(|block| Cut::allows(*block)).and_then(|block| Cut::new(block, sizes));
        let cut = cut.ok_or_else(|| {
            wrong(format!("its blocks of {} are of an invalid size or too many", head.block))
        })?;
        let entries = read_entries(source, &footer, &cut, head.needed.len())?;
        Ok(Self { head, cut, entries })
    }
}

fn read_footer(source: &dyn ReadAt, header: Header, size: u64) -> Result<Footer, Why> {
    let Some(at) = size.checked_sub(Footer::BYTES as u64).filter(|at| *at >= Header::BYTES as u64) else {
        return Why::at(size, format!("it has {size} bytes: it is truncated"));
    };
    let mut bytes = [0; Footer::BYTES];
    read(source, &mut bytes, at)?;
    Ok(Footer::read(&bytes, header, size)?)
}

/// Verifies the checksum of the head and the entries before they are parsed.
fn check_index(source: &dyn ReadAt, footer: &Footer) -> Result<(), Why> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; AT_ONCE as usize * Entry::BYTES];
    let (mut at, mut left) = (footer.index, footer.index_bytes());
    while left > 0 {
        let length = left.min(buffer.len() as u64);
        let bytes = &mut buffer[..length as usize];
        read(source, bytes, at)?;
        hasher.update(bytes);
        (at, left) = (at + length, left - length);
    }
    if hasher.finalize().as_bytes() == &footer.hash {
        Ok(())
    } else {
        Why::at(footer.index, "the checksum of its index is wrong")
    }
}

/// Reads the entries. Each must fit its block, and together they must cover all blocks in the file.
fn read_entries(source: &dyn ReadAt, footer: &Footer, cut: &Cut, needed: usize) -> Result<Vec<Entry>, Why> {
    let start = footer.index + footer.head;
    if footer.entries != cut.blocks {
        return Why::at(
            start,
            format!("it has entries for {} blocks, but its memory has {}", footer.entries, cut.blocks),
        );
    }
    let mut entries = Vec::new();
    if entries.try_reserve_exact(footer.entries as usize).is_err() {
        return Why::at(start, format!("no host memory is left for its index of {} blocks", footer.entries));
    }
    let mut own = 0;
    let mut buffer = vec![0; AT_ONCE.min(footer.entries) as usize * Entry::BYTES];
    let mut lengths = cut.lengths();
    for first in (0..footer.entries).step_by(AT_ONCE as usize) {
        let at = start + first * Entry::BYTES as u64;
        let bytes = &mut buffer[..AT_ONCE.min(footer.entries - first) as usize * Entry::BYTES];
        read(source, bytes, at)?;
        let (found, _) = bytes.as_chunks();
        for (at, (bytes, length)) in (at..).step_by(Entry::BYTES).zip(found.iter().zip(&mut lengths)) {
            let entry = Entry::read(bytes, at)?;
            if let Entry::Stored(stored) = &entry {
                if !stored.fits(length)
                    || !stored.is_inside(footer.index)
                    || usize::from(stored.file) > needed
                {
                    return Why::at(
                        at,
                        format!("the entry of a block of {length} bytes is invalid: {stored:?}"),
                    );
                }
                own += if stored.file == 0 { u64::from(stored.length) } else { 0 };
            }
            entries.push(entry);
        }
    }
    if own != footer.index - Header::BYTES as u64 {
        return Why::at(
            Header::BYTES as u64,
            format!("its entries cover {own} bytes of blocks, but it has others"),
        );
    }
    Ok(entries)
}

/// Reads the contents of a block and verifies its checksum.
pub(crate) fn read_stored(
    source: &dyn ReadAt,
    stored: &Stored,
    bytes: &mut [u8],
    of: &str,
) -> Result<(), Why> {
    let at = stored.offset;
    let whole = if let Some(check) = stored.compressed {
        let mut smaller = vec![0; stored.length as usize];
        read(source, &mut smaller, at)?;
        let room = bytes.len();
        let filled = |length| length == room;
        check_of(&smaller) == check && lz4_flex::block::decompress_into(&smaller, bytes).is_ok_and(filled)
    } else {
        read(source, bytes, at)?;
        true
    };
    if whole && hash(bytes) == stored.hash {
        Ok(())
    } else {
        Why::at(at, format!("{of} is not what was written"))
    }
}

/// Returns the error for a block that does not exist, or for a buffer that does not have its size.
pub(crate) fn out_of_range(
    operation: Operation,
    cut: &Cut,
    memory: usize,
    block: u64,
    length: usize,
) -> Error {
    let offset = Bytes(block.saturating_mul(cut.block.0));
    Error::new(
        operation,
        Detail::OutOfRange {
            range: OffsetRange { offset, length: Bytes(length as u64) },
            limit: cut.size_of(memory),
        },
    )
}
