//! Writing a snapshot: several threads write blocks to a temporary file, which gets the target's name when it is complete.

use crate::SnapshotError;
use crate::disk::{Destination, Temporary, is_same, temporary_of};
use crate::format::{
    Cut, DEFAULT_BLOCK, Entry, Footer, Hash, Header, MAX_BLOCK, MAX_BLOCKS, MAX_NEEDED, MIN_BLOCK, Stored,
    check_of, hash,
};
use crate::parts::out_of_range;
use crate::records::Head;
use crate::{Description, EarlierSnapshot, SnapshotFile, SnapshotStats};
use gpu_vmm_core::extend::Lock;
use gpu_vmm_core::extend::files::failed;
use gpu_vmm_core::{Bytes, Detail, Error, Operation, Result};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

pub(crate) const OPERATION: Operation = Operation::WriteSnapshot;

/// Options for writing a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions<'a> {
    /// Whether blocks are compressed (LZ4) if that makes them smaller. Compressing takes longer than writing to most disks.
    pub compress: bool,
    /// An earlier snapshot, in the same folder as the new one. Blocks that it or the snapshots it needs hold are omitted. The new
    /// snapshot then needs those files, under their current names.
    pub since: Option<&'a SnapshotFile>,
    /// The size of a block: a power of two from 4 KiB to 64 MiB. The default is the earlier snapshot's size, since blocks of
    /// different sizes never match, or 1 MiB without an earlier snapshot.
    pub block: Option<Bytes>,
}

/// A snapshot that is being written.
///
/// Every block of every memory must be written once, in any order, by one or several threads. The calling thread hashes and
/// compresses the block. Dropping the writer before [`finish`](SnapshotWriter::finish) removes the temporary file and leaves the
/// target unchanged.
#[derive(Debug)]
pub struct SnapshotWriter {
    place: Box<dyn Destination>,
    target: PathBuf,
    head: Head,
    cut: Cut,
    compress: bool,
    /// The blocks of the earlier snapshot, by hash; their files are indices into `head.needed`.
    known: HashMap<Hash, Stored>,
    state: Lock<State>,
    finished: bool,
}

#[derive(Debug)]
struct State {
    entries: Vec<Option<Entry>>,
    /// The offset of the next block.
    end: u64,
    /// The first failure, after which the file cannot be completed.
    failed: Option<Error>,
}

impl SnapshotWriter {
    /// Begins a snapshot with this name. Sets [`Description::parent`] to the earlier snapshot of the options.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Invalid`] for an inconsistent description, or for an earlier snapshot that is not in the same folder or
    /// would be overwritten; [`Detail::Unsupported`] for an invalid block size or too many blocks; [`Detail::File`] for a system
    /// error, also if another process is writing the same snapshot.
    pub fn create(
        path: impl AsRef<Path>,
        description: &Description,
        options: WriteOptions<'_>,
    ) -> Result<Self> {
        Self::create_in(path.as_ref(), description, options, |target| {
            Ok(Box::new(Temporary::create(OPERATION, target)?))
        })
    }

    /// Begins a snapshot at another destination.
    pub(crate) fn create_in(
        target: &Path,
        description: &Description,
        options: WriteOptions<'_>,
        place: impl FnOnce(&Path) -> Result<Box<dyn Destination>>,
    ) -> Result<Self> {
        let block = options.block.or(options.since.map(SnapshotFile::block_size)).unwrap_or(DEFAULT_BLOCK);
        if !Cut::allows(block) {
            let reason =
                format!("blocks of {block}; the size must be a power of two from {MIN_BLOCK} to {MAX_BLOCK}");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let mut head = Head { block, description: description.clone(), needed: Vec::new() };
        let mut known = HashMap::new();
        head.description.parent = None;
        if let Some(since) = options.since {
            head.description.parent = Some(since.as_base(OPERATION)?);
            head.needed = since.with_needed(OPERATION)?;
            known = since.known();
            check_needed(target, &head.needed)?;
        }
        let bad = |what| {
            Error::of_extension(
                OPERATION,
                SnapshotError::Invalid { path: target.display().to_string(), at: 0, what },
            )
        };
        head.description.check().map_err(bad)?;
        head.write().map_err(bad)?;
        let sizes = head.description.memories.iter().map(|memory| memory.size);
        let cut = Cut::new(block, sizes).ok_or_else(|| {
            Error::new(
                OPERATION,
                Detail::Unsupported {
                    reason: format!("more than {MAX_BLOCKS} blocks of {block}; use larger blocks"),
                },
            )
        })?;
        let writer = Self {
            place: place(target)?,
            target: target.to_owned(),
            state: Lock::new(State {
                entries: vec![None; cut.blocks as usize],
                end: Header::BYTES as u64,
                failed: None,
            }),
            cut,
            head,
            compress: options.compress,
            known,
            finished: false,
        };
        let Head { description, .. } = &writer.head;
        let header = Header { version: writer.head.version(), id: description.id };
        writer.put(&header.write(), 0)?;
        Ok(writer)
    }

    /// Returns the size of a block; the last block of each memory can be shorter.
    #[must_use]
    pub fn block_size(&self) -> Bytes {
        self.cut.block
    }

    /// Returns the number of blocks of a memory of the description, or 0 if there is no such memory.
    #[must_use]
    pub fn blocks(&self, memory: usize) -> u64 {
        self.cut.blocks_of(memory)
    }

    /// Writes block `block` of the memory at index `memory` of [`Description::memories`]. It begins at `block` times the [block
    /// size](SnapshotWriter::block_size).
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] if there is no such block, or `bytes` does not have its size; [`SnapshotError::Invalid`] if it was
    /// already written; [`Detail::Forked`]; [`Detail::File`] for a system error, such as a full disk. After a system error every
    /// further call returns the same error.
    pub fn write_block(&self, memory: usize, block: u64, bytes: &[u8]) -> Result<()> {
        self.state.process().check(OPERATION)?;
        let place = self.cut.place(memory, block).filter(|(_, length)| bytes.len() == *length);
        let (place, _) =
            place.ok_or_else(|| out_of_range(OPERATION, &self.cut, memory, block, bytes.len()))?;
        if is_zero(bytes) {
            return self.enter(place, Entry::Zero).map(drop);
        }
        let hash = hash(bytes);
        if let Some(stored) = self.known.get(&hash).filter(|stored| stored.fits(bytes.len() as u64)) {
            return self.enter(place, Entry::Stored(*stored)).map(drop);
        }
        let smaller = if self.compress { compressed(bytes) } else { None };
        let (bytes, compressed) = match &smaller {
            Some(smaller) => (&smaller[..], Some(check_of(smaller))),
            None => (bytes, None),
        };
        let stored = Stored { hash, offset: 0, length: bytes.len() as u32, file: 0, compressed };
        let offset = self.enter(place, Entry::Stored(stored))?;
        self.put(bytes, offset)
    }

    /// Writes the index and the footer, syncs the file to the disk, and renames it to the target's name.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Invalid`] if a block has not been written; [`Detail::File`] for a system error. The target is then
    /// unchanged, with one exception: if the new name could not be synced to the disk, the target is the new snapshot, at least
    /// until the machine loses power.
    pub fn finish(mut self) -> Result<SnapshotStats> {
        self.state.process().check(OPERATION)?;
        let (entries, end) = self.entries()?;
        let mut stats =
            SnapshotStats { contents: self.head.description.contents(), ..SnapshotStats::default() };
        entries.iter().for_each(|entry| stats.count(entry));
        let mut index = self.head.write().map_err(|what| self.bad(what))?;
        let head = index.len() as u64;
        index.reserve_exact(entries.len() * Entry::BYTES + Footer::BYTES);
        entries.iter().for_each(|entry| index.extend(entry.write()));
        let hash = hash(&index);
        let file = end + (index.len() + Footer::BYTES) as u64;
        let (id, entries) = (self.head.description.id, entries.len() as u64);
        let version = self.head.version();
        index.extend(Footer { version, id, index: end, head, entries, file, hash }.write());
        self.put(&index, end)?;
        self.place.sync().map_err(|error| self.failed("fsync", &error))?;
        self.place.publish().map_err(|error| self.failed("rename", &error))?;
        self.finished = true;
        self.place.sync_folder().map_err(|error| self.failed("fsync of the folder", &error))?;
        stats.file = Bytes(file);
        Ok(stats)
    }

    /// Returns all entries, if none is missing, and drops needed files that no entry uses.
    fn entries(&mut self) -> Result<(Vec<Entry>, u64)> {
        let mut state = self.state()?;
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let end = state.end;
        let found = std::mem::take(&mut state.entries);
        drop(state);
        if let Some(place) = found.iter().position(Option::is_none) {
            let (memory, block) = self.cut.name(place as u64);
            return Err(self.bad(format!("block {block} of memory {memory} has not been written")));
        }
        let mut entries: Vec<Entry> = found.into_iter().flatten().collect();
        let mut numbers = vec![0u16; self.head.needed.len() + 1];
        for entry in &entries {
            if let Entry::Stored(stored) = entry {
                numbers[usize::from(stored.file)] = 1;
            }
        }
        let mut needed = Vec::new();
        for (earlier, number) in
            self.head.needed.drain(..).zip(&mut numbers[1..]).filter(|(_, used)| **used != 0)
        {
            needed.push(earlier);
            *number = needed.len() as u16;
        }
        numbers[0] = 0;
        for entry in &mut entries {
            if let Entry::Stored(stored) = entry {
                stored.file = numbers[usize::from(stored.file)];
            }
        }
        self.head.needed = needed;
        Ok((entries, end))
    }

    /// Records a block's entry, and returns its offset in the file.
    fn enter(&self, place: usize, entry: Entry) -> Result<u64> {
        let mut state = self.state()?;
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let offset = state.end;
        let (entry, length) = match entry {
            Entry::Stored(stored) if stored.file == 0 => {
                (Entry::Stored(Stored { offset, ..stored }), u64::from(stored.length))
            }
            other => (other, 0),
        };
        match state.entries.get_mut(place) {
            Some(free @ None) => *free = Some(entry),
            _ => {
                let (memory, block) = self.cut.name(place as u64);
                return Err(self.bad(format!("block {block} of memory {memory} has been written before")));
            }
        }
        state.end += length;
        Ok(offset)
    }

    fn put(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.place.write_at(bytes, offset).map_err(|error| self.failed("write", &error))
    }

    /// Records the first failure: every later call returns it.
    fn failed(&self, call: &'static str, error: &io::Error) -> Error {
        let error = failed(OPERATION, call, &self.target, error);
        match self.state() {
            Ok(mut state) => state.failed.get_or_insert(error).clone(),
            Err(forked) => forked,
        }
    }

    fn bad(&self, what: String) -> Error {
        Error::of_extension(
            OPERATION,
            SnapshotError::Invalid { path: self.target.display().to_string(), at: 0, what },
        )
    }

    fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock(OPERATION)
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        // In a forked child the file is the parent's.
        if !self.finished && self.state.process().is_this() {
            self.place.discard();
        }
    }
}

/// Refuses needed files that are not next to the new one, or that it would overwrite.
fn check_needed(target: &Path, needed: &[EarlierSnapshot]) -> Result<()> {
    let bad = |what| {
        Error::of_extension(
            OPERATION,
            SnapshotError::Invalid { path: target.display().to_string(), at: 0, what },
        )
    };
    if needed.len() > MAX_NEEDED {
        return Err(bad(format!("it would need {} earlier files; write one that needs none", needed.len())));
    }
    let written = [Some(target.to_owned()), temporary_of(target)];
    for earlier in needed {
        let path = target.with_file_name(&earlier.file);
        if written.iter().flatten().any(|written| is_same(written, &path)) {
            return Err(bad(format!(
                "it would replace {}, which it needs; give it another name",
                earlier.file
            )));
        }
        SnapshotFile::open_needed(OPERATION, target, earlier)?;
    }
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// Returns the compressed bytes, if they are fewer.
fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let smaller = lz4_flex::block::compress(bytes);
    (smaller.len() < bytes.len()).then_some(smaller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SnapshotId;

    #[test]
    fn needed_files_reach_the_formats_limit() {
        let refusal = |count| {
            let one = EarlierSnapshot { id: SnapshotId::new().unwrap(), file: "missing".to_owned() };
            check_needed(Path::new("/nonexistent/a"), &vec![one; count]).unwrap_err().to_string()
        };
        let error = refusal(MAX_NEEDED + 1);
        assert!(error.contains("it would need 1025 earlier files"), "{error}");
        let error = refusal(MAX_NEEDED);
        assert!(error.contains("needs the earlier snapshot"), "{error}");
    }
}
