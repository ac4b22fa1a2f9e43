//! Opening a snapshot and reading its blocks.

use crate::SnapshotError;
use crate::disk::open_to_read;
use crate::format::{Entry, Hash, Header, Stored, Wrong};
use crate::parts::{Parts, Why, out_of_range, read_header, read_stored};
use crate::{Description, EarlierSnapshot, SnapshotStats};
#[allow(unused_imports)] // named in documentation
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
/// Opening it has checked everything except the contents of its blocks, which are checked on each read. Several threads can read it
/// at once. Replacing the file by another snapshot does not affect this one, which stays open.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    file: File,
    pub(crate) parts: Parts,
    needed: Vec<OnceLock<Result<File>>>,
    /// In a forked child, one of these cells may be locked forever by another thread of the parent.
    process: Process,
    size: Bytes,
}

impl SnapshotFile {
    /// Opens a snapshot. Earlier snapshots that it needs are opened when one of their blocks is read.
    ///
    /// # Errors
    ///
    /// [`Detail::File`] if it cannot be read, [`SnapshotError::Newer`] if a newer gpu-vmm has written it, and
    /// [`SnapshotError::Invalid`] if it is not a snapshot, or has been changed or truncated.
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

    /// Returns the description.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.parts.head.description
    }

    /// Returns the other files that hold some of its blocks. If one of them is missing or replaced, the snapshot is incomplete.
    #[must_use]
    pub fn needed(&self) -> &[EarlierSnapshot] {
        &self.parts.head.needed
    }

    /// Returns the path that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of a block; the last block of each memory can be shorter.
    #[must_use]
    pub fn block_size(&self) -> Bytes {
        self.parts.cut.block
    }

    /// Returns the number of blocks of a memory of the description, or 0 if there is no such memory.
    #[must_use]
    pub fn blocks(&self, memory: usize) -> u64 {
        self.parts.cut.blocks_of(memory)
    }

    /// Returns the statistics of its blocks from its index, without reading blocks.
    #[must_use]
    pub fn stats(&self) -> SnapshotStats {
        let contents = self.parts.head.description.contents();
        let mut stats = SnapshotStats { contents, file: self.size, ..SnapshotStats::default() };
        self.parts.entries.iter().for_each(|entry| stats.count(entry));
        stats
    }

    /// Reads block `block` of the memory at index `memory` of [`Description::memories`]. It begins at `block` times the [block
    /// size](SnapshotFile::block_size). After an error the contents of `bytes` are unspecified.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] if there is no such block, or `bytes` does not have its size; [`SnapshotError::Invalid`] if the block
    /// is damaged, or the earlier snapshot that holds it is missing or has been replaced; [`Detail::Forked`]; [`Detail::File`] for
    /// a system error.
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

    /// Returns whether a block consists of zeros, which no file holds.
    pub(crate) fn is_zero(&self, memory: usize, block: u64) -> bool {
        let place = self.parts.cut.place(memory, block);
        let entry = place.and_then(|(place, _)| self.parts.entries.get(place));
        matches!(entry, Some(Entry::Zero))
    }

    /// Returns the file that holds a block, with its path for messages.
    fn file_of(&self, stored: &Stored) -> Result<(&File, PathBuf)> {
        let Some(place) = usize::from(stored.file).checked_sub(1) else {
            return Ok((&self.file, self.path.clone()));
        };
        let (Some(earlier), Some(opened)) = (self.parts.head.needed.get(place), self.needed.get(place))
        else {
            // Unreachable: opening the snapshot has checked this.
            let what = "a block is in a file that the snapshot does not list".to_owned();
            return Err(Why::from(Wrong::Bad { at: 0, what }).error(READ, &self.path));
        };
        match opened.get_or_init(|| Self::open_needed(READ, &self.path, earlier)) {
            Ok(file) => Ok((file, self.path.with_file_name(&earlier.file))),
            Err(error) => Err(error.clone()),
        }
    }

    /// Opens the file of an earlier snapshot that the one at `path` needs.
    pub(crate) fn open_needed(operation: Operation, path: &Path, earlier: &EarlierSnapshot) -> Result<File> {
        let bad = |what| {
            Error::of_extension(
                operation,
                SnapshotError::Invalid { path: path.display().to_string(), at: 0, what },
            )
        };
        let EarlierSnapshot { id, file } = earlier;
        match open(operation, &path.with_file_name(file)) {
            Ok((opened, header, _)) if header.id == *id => Ok(opened),
            Ok((_, header, _)) => Err(bad(format!(
                "it needs the earlier snapshot {id}, but {file} is now another snapshot ({})",
                header.id
            ))),
            Err(error) => {
                Err(bad(format!("it needs the earlier snapshot {id} in {file} of the same folder: {error}")))
            }
        }
    }

    /// Returns the reference by which a later snapshot names this one.
    pub(crate) fn as_base(&self, operation: Operation) -> Result<EarlierSnapshot> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let earlier =
            name.map(|file| EarlierSnapshot { id: self.parts.head.description.id, file: file.to_owned() });
        earlier.filter(|earlier| earlier.check().is_ok()).ok_or_else(|| {
            Error::of_extension(
                operation,
                SnapshotError::Invalid {
                    path: self.path.display().to_string(),
                    at: 0,
                    what: "its file name cannot be stored in a later snapshot".to_owned(),
                },
            )
        })
    }

    /// Returns the references of this snapshot and of those that it needs.
    pub(crate) fn with_needed(&self, operation: Operation) -> Result<Vec<EarlierSnapshot>> {
        let mut all = vec![self.as_base(operation)?];
        all.extend_from_slice(&self.parts.head.needed);
        Ok(all)
    }

    /// Returns all blocks that a file holds, by hash, for a snapshot that needs [these files](Self::with_needed).
    pub(crate) fn known(&self) -> HashMap<Hash, Stored> {
        let stored = self.parts.entries.iter().filter_map(|entry| match entry {
            Entry::Zero => None,
            Entry::Stored(stored) => Some((stored.hash, Stored { file: stored.file + 1, ..*stored })),
        });
        stored.collect()
    }
}

/// Opens a file and reads a snapshot's header and the file's size.
fn open(operation: Operation, path: &Path) -> Result<(File, Header, u64)> {
    let inner = || {
        let file = open_to_read(path).map_err(|error| Why::System("open", error))?;
        let metadata = file.metadata().map_err(|error| Why::System("stat", error))?;
        if !metadata.is_file() {
            return Err(Wrong::Bad { at: 0, what: "it is not a regular file".to_owned() }.into());
        }
        let header = read_header(&file, metadata.len())?;
        Ok((file, header, metadata.len()))
    };
    inner().map_err(|why: Why| why.error(operation, path))
}
