//! Opening a snapshot and reading its blocks.

use crate::SnapshotError;
use crate::disk::open_to_read;
use crate::format::{Entry, Hash, Header, Stored, Wrong};
use crate::parts::{Parts, Why, out_of_range, read_header, read_stored};
use crate::{Description, Earlier, SnapshotStats};
#[cfg(doc)]
use gpu_vmm_core::Detail;
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Bytes, Error, Operation, Result};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const OPEN: Operation = Operation::OpenSnapshot;
pub(crate) const READ: Operation = Operation::ReadSnapshot;

/// A snapshot in a file.
///
/// Opening it has checked everything but the contents of its blocks, each of which is checked whenever it is read. It can
/// be read by several threads at once. Replacing the file by another snapshot meanwhile does no harm: this one stays
/// open.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    file: File,
    pub(crate) parts: Parts,
    needed: Vec<OnceLock<Result<File>>>,
    /// In a child of it, another thread may be opening one of them for ever.
    process: Process,
    size: Bytes,
}

impl SnapshotFile {
    /// Opens a snapshot. The files that it needs beside it are opened when a block in them is read.
    ///
    /// # Errors
    ///
    /// [`Detail::File`] where it cannot be read, [`SnapshotError::Newer`] for one that a newer gpu-vmm has written, and
    /// [`SnapshotError::Invalid`] for what is none, or has been changed or cut off.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, header, size) = open(OPEN, path)?;
        let parts = Parts::read(&file, header, size).map_err(|why| why.error(OPEN, path))?;
        let needed = parts.head.needed.iter().map(|_| OnceLock::new()).collect();
        Ok(Self {
            path: path.to_owned(),
            file,
            parts,
            needed,
            process: Process::current(),
            size: Bytes(size),
        })
    }

    /// What is in it.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.parts.head.description
    }

    /// The files beside it that some of its blocks are in. Without them, or if they are replaced, it is not whole.
    #[must_use]
    pub fn needed(&self) -> &[Earlier] {
        &self.parts.head.needed
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes a block has; the last one of each memory can be shorter.
    #[must_use]
    pub fn block_size(&self) -> Bytes {
        self.parts.cut.block
    }

    /// How many blocks a memory of the description has; none where there is no such memory.
    #[must_use]
    pub fn blocks(&self, memory: usize) -> u64 {
        self.parts.cut.blocks_of(memory)
    }

    /// What its blocks are, as it says itself: nothing is read for it.
    #[must_use]
    pub fn stats(&self) -> SnapshotStats {
        let contents = self.parts.head.description.contents();
        let mut stats = SnapshotStats { contents, file: self.size, ..SnapshotStats::default() };
        self.parts.entries.iter().for_each(|entry| stats.count(entry));
        stats
    }

    /// Reads a block: the bytes of `memory`, which is a place in [`Description::memories`], from `block` times the
    /// [size](SnapshotFile::block_size) of one on. What is in `bytes` after a failure means nothing.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] for a block that there is not, or room for more or fewer bytes than it has;
    /// [`SnapshotError::Invalid`] where it is not what was written, or the earlier snapshot that it is in is missing or has
    /// been replaced; [`Detail::Forked`]; [`Detail::File`] for what the system answers.
    pub fn read_block(&self, memory: usize, block: u64, bytes: &mut [u8]) -> Result<()> {
        self.process.check(READ)?;
        let place = self.parts.cut.place(memory, block).filter(|(_, length)| bytes.len() == *length);
        let entry = place.and_then(|(place, _)| self.parts.entries.get(place));
        match entry.ok_or_else(|| out_of_range(READ, &self.parts.cut, memory, block, bytes.len()))? {
            Entry::Zero => bytes.fill(0),
            Entry::Stored(stored) => {
                let (file, path) = self.file_of(stored)?;
                let of = format!("block {block} of memory {memory}");
                read_stored(file, stored, bytes, &of).map_err(|why| why.error(READ, &path))?;
            }
        }
        Ok(())
    }

    /// True for a block of zeros, which is in no file.
    pub(crate) fn is_zero(&self, memory: usize, block: u64) -> bool {
        let place = self.parts.cut.place(memory, block);
        let entry = place.and_then(|(place, _)| self.parts.entries.get(place));
        matches!(entry, Some(Entry::Zero))
    }

    /// The file that a block is in, with its path for messages.
    fn file_of(&self, stored: &Stored) -> Result<(&File, PathBuf)> {
        let Some(place) = usize::from(stored.file).checked_sub(1) else {
            return Ok((&self.file, self.path.clone()));
        };
        let (Some(earlier), Some(opened)) = (self.parts.head.needed.get(place), self.needed.get(place))
        else {
            // Opening it has checked that there is none.
            let what = "a block is in a file that it does not name".to_owned();
            return Err(Why::from(Wrong::Bad { at: 0, what }).error(READ, &self.path));
        };
        match opened.get_or_init(|| Self::open_needed(READ, &self.path, earlier)) {
            Ok(file) => Ok((file, self.path.with_file_name(&earlier.file))),
            Err(error) => Err(error.clone()),
        }
    }

    /// The file of an earlier snapshot that the one at `path` needs.
    pub(crate) fn open_needed(operation: Operation, path: &Path, earlier: &Earlier) -> Result<File> {
        let bad = |what| {
            Error::of_extension(
                operation,
                SnapshotError::Invalid { path: path.display().to_string(), at: 0, what },
            )
        };
        let Earlier { id, file } = earlier;
        match open(operation, &path.with_file_name(file)) {
            Ok((opened, header, _)) if header.id == *id => Ok(opened),
            Ok((_, header, _)) => Err(bad(format!(
                "it needs the earlier snapshot {id} beside it, and {file} is another one now ({})",
                header.id
            ))),
            Err(error) => {
                Err(bad(format!("it needs the earlier snapshot {id} beside it in {file}; {error}")))
            }
        }
    }

    /// This one, as a later one names it.
    pub(crate) fn as_earlier(&self, operation: Operation) -> Result<Earlier> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let earlier = name.map(|file| Earlier { id: self.parts.head.description.id, file: file.to_owned() });
        earlier.filter(|earlier| earlier.check().is_ok()).ok_or_else(|| {
            Error::of_extension(
                operation,
                SnapshotError::Invalid {
                    path: self.path.display().to_string(),
                    at: 0,
                    what: "its name cannot be written down in a later one".to_owned(),
                },
            )
        })
    }

    /// This one and those that it needs.
    pub(crate) fn with_needed(&self, operation: Operation) -> Result<Vec<Earlier>> {
        let mut all = vec![self.as_earlier(operation)?];
        all.extend_from_slice(&self.parts.head.needed);
        Ok(all)
    }

    /// All blocks that are in some file, by their hash, for a snapshot that needs [those](Self::with_needed).
    pub(crate) fn known(&self) -> HashMap<Hash, Stored> {
        let stored = self.parts.entries.iter().filter_map(|entry| match entry {
            Entry::Zero => None,
            Entry::Stored(stored) => Some((stored.hash, Stored { file: stored.file + 1, ..*stored })),
        });
        stored.collect()
    }
}

/// A file with the header of a snapshot, and its size.
fn open(operation: Operation, path: &Path) -> Result<(File, Header, u64)> {
    let inner = || {
        let file = open_to_read(path).map_err(|error| Why::System("open", error))?;
        let metadata = file.metadata().map_err(|error| Why::System("stat", error))?;
        if !metadata.is_file() {
            return Err(Wrong::Bad { at: 0, what: "it is no regular file".to_owned() }.into());
        }
        let header = read_header(&file, metadata.len())?;
        Ok((file, header, metadata.len()))
    };
    inner().map_err(|why: Why| why.error(operation, path))
}
