//! Writing a snapshot: blocks from several threads, in a temporary file that gets the target's name when it is whole.

use crate::SnapshotError;
use crate::disk::{Place, Temporary, is_same, temporary_of};
use crate::format::{
    Cut, DEFAULT_BLOCK, Entry, Footer, Hash, Header, MAX_BLOCK, MAX_BLOCKS, MAX_NEEDED, MIN_BLOCK, Stored,
    check_of, hash,
};
use crate::parts::out_of_range;
use crate::records::Head;
use crate::{Description, Earlier, SnapshotFile, SnapshotStats};
use gpu_vmm_core::extend::Lock;
use gpu_vmm_core::extend::files::failed;
use gpu_vmm_core::{Bytes, Detail, Error, Operation, Result};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

pub(crate) const OPERATION: Operation = Operation::WriteSnapshot;

/// How a snapshot is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions<'a> {
    /// Whether blocks are compressed where that makes them smaller (LZ4). It costs more time than most disks do.
    pub compress: bool,
    /// An earlier snapshot, in the same folder as the new one: blocks that are in it, or in what it needs itself, are
    /// left out. The new one needs those files then, under the names that they have now.
    pub since: Option<&'a SnapshotFile>,
    /// The size of a block: a power of two from 4 KiB to 64 MiB. If nothing is said, as in the earlier snapshot, since
    /// blocks of another size are never the same; 1 MiB where there is none.
    pub block: Option<Bytes>,
}

/// A snapshot that is being written.
///
/// Every block of every memory is to be written once, in any order and by several threads if one likes; hashing and
/// compressing is done by the thread that calls. Dropping it before [`finish`](SnapshotWriter::finish) removes what has
/// been written, and what has the target's name stays what it was.
#[derive(Debug)]
pub struct SnapshotWriter {
    place: Box<dyn Place>,
    target: PathBuf,
    head: Head,
    cut: Cut,
    compress: bool,
    /// The blocks of the earlier snapshot, by their hash; the files are places in `head.needed`.
    known: HashMap<Hash, Stored>,
    state: Lock<State>,
    finished: bool,
}

#[derive(Debug)]
struct State {
    entries: Vec<Option<Entry>>,
    /// Where the next block goes.
    end: u64,
    /// The first failure: the file cannot become whole any more.
    failed: Option<Error>,
}

impl SnapshotWriter {
    /// Begins a snapshot that is to have this name. [`Description::parent`] is set to the snapshot since which it is
    /// written.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Invalid`] for a description that contradicts itself, or an earlier snapshot that is not in the same
    /// folder, or whose own file would be replaced; [`Detail::Unsupported`] for a size that blocks cannot have, or too
    /// many of them; [`Detail::File`] for what the system answers, also where another process writes the same snapshot.
    pub fn create(
        path: impl AsRef<Path>,
        description: &Description,
        options: WriteOptions<'_>,
    ) -> Result<Self> {
        Self::create_in(path.as_ref(), description, options, |target| {
            Ok(Box::new(Temporary::create(OPERATION, target)?))
        })
    }

    /// The same, with another place to write to.
    pub(crate) fn create_in(
        target: &Path,
        description: &Description,
        options: WriteOptions<'_>,
        place: impl FnOnce(&Path) -> Result<Box<dyn Place>>,
    ) -> Result<Self> {
        let block = options.block.or(options.since.map(SnapshotFile::block_size)).unwrap_or(DEFAULT_BLOCK);
        if !Cut::allows(block) {
            let reason = format!("blocks of {block}; a power of two from {MIN_BLOCK} to {MAX_BLOCK}");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let mut head = Head { block, description: description.clone(), needed: Vec::new() };
        let mut known = HashMap::new();
        head.description.parent = None;
        if let Some(since) = options.since {
            head.description.parent = Some(since.as_earlier(OPERATION)?);
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
                    reason: format!("more than {MAX_BLOCKS} blocks of {block}; take larger ones"),
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
        writer.put(&Header { id: writer.head.description.id }.write(), 0)?;
        Ok(writer)
    }

    /// How many bytes a block has; the last one of each memory can be shorter.
    #[must_use]
    pub fn block_size(&self) -> Bytes {
        self.cut.block
    }

    /// How many blocks a memory of the description has; none where there is no such memory.
    #[must_use]
    pub fn blocks(&self, memory: usize) -> u64 {
        self.cut.blocks_of(memory)
    }

    /// Writes a block: the bytes of `memory`, which is a place in [`Description::memories`], from `block` times the
    /// [size](SnapshotWriter::block_size) of one on.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] for a block that there is not, or bytes that are more or fewer than it has;
    /// [`SnapshotError::Invalid`] where it has been written before; [`Detail::Forked`]; [`Detail::File`] for what the system
    /// answers, for a full disk above all. After the latter every call fails in the same way.
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

    /// Writes what belongs behind the blocks, has all of it put on the disk, and gives it the target's name.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Invalid`] where a block has not been written; [`Detail::File`] for what the system answers. What has
    /// the target's name is still what it was, but for the one case that the new name could not be put on the disk:
    /// then it is the new snapshot, until the machine loses power at least.
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
        index.extend(Footer { id, index: end, head, entries, file, hash }.write());
        self.put(&index, end)?;
        self.place.sync().map_err(|error| self.failed("fsync", &error))?;
        self.place.publish().map_err(|error| self.failed("rename", &error))?;
        self.finished = true;
        self.place.sync_folder().map_err(|error| self.failed("fsync of the folder", &error))?;
        stats.file = Bytes(file);
        Ok(stats)
    }

    /// All entries, where none is missing; the files that none of them is in are not needed.
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

    /// Takes down what a block is, and gives the room in the file that it has.
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

    /// After a failure nothing goes on.
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

/// Refuses earlier files that the new one would not find beside itself, or would replace.
fn check_needed(target: &Path, needed: &[Earlier]) -> Result<()> {
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

/// The compressed form, where it is smaller.
fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let smaller = lz4_flex::block::compress(bytes);
    (smaller.len() < bytes.len()).then_some(smaller)
}
