//! Entry points for fuzzing the code that reads snapshots.

use crate::SnapshotId;
use crate::disk::ReadAt;
use crate::format::{Entry, Footer, Header, REGIONS, Stored, VERSION, hash};
use crate::parts::{Parts, Why, read_header, read_stored};
use crate::records::Head;
use gpu_vmm_core::{Operation, Result};
use std::io;
use std::path::Path;

/// A block can have up to 64 MiB, which a fuzzer would report as an oversized allocation.
const MAX_READ: u64 = 1 << 20;

/// A file in memory.
pub(crate) struct InMemory<'a>(pub(crate) &'a [u8]);

impl ReadAt for InMemory<'_> {
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..));
        let found = from.and_then(|from| from.get(..bytes.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }
}

/// Reads arbitrary bytes as a snapshot. Then reads them as the parts of a snapshot with correct checksums, so that the checksums do
/// not stop the fuzzer.
///
/// The first two bytes select the sizes of the head and of the entries.
pub fn decode(bytes: &[u8]) {
    let _ = read_all(bytes);
    let Some(([head, entries], rest)) = bytes.split_first_chunk() else { return };
    let (blocks, rest) = rest.split_at(rest.len() - rest.len() * usize::from(*head) / 255);
    let entries = usize::from(*entries).min(blocks.len() / Entry::BYTES) * Entry::BYTES;
    let (blocks, entries) = blocks.split_at(blocks.len() - entries);
    if let Ok(found) = read_head(rest) {
        // A head that was read must be the same after writing and reading it again.
        let written = found.write();
        assert_eq!(written.and_then(|bytes| Head::read(&bytes, found.version())), Ok(found));
    }
    let _ = read_all(&assembled(blocks, rest, entries));
}

/// Reads a head of the first version that it fits.
fn read_head(bytes: &[u8]) -> std::result::Result<Head, String> {
    (REGIONS..VERSION)
        .find_map(|version| Head::read(bytes, version).ok())
        .map_or_else(|| Head::read(bytes, VERSION), Ok)
}

/// Assembles a file of these parts, with correct checksums.
pub(crate) fn assembled(blocks: &[u8], head: &[u8], entries: &[u8]) -> Vec<u8> {
    let (version, id) =
        read_head(head).map_or((REGIONS, SnapshotId([0; 16])), |head| (head.version(), head.description.id));
    let header = Header { version, id };
    let index = [head, entries].concat();
    let footer = Footer {
        version,
        id,
        index: (Header::BYTES + blocks.len()) as u64,
        head: head.len() as u64,
        entries: (entries.len() / Entry::BYTES) as u64,
        file: (Header::BYTES + blocks.len() + index.len() + Footer::BYTES) as u64,
        hash: hash(&index),
    };
    [&header.write()[..], blocks, &index, &footer.write()].concat()
}

/// Reads everything in a file. Returns the first problem found.
pub(crate) fn read_all(bytes: &[u8]) -> Result<()> {
    let (source, size) = (InMemory(bytes), bytes.len() as u64);
    let inner = || {
        let header = read_header(&source, size)?;
        let Parts { cut, entries, .. } = Parts::read(&source, header, size)?;
        for (entry, length) in entries.iter().zip(cut.lengths()) {
            if let Entry::Stored(stored @ Stored { file: 0, .. }) = entry
                && length <= MAX_READ
            {
                read_stored(&source, stored, &mut vec![0; length as usize], "a block")?;
            }
        }
        Ok(())
    };
    inner().map_err(|why: Why| why.error(Operation::ReadSnapshot, Path::new("memory")))
}
